"""`agentverl sft`: supervised fine-tuning on conversations; what assistants wrote is learnt."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
from rich.console import Console

from agentverl.data.chat_template import ChatTemplate
from agentverl.data.dataloader import PromptLoader
from agentverl.data.files import read_rows
from agentverl.data.sft_dataset import Example, SFTDataset
from agentverl.errors import DatasetError, RequeueError
from agentverl.settings.paths import resolve_path
from agentverl.settings.sft import SFTSettings
from agentverl.single_controller.launcher import start_workers
from agentverl.single_controller.worker import WorkerClass
from agentverl.tracking.base import RunInfo, Tracking, find_logger
from agentverl.trainer.curves import draw_curves
from agentverl.trainer.interruption import Interruption
from agentverl.trainer.memory import MemoryMeter
from agentverl.trainer.preparation import check_device, template_of
from agentverl.trainer.problems import Problems
from agentverl.trainer.run_folder import RunFolder
from agentverl.trainer.seeding import seed_process
from agentverl.trainer.state import TrainerState
from agentverl.trainer.stopwatch import Stopwatch
from agentverl.trainer.summary import say_resumed
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
        settings, trainer, problems = self.settings, self.settings.trainer, Problems()
        run = problems.attempt(
            lambda: RunFolder.open(
                trainer.run_folder, settings, resume_mode=trainer.resume_mode, resume_from=trainer.resume_from_path
            )
        )
        try:
            self._read(problems)
        except BaseException:
            if run is not None:
                run.withdraw()
            raise
        assert run is not None
        self.run = run
        seed_process(trainer.seed, "begin")
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

    def _read(self, problems: Problems) -> None:
        """Find template and conversations; what is wrong, also with the run's folder, is reported together."""
        data, attempt = self.settings.data, problems.attempt
        for name in self.settings.trainer.logger:
            attempt(partial(find_logger, name))
        trainer = self.settings.trainer
        attempt(partial(check_device, trainer.device, deterministic=trainer.deterministic))
        made = attempt(lambda: template_of(self.settings.model, data.apply_chat_template_kwargs))
        if made is not None:
            train = attempt(partial(self._dataset, "data.train_files", data.train_max_samples, made[2]))
            loader = None if train is None else attempt(partial(self._prompt_loader, len(train)))
            held_out = attempt(partial(self._dataset, "data.val_files", data.val_max_samples, made[2]))
        problems.refuse()
        assert train is not None
        assert held_out is not None
        assert loader is not None
        self._train, self._held_out, self._loader = train, held_out, loader

    def _prompt_loader(self, count: int) -> PromptLoader:
        data = self.settings.data
        return PromptLoader(
            [{"number": number} for number in range(count)],
            batch_size=data.train_batch_size,
            shuffle=data.shuffle,
            seed=data.seed if data.seed is not None else self.settings.trainer.seed,
        )

    def _dataset(self, key: str, max_samples: int, template: ChatTemplate) -> Sequence[Example]:
        data = self.settings.data
        files = data.train_files if key == "data.train_files" else data.val_files
        if not files:
            return []
        try:
            rows = [row for rows in read_rows([resolve_path(file) for file in files]) for row in rows]
            return SFTDataset(
                rows if max_samples < 0 else rows[:max_samples],
                template,
                max_length=data.max_length,
                truncation=data.truncation,
                messages_key=data.messages_key,
                tools_key=data.tools_key,
            )
        except DatasetError as error:
            raise DatasetError(f"{key}: {error}") from error

    def _requeue(self) -> None:
        step = self.state.step
        if step not in self.run.checkpoints.steps():
            self._save()
        raise RequeueError(f"ended by SIGTERM after step {step}, which is saved in {self.run.path}; start it again")

    def _resume(self) -> dict[str, float]:
        """Take up the last checkpoint; returns the metrics of its step where a kill came before they were logged."""
        step = self.run.resumed_step
        if step is not None:
            say_resumed(self.run.path, step, Console())
            folder = self.run.checkpoints.of(step)
            self.state = TrainerState.load(folder)
            self.workers.load_checkpoint(folder / "actor")
            self._loader.load_state_dict(self.state.loader)
        missing = self.run.roll_back(self.state.step)
        return dict(self.state.metrics) if missing else {}

    def _step(self) -> None:
        watch, trainer = Stopwatch(), self.settings.trainer
        seed_process(trainer.seed, "step", self.state.step + 1)
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
