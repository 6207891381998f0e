"""A process that plays episodes; what only the controller can decide, such as another server, it asks for."""

import asyncio
from collections.abc import Callable

from agentverl import blocking, garbage
from agentverl.errors import BadInputError
from agentverl.protocol.column_store import ColumnStore
from agentverl.rollout.player import Player
from agentverl.rollout.runner import EpisodeRunner
from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.single_controller.worker import Worker
from agentverl.stall_watch import StallWatch


class RunnerWorker(Worker):
    """Holds the runner of one process. Await `start_player` first.

    Args:
        make_runner: makes the runner of a rank, with plugins that this process finds by their names.
        store: takes tokens and images.
    """

    def __init__(self, make_runner: Callable[[int], EpisodeRunner], store: ColumnStore) -> None:
        self._make_runner = make_runner
        self._store = store
        self._runner: EpisodeRunner | None = None
        self._player: Player | None = None
        self._watch: StallWatch | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def start_player(self) -> None:
        """Make the runner and what its tools share.

        Raises:
            BadInputError: a plugin that the controller finds is not found here.
        """
        self._runner = await blocking.call(self._make_runner, self.rank)
        await self._runner.setup()
        self._player = Player(self._runner, self._store)
        self._watch = StallWatch(asyncio.get_running_loop(), 1.0)
        garbage.leave_alone_what_is_there()
        garbage.collect_in_small_steps()

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def player(self) -> Player:
        """Plays episodes, after `start_player`."""
        if self._player is None:
            raise BadInputError("the runner does not play yet: await start_player() first")
        return self._player

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def stop_player(self) -> None:
        """Give back what tools, environments and the reward manager hold; may be called twice."""
        if self._watch is not None:
            self._watch.stop()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.teardown()
