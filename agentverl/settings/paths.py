"""Where a path of the configuration leads to."""

from pathlib import Path

import agentverl

PACKAGE = "package://agentverl/"


def resolve_path(path: str) -> Path:
    """`package://agentverl/...` is inside the installed package, `~` the home folder, anything else as it stands."""
    if path.startswith(PACKAGE):
        return Path(agentverl.__file__).parent / path.removeprefix(PACKAGE)
    return Path(path).expanduser()
