"""`algorithm.*`: from rewards to advantages."""

from typing import Literal

from pydantic import Field

from agentverl.settings.section import Section


class KLControlSettings(Section):
    """The coefficient of the KL term in the reward."""

    type: Literal["fixed", "adaptive"] = "fixed"
    kl_coef: float = Field(0.001, ge=0)
    horizon: float = Field(10000, gt=0)
    """Samples over which `adaptive` corrects."""
    target_kl: float = Field(0.1, gt=0)
    """What `adaptive` aims at."""


class AlgorithmSettings(Section):
    """The advantage estimator and the KL term in the reward."""

    adv_estimator: str = "grpo"
    """A registered estimator, or `package.module:function`."""
    gamma: float = Field(1.0, ge=0, le=1)
    lam: float = Field(1.0, ge=0, le=1)
    norm_adv_by_std_in_grpo: bool = True
    """False is Dr. GRPO."""
    use_kl_in_reward: bool = False
    kl_penalty: str = "kl"
    kl_ctrl: KLControlSettings = KLControlSettings()
