"""`algorithm.rollout_correction.*`: what is done where the policy that sampled is not quite the one that trains."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, model_validator

from agentverl.settings.section import Section

Preset = Literal[
    "disabled",
    "decoupled_token_is",
    "decoupled_seq_is",
    "decoupled_token_icepop",
    "decoupled_seq_is_rs",
    "decoupled_geo_rs",
    "decoupled_geo_rs_seq_tis",
    "decoupled_geo_rs_token_tis",
    "decoupled_k3_rs",
    "decoupled_k3_rs_seq_tis",
    "decoupled_k3_rs_token_tis",
    "bypass_ppo_clip",
    "bypass_ppo_clip_geo_rs",
    "bypass_ppo_clip_k3_rs",
    "bypass_pg_is",
    "bypass_pg_token_icepop",
    "bypass_pg_geo_rs",
    "bypass_pg_geo_rs_seq_tis",
    "bypass_pg_geo_rs_token_tis",
]

_TOKEN_TIS = {"rollout_is": "token", "rollout_is_threshold": "2.0"}
_SEQUENCE_TIS = {"rollout_is": "sequence", "rollout_is_threshold": "2.0"}
_TOKEN_ICEPOP = {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}
_SEQUENCE_RS = {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"}
_GEOMETRIC_RS = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
_K3_RS = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": "0.01"}
_CLIP = {"bypass_mode": True, "loss_type": "ppo_clip"}
_REINFORCE = {"bypass_mode": True, "loss_type": "reinforce"}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "disabled": {},
    "decoupled_token_is": _TOKEN_TIS,
    "decoupled_seq_is": _SEQUENCE_TIS,
    "decoupled_token_icepop": _TOKEN_ICEPOP,
    "decoupled_seq_is_rs": _SEQUENCE_TIS | _SEQUENCE_RS,
    "decoupled_geo_rs": _GEOMETRIC_RS,
    "decoupled_geo_rs_seq_tis": _GEOMETRIC_RS | _SEQUENCE_TIS,
    "decoupled_geo_rs_token_tis": _GEOMETRIC_RS | _TOKEN_TIS,
    "decoupled_k3_rs": _K3_RS,
    "decoupled_k3_rs_seq_tis": _K3_RS | _SEQUENCE_TIS,
    "decoupled_k3_rs_token_tis": _K3_RS | _TOKEN_TIS,
    "bypass_ppo_clip": _CLIP,
    "bypass_ppo_clip_geo_rs": _CLIP | _GEOMETRIC_RS,
    "bypass_ppo_clip_k3_rs": _CLIP | _K3_RS,
    "bypass_pg_is": _REINFORCE | _SEQUENCE_TIS,
    "bypass_pg_token_icepop": _REINFORCE | _TOKEN_ICEPOP,
    "bypass_pg_geo_rs": _REINFORCE | _GEOMETRIC_RS,
    "bypass_pg_geo_rs_seq_tis": _REINFORCE | _GEOMETRIC_RS | _SEQUENCE_TIS,
    "bypass_pg_geo_rs_token_tis": _REINFORCE | _GEOMETRIC_RS | _TOKEN_TIS,
}
"""What each preset sets; it bears the name of verl's class method with the same values."""


def _as_text(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return repr(float(value))


# As a number, 0.5_2 would be 0.52: digits may be grouped by underscores.
Threshold = Annotated[str, BeforeValidator(_as_text)]
"""A number, or `lower_upper`."""


class RolloutCorrectionSettings(Section):
    """Importance weights and rejection, and whether the rollout policy stands for the old one."""

    preset: Preset | None = None
    """Values for the other keys, by verl's name; a key that is set beside it wins."""
    rollout_is: Literal["token", "sequence"] | None = None
    """Weights pi_old / pi_rollout, of each token or of its sequence."""
    rollout_is_threshold: Threshold = "2.0"
    """A number cuts larger weights to it; `lower_upper` (in a YAML in quotes) makes those outside 0."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean."""
    rollout_rs: str | None = None
    """What is rejected, with commas between: `token_k1`, `seq_sum_k1`, `seq_mean_k3`, `seq_max_k2`, ..."""
    rollout_rs_threshold: Threshold | None = None
    """One for all of `rollout_rs`, or one for each with commas between: `lower_upper` for k1, a number for others."""
    bypass_mode: bool = False
    """The rollout policy stands for the old one, whose log-probabilities are then not computed."""
    loss_type: Literal["ppo_clip", "reinforce"] = "ppo_clip"
    """The loss of bypass mode."""

    @model_validator(mode="before")
    @classmethod
    def _filled_in(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {**PRESETS.get(str(given.get("preset")), {}), **given}

    @property
    def corrects(self) -> bool:
        """Whether weights or a mask are made where the old policy has log-probabilities of its own."""
        return not self.bypass_mode and (self.rollout_is is not None or self.rollout_rs is not None)
