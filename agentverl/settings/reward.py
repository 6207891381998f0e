"""`reward.*`: how a trajectory is judged."""

from typing import Any, Literal

from pydantic import Field

from agentverl.settings.section import Section


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


class RewardSettings(Section):
    """The reward function, what calls it, and its limits."""

    num_workers: int = Field(8, gt=0)
    """Processes for scorers that need one of their own; started when first used."""
    custom_reward_function: CustomRewardFunctionSettings = CustomRewardFunctionSettings()
    reward_manager: RewardManagerSettings = RewardManagerSettings()
    reward_kwargs: dict[str, Any] = {}
    """Extra arguments of the reward function."""
    timeout_seconds: float = Field(60.0, gt=0)
    """Of scoring one trajectory."""
    score_from: Literal["auto", "environment", "function"] = "auto"
    """Who scores what the agent loop did not: `auto` is the user's own reward function, else the environment where it
    scores, else the function of the row's `data_source`."""
