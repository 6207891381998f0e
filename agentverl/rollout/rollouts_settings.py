"""What the rollouts of a run are told: how many at a time, how they are sampled, what failures mean."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentverl.rollout.groups import GroupPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsSettings:
    """How many trajectories run at a time, how they are sampled, and what failures mean.

    With `deterministic`, the servers of a batch are leased before any of its trajectories starts, so that servers which
    work in rounds do the same whatever the timing.
    """

    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    validation_sampling_params: Mapping[str, Any] = field(default_factory=dict)
    max_concurrent_trajectories: int = 256
    group_policy: GroupPolicy = field(default_factory=GroupPolicy)
    max_excluded_fraction: float = 0.1
    close_timeout_seconds: float = 30.0
    deterministic: bool = False
