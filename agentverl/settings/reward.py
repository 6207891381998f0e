"""`reward.*`: how a trajectory is judged."""

from typing import Any, Literal

from pydantic import Field, model_validator

from agentverl.settings.reserved import RESERVED_COMPONENTS
from agentverl.settings.section import Name, Section


class CustomRewardFunctionSettings(Section):
    """A reward function of the user's own."""

    path: str | None = None
    """A Python file, or an import path."""
    name: str = "compute_score"


class RewardModuleSettings(Section):
    """Where a reward manager of the user's own stands."""

    path: str | None = None
    name: str = "custom_reward_manager"


class RewardManagerSettings(Section):
    """What calls the reward function."""

    source: Literal["register", "importlib"] = "register"
    name: str = "naive"
    module: RewardModuleSettings = RewardModuleSettings()


class ComponentSettings(Section):
    """One entry of `reward.components`."""

    name: Name
    """What it is logged as."""
    kind: Name = "rule"
    """`rule`, `environment`, `tool`, `turn`, `judge`, `reward_model`, or package.module:Class."""
    weight: float = 1.0
    gate: float | None = None
    """Other components count only where this one scores at least so much."""
    settings: dict[str, Any] = {}
    """The kind's own keys."""

    @model_validator(mode="after")
    def _name_is_free(self) -> "ComponentSettings":
        if self.name in RESERVED_COMPONENTS:
            raise ValueError(f"another name: {self.name} is reserved (as are {', '.join(sorted(RESERVED_COMPONENTS))})")
        if "/" in self.name:
            raise ValueError("a name without /, which divides it from what the component reports")
        return self


class RewardSettings(Section):
    """The reward function, what calls it, and its limits."""

    num_workers: int = Field(8, gt=0)
    """Processes for scorers that need one of their own, and threads for asynchronous ones; started when first used."""
    custom_reward_function: CustomRewardFunctionSettings = CustomRewardFunctionSettings()
    components: list[ComponentSettings] = []
    """Several rewards in place of one function, summed by weight."""
    reward_manager: RewardManagerSettings = RewardManagerSettings()
    reward_kwargs: dict[str, Any] = {}
    """Extra arguments of the reward function; of the manager `dapo`: `max_resp_len` and `overlong_buffer_cfg`."""
    timeout_seconds: float = Field(60.0, gt=0)
    """Of one call of a reward function; waiting for a free process or a rate limit does not count."""
    memory_bytes: int = Field(2 << 30, gt=0)
    """Of one process for scorers that need one of their own."""
    max_concurrent: int | None = Field(None, gt=0)
    """Of the manager `rate_limited`: trajectories that are scored at a time."""
    max_rpm: float | None = Field(None, gt=0)
    """Of the manager `rate_limited`: trajectories a minute."""
    max_tpm: float | None = Field(None, gt=0)
    """Of the manager `rate_limited`: tokens a minute."""
    estimated_tokens_per_request: int = Field(2000, gt=0)
    """Of the manager `rate_limited`: tokens that one trajectory counts in `max_tpm`."""
    score_from: Literal["auto", "environment", "function"] = "auto"
    """Who scores what the agent loop did not: `auto` is the user's own reward, else the environment where it scores,
    else the function of the row's `data_source`."""

    @property
    def is_own(self) -> bool:
        """Whether the user named a reward, rather than leaving it to environment or data source."""
        return self.custom_reward_function.path is not None or bool(self.components)

    def manager_is(self, name: str) -> bool:
        """Whether the manager is this one, or one of the user's own, of which nothing is known."""
        return (
            self.reward_manager.source == "importlib"
            or ":" in self.reward_manager.name
            or (self.reward_manager.name == name)
        )

    @model_validator(mode="after")
    def _agrees(self) -> "RewardSettings":
        names = [component.name for component in self.components]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"components with names of their own: {twice[0]} stands twice")
        limits = (self.max_concurrent, self.max_rpm, self.max_tpm)
        if self.reward_manager.name == "rate_limited" and limits == (None, None, None):
            raise ValueError("a limit for the manager rate_limited: max_rpm, max_tpm or max_concurrent")
        if self.components and self.reward_kwargs and not self.manager_is("dapo"):
            raise ValueError("no reward_kwargs beside components, each of which has settings of its own")
        if self.components and self.custom_reward_function.path is not None:
            raise ValueError(
                "either components (~reward.components drops them) or custom_reward_function.path; a function "
                f"is also a component: {{name: own, settings: {{function: {self.custom_reward_function.path}}}}}"
            )
        return self
