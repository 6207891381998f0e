"""`actor_rollout_ref.actor.*` and `.ref.*` (short: `actor.*`, `ref.*`): the policy's update and its reference."""

from typing import Literal

from pydantic import Field

from agentverl.settings.engine import CheckpointSettings, FSDPSettings
from agentverl.settings.known_names import AVERAGED_BY_SEQUENCE
from agentverl.settings.micro_batches import MicroBatchLimit, MicroBatchSettings
from agentverl.settings.optim import OptimSettings
from agentverl.settings.section import Section

LossAggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


class PolicyLossSettings(Section):
    """Which policy loss, and the keys of those that have their own."""

    loss_mode: str = "vanilla"
    """A registered loss, or `package.module:function`."""
    clip_cov_ratio: float = Field(0.0002, gt=0)
    clip_cov_lb: float = 1.0
    clip_cov_ub: float = 5.0
    kl_cov_ratio: float = Field(0.0002, gt=0)
    ppo_kl_coef: float = Field(0.1, ge=0)
    dro_beta: float | None = Field(None, gt=0)


class ActorSettings(MicroBatchSettings):
    """One update of the policy: batches, loss, optimiser."""

    strategy: str = "fsdp"
    """The training engine."""
    ppo_mini_batch_size: int = Field(256, gt=0)
    """Prompts an optimiser step; each counts with all its samples."""
    clip_ratio: float = Field(0.2, ge=0)
    clip_ratio_low: float | None = Field(None, ge=0)
    """Null means `clip_ratio`."""
    clip_ratio_high: float | None = Field(None, ge=0)
    """Null means `clip_ratio`."""
    clip_ratio_c: float = Field(3.0, gt=1)
    """Bound of the dual clip, for negative advantages."""
    tau_pos: float = Field(1.0, gt=0)
    tau_neg: float = Field(1.05, gt=0)
    policy_loss: PolicyLossSettings = PolicyLossSettings()
    loss_agg_mode: LossAggMode = "token-mean"
    loss_scale_factor: float | None = Field(None, gt=0)
    """Divisor of `seq-mean-token-sum-norm`; null means `data.max_response_length`."""
    entropy_coeff: float = 0.0
    calculate_entropy: bool = False
    """Report the entropy although `entropy_coeff` is 0."""
    use_kl_loss: bool = False
    kl_loss_coef: float = Field(0.001, ge=0)
    kl_loss_type: str = "low_var_kl"
    ppo_epochs: int = Field(1, gt=0)
    """Passes over each step's samples."""
    shuffle: bool = False
    """Shuffle the prompts before they are cut into mini-batches."""
    data_loader_seed: int | None = None
    """Seed of that shuffle; null means `trainer.seed`."""
    grad_clip: float = Field(1.0, gt=0)
    optim: OptimSettings = OptimSettings()
    fsdp_config: FSDPSettings = FSDPSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()

    @property
    def weight_mode(self) -> LossAggMode:
        """How much each token's loss weighs: `loss_agg_mode`, unless the policy loss has a mode of its own."""
        own = self.policy_loss.loss_mode in AVERAGED_BY_SEQUENCE
        return "seq-mean-token-mean" if own else self.loss_agg_mode


class LogProbSettings(Section):
    """Micro-batches of a pass that only computes log-probabilities; null means as the actor's update does."""

    log_prob_micro_batch_size_per_gpu: int | None = Field(None, gt=0)
    log_prob_use_dynamic_bsz: bool | None = None
    log_prob_max_token_len_per_gpu: int | None = Field(None, gt=0)

    def log_prob_limit(self, actor: ActorSettings) -> MicroBatchLimit:
        """The size of a micro-batch, with what is null taken from the actor."""
        if self.cuts_log_probs_by_tokens(actor):
            return MicroBatchLimit(self.log_prob_max_token_len_per_gpu or actor.ppo_max_token_len_per_gpu, None)
        return MicroBatchLimit(None, self.log_prob_micro_batch_size_per_gpu or actor.ppo_micro_batch_size_per_gpu)

    def cuts_log_probs_by_tokens(self, actor: ActorSettings) -> bool:
        """Whether micro-batches of this pass are cut by tokens."""
        if self.log_prob_use_dynamic_bsz is not None:
            return self.log_prob_use_dynamic_bsz
        return self.log_prob_micro_batch_size_per_gpu is None and actor.cuts_by_tokens


class RefSettings(LogProbSettings):
    """The reference policy: the model as it was at the start; there only where a KL term needs it."""

    fsdp_config: FSDPSettings = FSDPSettings()
