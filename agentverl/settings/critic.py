"""`critic.*`: the model that estimates values, for estimators that need one."""

from typing import Any, Literal

from pydantic import Field

from agentverl.settings.actor import ActorSettings, LossAggMode
from agentverl.settings.engine import FSDPSettings
from agentverl.settings.micro_batches import MicroBatchLimit, MicroBatchSettings
from agentverl.settings.model import ModelSettings
from agentverl.settings.optim import OptimSettings
from agentverl.settings.section import Section


class CriticModelSettings(Section):
    """The critic's model folder, whose output embedding gives way to a value head; null means the policy's."""

    path: str | None = None
    trust_remote_code: bool | None = None
    override_config: dict[str, Any] | None = None
    enable_gradient_checkpointing: bool | None = None

    def beside(self, policy: ModelSettings) -> ModelSettings:
        """The whole section, with what is null taken from the policy's."""
        own = {name: self[name] for name in self.keys() if self[name] is not None}
        return policy.model_copy(update=own)


class CriticOptimSettings(OptimSettings):
    """AdamW of the critic."""

    lr: float = Field(1e-5, gt=0)


CriticContent = Literal["model", "optimizer", "extra"]


class CriticCheckpointSettings(Section):
    """What a checkpoint's folder `critic` holds."""

    save_contents: list[CriticContent] = ["model", "optimizer", "extra"]
    load_contents: list[CriticContent] | None = None
    """What resuming reads; null means `save_contents`."""


class CriticSettings(MicroBatchSettings):
    """One update of the critic: batches, loss, optimiser."""

    enable: bool | None = None
    """Null trains a critic where the advantage estimator needs values."""
    strategy: str = "fsdp"
    """The training engine."""
    model: CriticModelSettings = CriticModelSettings()
    ppo_mini_batch_size: int | None = Field(None, gt=0)
    """Prompts an optimiser step; null means the actor's."""
    ppo_max_token_len_per_gpu: int = Field(32768, gt=0)
    """Tokens a forward pass, where micro-batches are cut by tokens."""
    forward_micro_batch_size_per_gpu: int | None = Field(None, gt=0)
    """Sequences a pass that only computes values; null means as many as in the update."""
    forward_max_token_len_per_gpu: int | None = Field(None, gt=0)
    """Tokens a pass that only computes values; null means as many as in the update."""
    ppo_epochs: int | None = Field(None, gt=0)
    """Passes over each step's samples; null means the actor's."""
    shuffle: bool | None = None
    """Shuffle the prompts before they are cut into mini-batches; null means as the actor does."""
    loss_agg_mode: LossAggMode | None = None
    """Null means the actor's."""
    cliprange_value: float = Field(0.5, gt=0)
    """How far a value may move from what it was when the step began."""
    grad_clip: float = Field(1.0, gt=0)
    optim: CriticOptimSettings = CriticOptimSettings()
    fsdp: FSDPSettings = FSDPSettings()
    checkpoint: CriticCheckpointSettings = CriticCheckpointSettings()

    @property
    def values_limit(self) -> MicroBatchLimit:
        """The size of a micro-batch when only values are computed."""
        if self.cuts_by_tokens:
            return MicroBatchLimit(self.forward_max_token_len_per_gpu or self.ppo_max_token_len_per_gpu, None)
        return MicroBatchLimit(None, self.forward_micro_batch_size_per_gpu or self.ppo_micro_batch_size_per_gpu)

    def completed(self, actor: ActorSettings) -> "CompleteCriticSettings":
        """The section with what is null taken from the actor's."""
        shared = ("ppo_mini_batch_size", "ppo_epochs", "shuffle", "loss_agg_mode")
        inherited = {name: actor[name] for name in shared if self[name] is None}
        return CompleteCriticSettings(**(dict(self) | inherited))


class CompleteCriticSettings(CriticSettings):
    """The same with nothing left to the actor's section."""

    ppo_mini_batch_size: int
    ppo_epochs: int
    shuffle: bool
    loss_agg_mode: LossAggMode
