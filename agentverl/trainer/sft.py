"""`agentverl sft`: supervised fine-tuning on conversations; what assistants wrote is learnt."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from agentverl.data.dataloader import PromptLoader
from agentverl.data.files import read_rows
from agentverl.data.sft_dataset import SFTDataset
from agentverl.errors import RequeueError
from agentverl.settings.paths import resolve_path
from agentverl.settings.sft import SFTSettings
from agentverl.single_controller.launcher import start_workers
from agentverl.single_controller.worker import WorkerClass
from agentverl.tracking.base import RunInfo, Tracking
from agentverl.trainer.curves import draw_curves
from agentverl.trainer.interruption import Interruption
from agentverl.trainer.memory import MemoryMeter
from agentverl.trainer.preparation import template_of
from agentverl.trainer.run_folder import RunFolder
from agentverl.trainer.state import TrainerState
from agentverl.trainer.stopwatch import Stopwatch
from agentverl.workers.sft import SFTWorker, sft_batch


def run_sft(settings: SFTSettings) -> Path:
    """Fine-tune a model, or go on with an unfinished run; returns the folder of the trained model.

    Raises:
        BadInputError: whatever keeps the run from starting.
        RequeueError: SIGTERM came; everything is saved.
    """
    trainer = SFTTrainer(settings)
    model = trainer.fit()
    Console().print(f"The model is in {model}: train it further with `agentverl train my.yaml model.path={model}`")
    return model


class SFTTrainer:
    """One run of supervised fine-tuning; `fit` does all of it."""

    def __init__(self, config: SFTSettings) -> None:
        self.settings = config
        trainer = config.trainer
        self.run = RunFolder.open(
            trainer.run_folder, config, resume_mode=trainer.resume_mode, resume_from=trainer.resume_from_path
        )
        self.state = TrainerState()

    def fit(self) -> Path:
        """Train to the end and write the model as a Hugging Face folder `huggingface` into the run's."""
        with MemoryMeter() as memory, Interruption() as interruption:
            try:
                self._begin()
                while self.state.step < self.total_steps:
                    if interruption.requested:
                        self._requeue()
                    self._step()
                return self._finish(memory)
            finally:
                self._end()

    def _begin(self) -> None:
        settings, trainer = self.settings, self.settings.trainer
        _, _, template = template_of(settings.model, settings.data.apply_chat_template_kwargs)
        self._train = self._dataset(settings.data.train_files, settings.data.train_max_samples, template)
        self._held_out: Sequence[Any] = []
        if settings.data.val_files:
            self._held_out = self._dataset(settings.data.val_files, settings.data.val_max_samples, template)
        self._loader = PromptLoader(
            [{"number": number} for number in range(len(self._train))],
            batch_size=settings.data.train_batch_size,
            shuffle=settings.data.shuffle,
            seed=settings.data.seed if settings.data.seed is not None else trainer.seed,
        )
        self.total_steps = trainer.total_training_steps or trainer.total_epochs * self._loader.steps_per_epoch
        self.workers = start_workers(trainer.launcher, WorkerClass(SFTWorker, (settings, self.total_steps)))
        self.workers.init_model()
        unlogged = self._resume()
        info = RunInfo(
            folder=self.run.path,
            project_name=trainer.project_name,
            experiment_name=trainer.experiment_name,
            config=settings.model_dump(mode="json"),
            total_steps=self.total_steps,
            first_step=self.state.step,
            debug=trainer.debug,
        )
        self.tracking = Tracking(trainer.logger, info)
        if unlogged:
            self.tracking.log(unlogged, step=self.state.step)

    def _dataset(self, files: Sequence[str], max_samples: int, template: Any) -> SFTDataset:
        rows = [row for rows in read_rows([resolve_path(file) for file in files]) for row in rows]
        data = self.settings.data
        return SFTDataset(
            rows if max_samples < 0 else rows[:max_samples],
            template,
            max_length=data.max_length,
            truncation=data.truncation,
            messages_key=data.messages_key,
            tools_key=data.tools_key,
        )

    def _requeue(self) -> None:
        step = self.state.step
        if step not in self.run.checkpoints.steps():
            self._save()
        raise RequeueError(f"ended by SIGTERM after step {step}, which is saved in {self.run.path}; start it again")

    def _resume(self) -> dict[str, float]:
        """Take up the last checkpoint; returns the metrics of its step where a kill came before they were logged."""
        step = self.run.resumed_step
        if step is not None:
            folder = self.run.checkpoints.of(step)
            self.state = TrainerState.load(folder)
            self.workers.load_checkpoint(folder / "actor")
            self._loader.load_state_dict(self.state.loader)
        missing = self.run.drop_metrics_after(self.state.step)
        return dict(self.state.metrics) if missing else {}

    def _step(self) -> None:
        watch, trainer = Stopwatch(), self.settings.trainer
        with watch.phase("step"):
            batch = sft_batch([self._train[row["number"]] for row in next(self._loader)])
            metrics: dict[str, float] = dict(self.workers.train_step(batch))
            self.state.step += 1
            if self._due(trainer.test_freq):
                metrics |= self._held_out_loss()
            metrics["training/epoch"] = self._loader.epoch
            self.state.metrics = dict(metrics)
            if self._due(trainer.save_freq):
                self._save()
        tokens = sum(len(batch.batch.ragged(name).values) for name in ("prompts", "responses"))
        metrics |= watch.metrics(total_tokens=tokens, response_tokens=0)
        self.tracking.log(metrics, step=self.state.step)

    def _held_out_loss(self) -> dict[str, float]:
        size = self.settings.data.train_batch_size
        total = tokens = 0.0
        for start in range(0, len(self._held_out), size):
            measured = self.workers.evaluate(sft_batch(self._held_out[start : start + size]))
            total += measured["val/loss"] * measured["val/tokens"]
            tokens += measured["val/tokens"]
        return {"val/loss": total / tokens} if tokens else {}

    def _due(self, frequency: int) -> bool:
        return self.state.step == self.total_steps or (frequency > 0 and self.state.step % frequency == 0)

    def _save(self) -> None:
        self.state.loader = self._loader.state_dict()

        def write(folder: Path) -> None:
            (folder / "actor").mkdir()
            self.workers.save_checkpoint(folder / "actor")
            self.state.save(folder)

        self.run.checkpoints.save(self.state.step, write)
        self.run.checkpoints.keep_newest(self.settings.trainer.max_ckpt_to_keep)

    def _finish(self, memory: MemoryMeter) -> Path:
        self.workers.export(self.run.path)
        self.tracking.close()
        draw_curves(self.run.path)
        memory.sample()
        self.run.write_summary(
            {
                "steps": self.state.step,
                "wall_seconds": round(time.time() - psutil.Process().create_time(), 3),
                "peak_memory_bytes": memory.peak_bytes,
            }
        )
        return self.run.path / "huggingface"

    def _end(self) -> None:
        for part in ("tracking", "workers", "run"):
            if hasattr(self, part):
                getattr(self, part).close()
