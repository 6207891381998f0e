"""The process of one rank, without Ray around it."""

from pathlib import Path

from agentverl.single_controller.call_order import Turn
from agentverl.single_controller.outcome import Failure
from agentverl.single_controller.ray_host import HostSettings, WorkerHost


async def test_a_call_before_the_worker_is_made_fails_with_the_reason_and_holds_up_none() -> None:
    host = WorkerHost(HostSettings(title="rank0", folder=Path.cwd()))
    for number in range(2):
        failed = await host.call("", "work", ((), {}), True, Turn("a", number))
        assert isinstance(failed, Failure)
        assert "its worker is not made yet" in failed.message
