"""ServingWorker: what the workers that hold a rollout server share, whatever else they hold."""

from agentverl import plugins
from agentverl.checkpoint_engine.base import CheckpointEngine
from agentverl.errors import BadInputError
from agentverl.rollout.replica import RolloutReplica
from agentverl.settings.root import ActorRolloutRefSettings
from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.single_controller.worker import Worker


class ServingWorker(Worker):
    """Subclass it for a role with a rollout server; its own `start_replica` sets `_replica`."""

    config: ActorRolloutRefSettings
    _replica: RolloutReplica | None = None

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def replica(self) -> RolloutReplica:
        """The rollout server, after `start_replica`."""
        if self._replica is None:
            raise BadInputError("there is no rollout server: await start_replica() first")
        return self._replica

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def stop_replica(self) -> None:
        """Stop serving; may be called twice."""
        replica, self._replica = self._replica, None
        if replica is not None:
            await replica.shutdown()

    def _make_checkpoint_engine(self) -> CheckpointEngine:
        made: CheckpointEngine = plugins.find("checkpoint_engines", self.config.rollout.checkpoint_engine.backend)()
        return made
