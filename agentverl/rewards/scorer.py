"""A reward function in verl's form, found by name, with its signature checked before anything starts."""

import inspect
import math
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from agentverl import plugins
from agentverl.errors import PluginError, SettingsError
from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.process_pool import minimum_score_of

LARGEST_SCORE = 1e15
"""Advantages square scores in float32, which ends at 3e38."""
_REQUIRED = ("data_source", "solution_str", "ground_truth")
_SIGNATURE = "compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs)"


class Scorer:
    """One `compute_score`; `target` names it for a process, `settings` are the keywords of the configuration."""

    def __init__(self, target: str, settings: Mapping[str, Any] | None = None) -> None:
        self.target = target
        self.function: Callable[..., Any] = plugins.find("rewards", target)
        self.settings = dict(settings or {})
        self.accepted = _accepted(self.function, target)
        unknown = [key for key in self.settings if self.accepted is not None and key not in self.accepted]
        if unknown:
            raise SettingsError(f"reward function {target} takes no argument {unknown[0]!r}; it is {_SIGNATURE}")

    @property
    def minimum_score(self) -> float | None:
        """The score of an answer that exhausts it, None where it does not run in a process."""
        return minimum_score_of(self.function)

    @property
    def is_async(self) -> bool:
        """Whether calling it gives an awaitable."""
        called = type(self.function).__call__  # of an instance that is callable
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(called)

    def arguments(self, judged: RewardInput) -> dict[str, Any]:
        """The keywords to call it with: those of verl, and of ours what the signature asks for."""
        offered = {
            "data_source": judged.data_source,
            "solution_str": judged.solution_str,
            "ground_truth": judged.ground_truth,
            "extra_info": {"num_turns": _num_turns(judged), **judged.extra_info},
            "messages": judged.messages,
            "final_message": judged.final_message,
            "full_text": judged.full_text,
            "trajectory": judged.trajectory,
            **self.settings,
        }
        return {key: value for key, value in offered.items() if self.accepted is None or key in self.accepted}


def custom_target(path: str, name: str = "compute_score") -> str:
    """The plugin name of `reward.custom_reward_function.{path, name}`: a file, a module, or `module:function`.

    Raises:
        SettingsError: the file does not exist.
    """
    if path.endswith(".py"):
        file = Path(path).expanduser()
        if not file.is_file():
            raise SettingsError(f"reward.custom_reward_function.path: {path} is not a file")
        return f"{file.resolve()}:{name}"
    if ":" in path or path in dict(plugins.installed("rewards")):
        return path
    return f"{path}:{name}"


def as_result(value: Any, target: str) -> RewardResult:
    """What a reward function returned, as a result.

    Raises:
        ValueError: neither a finite number nor a mapping with a finite number under `score`.
    """
    components: dict[str, Any] = {}
    if isinstance(value, Mapping):
        if "score" not in value:
            raise ValueError(f"{target} returned a dict without `score` (its keys: {', '.join(map(str, value))})")
        components = {str(key): part for key, part in value.items() if key != "score"}
        value = value["score"]
    if hasattr(value, "item") and not isinstance(value, Real):  # a numpy scalar or a one-element tensor
        value = value.item()
    if not isinstance(value, Real):
        raise ValueError(f"{target} returned {type(value).__name__} {str(value)[:80]!r}; expected a number")
    score = float(value)
    if not math.isfinite(score):
        raise ValueError(f"{target} returned {score}; a score must be finite")
    if abs(score) > LARGEST_SCORE:
        raise ValueError(f"{target} returned {score:g}; a score must be at most {LARGEST_SCORE:g}")
    return RewardResult(score=score, components=components)


def _accepted(function: Any, target: str) -> set[str] | None:
    """The keywords a function takes; None for any."""
    if not callable(function):
        raise PluginError(f"reward function {target} is {type(function).__name__}; expected {_SIGNATURE}")
    parameters = inspect.signature(function).parameters.values()
    by_keyword = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    any_keyword = any(one.kind is one.VAR_KEYWORD for one in parameters)
    missing = [name for name in _REQUIRED if name not in by_keyword]
    if missing and not any_keyword:
        raise PluginError(f"reward function {target} lacks the parameter {missing[0]!r}; expected {_SIGNATURE}")
    return None if any_keyword else by_keyword


def _num_turns(judged: RewardInput) -> int:
    return max((output.num_turns for output in judged.trajectory), default=0)
