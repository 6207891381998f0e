"""Weights & Biases: one run a run's folder, resumed under the same id; WANDB_MODE=offline keeps it on disk."""

import hashlib
import importlib.util
from typing import Any

from agentverl.errors import PluginError
from agentverl.tracking.base import Logger, Metrics, RunInfo


class WandbLogger(Logger):
    """Needs `pip install 'agentverl[wandb]'`; the environment variables WANDB_* say where to and how."""

    def __init__(self, run: RunInfo) -> None:
        super().__init__(run)
        import wandb

        folder = run.folder.resolve()
        self._run: Any = wandb.init(
            project=run.project_name,
            name=run.experiment_name,
            config=dict(run.config),
            dir=str(folder / "logs"),
            id=hashlib.sha256(str(folder).encode()).hexdigest()[:16] if run.first_step else None,
            resume="allow" if run.first_step else None,
        )

    @classmethod
    def require(cls) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise PluginError("trainer.logger=wandb needs `pip install 'agentverl[wandb]'`, which is not installed")

    def log(self, metrics: Metrics, step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()
