"""SFTWorker: supervised fine-tuning of one model."""

from collections.abc import Sequence
from pathlib import Path

import torch

from agentverl.data.model_folder import resolve_model_path
from agentverl.engines.base import BaseEngine
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.sft import SFTSettings
from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.single_controller.worker import Worker
from agentverl.workers.checkpoints import export, load, save
from agentverl.workers.engine_settings import (
    engine_settings,
    make_engine,
    micro_batch,
    optimizer_settings,
    resolve_device,
)
from agentverl.workers.losses import loss_weight, sft_loss

Example = tuple[Sequence[int], Sequence[int]]
"""Token ids of a conversation, and 1 on those that are learnt."""


def sft_batch(examples: Sequence[Example]) -> DataProto:
    """Conversations as rows of a batch: the first token is the prompt, as nothing predicts it."""
    ids = [torch.tensor(ids, dtype=torch.long) for ids, _ in examples]
    masks = [torch.tensor(mask, dtype=torch.long) for _, mask in examples]
    responses = Ragged.from_list([row[1:] for row in ids], torch.long)
    return DataProto(
        Columns(
            {
                "prompts": Ragged.from_list([row[:1] for row in ids], torch.long),
                "responses": responses,
                "response_mask": Ragged.from_list([row[1:] for row in masks], torch.long),
            }
        )
    )


class SFTWorker(Worker):
    """One model that learns what assistants wrote.

    Args:
        settings: the configuration of supervised fine-tuning.
        optimiser_steps: of the whole run, for schedules that decay.
    """

    def __init__(self, settings: SFTSettings, optimiser_steps: int = -1) -> None:
        self.settings = settings
        self._optimiser_steps = optimiser_steps
        self._engine: BaseEngine | None = None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        """Load the model.

        Raises:
            BadInputError: the folder, the engine or the architecture cannot work.
        """
        settings, limit = self.settings, micro_batch(self.settings.data.micro_batch_limit)
        folder = resolve_model_path(str(settings.model.path)).path
        self._engine = make_engine(
            "fsdp",
            engine_settings(
                settings.model,
                folder,
                settings.engine,
                resolve_device(settings.trainer.device),
                optimizer=optimizer_settings(settings.optim, settings.optim.clip_grad, self._optimiser_steps),
                enable_gradient_checkpointing=settings.model.enable_gradient_checkpointing,
                train_micro_batch=limit,
                infer_micro_batch=limit,
            ),
        )

    @property
    def engine(self) -> BaseEngine:
        assert self._engine is not None, "init_model comes first"
        return self._engine

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def train_step(self, data: DataProto) -> dict[str, float]:
        """One optimiser step on a batch from `sft_batch`; `train/loss` is the mean over its learnt tokens."""
        metrics = self.engine.train_batch(_weighted(data), sft_loss)
        return {f"train/{name}": value for name, value in metrics.items()} | {
            "train/lr": self.engine.lr_scheduler_step()
        }

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def evaluate(self, data: DataProto) -> dict[str, float]:
        """`val/loss`, the mean over the learnt tokens of a batch, and `val/tokens`, their number."""
        metrics = self.engine.forward_backward_batch(_weighted(data), sft_loss, forward_only=True)
        return {f"val/{name}": value for name, value in metrics.items()}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_checkpoint(self, path: Path) -> None:
        """Write what resuming needs into an existing folder."""
        save(self.engine, path, self.settings.checkpoint, self.settings.model)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_checkpoint(self, path: Path) -> None:
        """Go on from what `save_checkpoint` wrote."""
        load(self.engine, path, self.settings.checkpoint)

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def export(self, path: Path) -> None:
        """Write the folder `huggingface` into an existing one: model and tokenizer, as `model.path` takes them."""
        export(self.engine, path, self.settings.model)


def _weighted(data: DataProto) -> DataProto:
    weighted = data.select()
    weighted.batch["loss_weight"] = loss_weight(data, "token-mean")
    return weighted
