"""`algorithm.*`: from rewards to advantages."""

from typing import Literal

from pydantic import Field

from agentverl.settings.rollout_correction import RolloutCorrectionSettings
from agentverl.settings.section import Name, Names, Section


class KLControlSettings(Section):
    """The coefficient of the KL term in the reward."""

    type: Literal["fixed", "adaptive"] = "fixed"
    kl_coef: float = Field(0.001, ge=0)
    horizon: float = Field(10000, gt=0)
    """Samples over which `adaptive` corrects."""
    target_kl: float = Field(0.1, gt=0)
    """What `adaptive` aims at."""


class FilterGroupsSettings(Section):
    """DAPO's dynamic sampling: groups without a difference give way to fresh prompts (arXiv:2503.14476)."""

    enable: bool = False
    metric: Name = "reward"
    """What has to differ within a group: the trajectory's score (`reward`), or a component such as `acc`."""
    max_num_gen_batches: int = Field(0, ge=0)
    """Batches' worth of prompts a step may roll out before the run stops; 0 means no limit."""
    tolerance: float = Field(1e-6, ge=0)
    """Largest less smallest value at which a group counts as equal."""


class PFPPOSettings(Section):
    """Policy filtration (arXiv:2409.06957): how likely a trajectory is drawn, by its score."""

    reweight_method: Literal["pow", "max_min", "max_random"] = "pow"
    """`pow`: |score|^weight_pow; `max_min`: the best and the worst; `max_random`: 0.4 for the best, else 0.1."""
    weight_pow: float = Field(2.0, ge=0)


class AlgorithmSettings(Section):
    """The advantage estimator, which samples it sees, and the KL term in the reward."""

    adv_estimator: str = "grpo"
    """A registered estimator, or `package.module:function`."""
    gamma: float = Field(1.0, ge=0, le=1)
    lam: float = Field(1.0, ge=0, le=1)
    norm_adv_by_std_in_grpo: bool = True
    """False is Dr. GRPO."""
    step_advantage_weight: float = Field(1.0, ge=0)
    """What gigpo's second part counts, that of turns in the same state."""
    use_kl_in_reward: bool = False
    kl_penalty: str = "kl"
    kl_ctrl: KLControlSettings = KLControlSettings()
    gdpo_reward_keys: Names = []
    """Components of the reward that gdpo normalises one by one."""
    gdpo_reward_weights: list[float] = []
    """One weight a key; empty means 1 for each."""
    filter_groups: FilterGroupsSettings = FilterGroupsSettings()
    use_pf_ppo: bool = False
    """Draw the trajectories to learn from by their scores, with replacement."""
    pf_ppo: PFPPOSettings = PFPPOSettings()
    rollout_correction: RolloutCorrectionSettings = RolloutCorrectionSettings()
    void_turns: Literal["train", "mask_turn", "mask_trajectory"] = "train"
    """What becomes of turns without a valid call or an answer: trained, or they or their trajectories carry no loss."""
