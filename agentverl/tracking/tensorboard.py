"""TensorBoard event files in the run's folder, under `logs/tensorboard`."""

from torch.utils.tensorboard import SummaryWriter

from agentverl.tracking.base import Logger, Metrics, RunInfo


class TensorboardLogger(Logger):
    """`tensorboard --logdir outputs` shows all runs beside each other."""

    def __init__(self, run: RunInfo) -> None:
        super().__init__(run)
        # Events of steps that a resumed run repeats are hidden by TensorBoard.
        self._writer = SummaryWriter(
            str(run.folder / "logs" / "tensorboard"), purge_step=run.first_step + 1 if run.first_step else None
        )

    def log(self, metrics: Metrics, step: int) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)

    def close(self) -> None:
        self._writer.close()
