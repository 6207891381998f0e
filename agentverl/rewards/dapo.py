"""DAPO's reward manager: a penalty that grows over the last tokens before the limit of a response."""

from typing import Any, ClassVar

from pydantic import Field

from agentverl import plugins
from agentverl.deadlines import Deadline
from agentverl.errors import SettingsError
from agentverl.rewards.base import RewardContext, RewardInput, RewardResult
from agentverl.rewards.length import overlong_penalty
from agentverl.rewards.naive import NaiveRewardManager
from agentverl.settings.reward import RewardSettings
from agentverl.settings.section import Section


class OverlongBufferSettings(Section):
    """verl's keys of `overlong_buffer_cfg`."""

    enable: bool = False
    len: int = Field(0, ge=0)
    """Tokens before the limit over which the penalty grows."""
    penalty_factor: float = 0.0
    """The penalty at the limit."""
    log: bool = False
    """Whether the penalty is reported, as `overlong_reward` and `overlong`."""


class DapoSettings(Section):
    """The manager's own keys of `reward.reward_kwargs`."""

    max_resp_len: int | None = Field(None, gt=0)
    """The limit of a response; `data.max_response_length` without it."""
    overlong_buffer_cfg: OverlongBufferSettings = OverlongBufferSettings()


class DapoRewardManager(NaiveRewardManager):
    """Scores as `naive`, and adds `overlong_penalty` of the response's length (DAPO, Yu et al. 2025, section 3.4).

    The length is that of the trajectory's longest sequence, observations included, since all of it fills the limit.

    Raises:
        SettingsError: the buffer is longer than the response, or on without a length.
    """

    own_arguments: ClassVar[frozenset[str]] = frozenset(DapoSettings.model_fields)

    def __init__(self, settings: RewardSettings | None = None, context: RewardContext | None = None) -> None:
        super().__init__(settings, context)
        given = {key: value for key, value in self.settings.reward_kwargs.items() if key in self.own_arguments}
        chosen = plugins.checked_settings(DapoSettings, given, "reward.reward_kwargs of the manager dapo")
        self._buffer = chosen.overlong_buffer_cfg
        self._limit: Any = chosen.max_resp_len or self.context.max_response_length
        if self._buffer.enable and not 0 < self._buffer.len <= (self._limit or 0):
            raise SettingsError(
                f"reward.reward_kwargs.overlong_buffer_cfg.len={self._buffer.len}: expected 1 to max_resp_len="
                f"{self._limit}, the tokens before the limit over which the penalty grows"
            )

    async def score(self, judged: RewardInput, deadline: Deadline | None = None) -> RewardResult:
        result = await super().score(judged, deadline)
        if not self._buffer.enable:
            return result
        length = max((len(output.response_ids) for output in judged.trajectory), default=0)
        penalty = overlong_penalty(length, self._limit, self._buffer.len, self._buffer.penalty_factor)
        result.components.setdefault("acc", result.score)
        result.score += penalty
        if self._buffer.log:
            result.components |= {"overlong_reward": penalty, "overlong": float(penalty < 0)}
        return result
