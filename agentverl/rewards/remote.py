"""A reward manager for functions that compute much: each synchronous call in one of `reward.num_workers` processes."""

from typing import ClassVar

from agentverl.rewards.naive import NaiveRewardManager


class RemoteRewardManager(NaiveRewardManager):
    """Scores as `naive`, but also functions that are not marked `@killable` run in processes, which the deadline kills.

    Functions must be importable by their name, and what they get and return must survive pickling.
    """

    in_processes: ClassVar[bool] = True
