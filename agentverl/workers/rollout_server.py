"""RolloutServerWorker: a rollout server in a process of its own."""

from agentverl import blocking
from agentverl.checkpoint_engine.base import CheckpointEngine
from agentverl.checkpoint_engine.seats import ALONE, Seat
from agentverl.data.model_folder import resolve_model_path
from agentverl.settings.root import ActorRolloutRefSettings
from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.workers.actor_rollout_ref import PolicyRun, server_spec
from agentverl.workers.replicas import make_replica
from agentverl.workers.serving_worker import ServingWorker
from agentverl.workers.weight_update import receive_weights


class RolloutServerWorker(ServingWorker):
    """Holds one server on devices of its own. Await `start_replica`, then `receive_weights` before the first request.

    Args:
        config: the section `actor_rollout_ref`.
        run: what else the worker has to know; without an actor the server loads the model's own weights.
    """

    def __init__(self, config: ActorRolloutRefSettings, run: PolicyRun) -> None:
        self.config = config
        self.run = run
        self._seat = ALONE
        self._checkpoint_engine: CheckpointEngine | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def start_replica(self) -> None:
        """Make the rollout server and let it serve, on the running event loop.

        Raises:
            BadInputError: the server, the model or the limits cannot work.
        """
        folder = self.run.folder or resolve_model_path(str(self.config.model.path)).path
        spec = await blocking.call(server_spec, self.config, self.run, folder)
        self._replica = await blocking.call(make_replica, self.config.rollout.name, spec)
        await self._replica.init_standalone()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def receive_weights(self, seat: Seat, version: int) -> None:
        """Take in a complete set of weights; a new seat means a new connection to the sender.

        Raises:
            WeightTransferError: the set broke off; the server keeps serving the old one.
        """
        if self._checkpoint_engine is None or seat != self._seat:
            self._checkpoint_engine, self._seat = self._make_checkpoint_engine(), seat
        await receive_weights(self._checkpoint_engine, self.replica(), seat, version)
