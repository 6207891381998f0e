"""`python -m agentverl` is the command `agentverl`."""

from agentverl.cli import main

main()
