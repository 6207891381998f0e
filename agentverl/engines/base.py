"""BaseEngine: what every training engine offers, whatever shards the model."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from agentverl.engines.metrics import Metric
from agentverl.protocol.data_proto import DataProto

Content = Literal["model", "optimizer", "extra", "hf_model"]
CHECKPOINT_CONTENTS: tuple[Content, ...] = ("model", "optimizer", "extra")


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """What a loss is made of: (B, T) over the response tokens of a micro-batch, zero where the mask is 0."""

    log_probs: torch.Tensor
    """float32, log_softmax(logits / temperature) at the response tokens; zeros of a model with a value head."""
    entropy: torch.Tensor | None = None
    """float32, of the same distributions, in nats; None where nobody asked for it."""
    values: torch.Tensor | None = None
    """float32, before each response token is known; only of a model with a value head."""


class LossFunction(Protocol):
    """The loss of a micro-batch, with what is logged.

    The losses of the micro-batches are summed, so every token must come with its weight in the whole batch. B rows of
    `micro_batch` are those of `output`; a row may be empty.
    """

    def __call__(
        self, output: ModelOutput, micro_batch: DataProto, /
    ) -> tuple[torch.Tensor, Mapping[str, float | Metric]]: ...


class BaseEngine(ABC):
    """One model that is trained or only evaluated. Subclass it to train with another library.

    Batches hold the ragged columns `prompts`, `responses`, `response_mask` and `temperature` (the last two may be
    absent: all ones). Nothing is loaded before `initialize`.
    """

    @abstractmethod
    def initialize(self) -> None:
        """Load the model and make its optimiser.

        Raises:
            ModelFolderError: the folder cannot be loaded.
            BadInputError: the architecture cannot be trained by this engine.
        """

    @abstractmethod
    def train_mode(self) -> AbstractContextManager[None]:
        """Within it, forward passes are those of training."""

    @abstractmethod
    def eval_mode(self) -> AbstractContextManager[None]:
        """Within it, nothing is kept for a backward pass."""

    @abstractmethod
    def train_batch(
        self, data: DataProto, loss_function: LossFunction, *, calculate_entropy: bool = False
    ) -> dict[str, float]:
        """One optimiser step on the whole batch, in micro-batches.

        Returns:
            the loss function's metrics, and `grad_norm` (before clipping) and `skipped_steps` (1 where the gradient was
            not finite, so that the weights stayed as they were).
        """

    @abstractmethod
    def infer_batch(
        self, data: DataProto, *, calculate_entropy: bool = False, calculate_sum_pi_squared: bool = False
    ) -> DataProto:
        """Ragged `log_probs` (and `entropys`, `sum_pi_squared`) over the response tokens; of a value head `values`.

        All float32, and 0 where the mask is 0.
        """

    @abstractmethod
    def forward_backward_batch(
        self,
        data: DataProto,
        loss_function: LossFunction,
        *,
        forward_only: bool = False,
        calculate_entropy: bool = False,
    ) -> dict[str, float]:
        """Add the gradient of the batch's loss to the parameters' (not if `forward_only`); returns the metrics."""

    @abstractmethod
    def optimizer_zero_grad(self) -> None:
        """Forget the gradients."""

    @abstractmethod
    def optimizer_step(self) -> float:
        """Clip the gradients and update the weights, unless the gradient is not finite.

        Returns:
            the norm of the gradient before it was clipped, which may be nan or inf.
        """

    @abstractmethod
    def lr_scheduler_step(self) -> float:
        """Advance the schedule; returns the learning rate of the step that was just made."""

    @abstractmethod
    def get_per_tensor_param(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter once, under its Hugging Face name, as the forward pass uses it."""

    @abstractmethod
    def save_checkpoint(
        self, path: Path, contents: Sequence[Content] = CHECKPOINT_CONTENTS, *, asynchronous: bool = False
    ) -> None:
        """Write what resuming needs into an existing folder; `hf_model` adds a Hugging Face folder `huggingface`.

        An asynchronous save returns once its state is copied aside; it is over when `wait_for_checkpoint` returns.
        """

    @property
    @abstractmethod
    def is_saving(self) -> bool:
        """Whether an asynchronous save is still being written."""

    @abstractmethod
    def wait_for_checkpoint(self) -> None:
        """Return once the last asynchronous save is on disk; raises what kept it from that."""

    @abstractmethod
    def load_checkpoint(self, path: Path, contents: Sequence[Content] = CHECKPOINT_CONTENTS) -> None:
        """Take up what `save_checkpoint` wrote; the next step is bit-equal to that of an undisturbed run.

        Raises:
            RunFolderError: a file is missing, or belongs to another model.
        """

    @abstractmethod
    def to(self, device: str, *, model: bool = True, optimizer: bool = True) -> None:
        """Move the weights and the optimiser's state to `cpu` or to the engine's own device (`device`)."""

    @abstractmethod
    def disable_adapter(self) -> AbstractContextManager[None]:
        """Within it, the model is the base model without its adapter.

        Raises:
            BadInputError: the model has no adapter.
        """

    def get_data_parallel_rank(self) -> int:
        """Which part of the batch this engine sees."""
        return 0

    def get_data_parallel_size(self) -> int:
        """Into how many parts a batch is cut."""
        return 1

    def get_data_parallel_group(self) -> Any:
        """The process group of those that see the other parts; None if there are none."""
        return None
