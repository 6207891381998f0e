"""A reward function in verl's form, found by name, with its signature checked before anything starts."""

import difflib
import importlib.util
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from agentverl import plugins
from agentverl.errors import PluginError, SettingsError
from agentverl.rewards.at_once import most_at_once
from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.process_pool import minimum_score_of
from agentverl.rewards.settings_check import check_settings
from agentverl.settings.reserved import RESERVED_COMPONENTS

LARGEST_SCORE = 1e15
"""Advantages square scores in float32, which ends at 3e38."""


class Scorer:
    """One `compute_score`; `target` names it for a process, `settings` are the keywords of the configuration."""

    required: ClassVar[tuple[str, ...]] = ("data_source", "solution_str", "ground_truth")
    further: ClassVar[tuple[str, ...]] = ("extra_info", "messages", "final_message", "full_text", "trajectory")
    signature: ClassVar[str] = "compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs)"

    def __init__(self, target: str, settings: Mapping[str, Any] | None = None) -> None:
        self.target = target
        self.function: Callable[..., Any] = plugins.find("rewards", target)
        self.settings = dict(settings or {})
        self.accepted = self._accepted()
        own = _own_arguments(self.function)
        unknown = [key for key in self.settings if own is not None and key not in own]
        if unknown:
            near = difflib.get_close_matches(unknown[0], sorted(own or ()), n=1)
            hint = f"; nearest: {near[0]}" if near else f"; it is {self.signature}"
            raise SettingsError(f"reward function {target} takes no argument {unknown[0]!r}{hint}")
        self.settings |= self._as_annotated()
        missing = _without_default(self.function) - {*self.required, *self.further, *self.settings}
        if missing:
            raise SettingsError(f"reward function {target} needs the argument {min(missing)!r}; add it to its settings")
        try:
            check_settings(self.function, self.settings)
        except ValueError as error:
            raise SettingsError(f"reward function {target}: {error}") from error

    @property
    def minimum_score(self) -> float | None:
        """The score of an answer that exhausts it, None where it does not run in a process."""
        return minimum_score_of(self.function)

    @property
    def most_at_once(self) -> int | None:
        """How many calls of it may run at a time, None where it does not say."""
        return most_at_once(self.function)

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
        return self._taken(offered)

    def _as_annotated(self) -> dict[str, Any]:
        """The settings as the function's annotations want them; what those do not say is left as it came."""
        checked = {}
        for key, annotation in _annotations(self.function).items():
            if key not in self.settings:
                continue
            try:
                checked[key] = TypeAdapter(annotation).validate_python(self.settings[key])
            except ValidationError as error:
                came, reason = f"{key}={self.settings[key]!r}", error.errors()[0]["msg"].removeprefix("Value error, ")
                raise SettingsError(f"reward function {self.target}: {came}: {reason}") from None
            except PydanticUserError:  # a type of the user's own that cannot be checked
                continue
        return checked

    def _taken(self, offered: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in offered.items() if self.accepted is None or key in self.accepted}

    def _accepted(self) -> set[str] | None:
        """The keywords that the function takes; None for any."""
        function, target = self.function, self.target
        if not callable(function):
            raise PluginError(f"reward function {target} is {type(function).__name__}; expected {self.signature}")
        by_keyword, takes_any = _keywords(function)
        missing = [name for name in self.required if name not in by_keyword]
        if missing and not takes_any:
            raise PluginError(f"reward function {target} lacks the parameter {missing[0]!r}; expected {self.signature}")
        return None if takes_any else by_keyword


class BatchScorer(Scorer):
    """verl's form of a reward function that is given a list for each argument and returns a list of scores."""

    required: ClassVar[tuple[str, ...]] = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
    further: ClassVar[tuple[str, ...]] = ("messages", "final_messages", "trajectories")
    signature: ClassVar[str] = "compute_score(data_sources, solution_strs, ground_truths, extra_infos, **kwargs)"

    @classmethod
    def fits(cls, target: str) -> bool:
        """Whether a function is of this form."""
        function = plugins.find("rewards", target)
        return callable(function) and set(cls.required) <= _keywords(function)[0]

    def batch_arguments(self, group: Sequence[RewardInput]) -> dict[str, Any]:
        """The keywords to call it with, one entry a trajectory in each list."""
        offered = {
            "data_sources": [judged.data_source for judged in group],
            "solution_strs": [judged.solution_str for judged in group],
            "ground_truths": [judged.ground_truth for judged in group],
            "extra_infos": [{"num_turns": _num_turns(judged), **judged.extra_info} for judged in group],
            "messages": [judged.messages for judged in group],
            "final_messages": [judged.final_message for judged in group],
            "trajectories": [judged.trajectory for judged in group],
            **self.settings,
        }
        return self._taken(offered)


def custom_target(path: str, name: str = "compute_score") -> str:
    """The plugin name of `reward.custom_reward_function.{path, name}`: a file, a module, or `module:function`.

    Raises:
        SettingsError: the file does not exist.
    """
    if path.endswith(".py"):
        file = Path(path).expanduser()
        if not file.is_file():
            raise SettingsError(f"the reward function {path}: there is no such file")
        return f"{file.resolve()}:{name}"
    if ":" in path or path in dict(plugins.installed("rewards")):
        return path
    if "." not in path and importlib.util.find_spec(path) is None:  # a misspelt name, which finding it answers
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
        components = {str(key): _plain(part) for key, part in value.items() if key != "score"}
        value = value["score"]
    value = _plain(value)
    if not isinstance(value, Real):
        raise ValueError(f"{target} returned {type(value).__name__} {str(value)[:80]!r}; expected a number")
    reserved = sorted(RESERVED_COMPONENTS & components.keys())
    if reserved:
        raise ValueError(f"{target} returned the reserved key {reserved[0]!r}; report it under another name")
    score = float(value)
    if not math.isfinite(score):
        raise ValueError(f"{target} returned {score}; a score must be finite")
    if abs(score) > LARGEST_SCORE:
        raise ValueError(f"{target} returned {score:g}; a score must be at most {LARGEST_SCORE:g}")
    return RewardResult(score=score, components=components)


def _plain(value: Any) -> Any:
    """A scalar of numpy, or a tensor of one element, as a number; anything else as it is."""
    try:
        return value.item() if hasattr(value, "item") else value
    except (ValueError, RuntimeError):  # several elements
        return value


def _keywords(function: Any) -> tuple[set[str], bool]:
    """The names that a function takes as keywords, and whether it takes any other."""
    parameters = inspect.signature(function).parameters.values()
    named = {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}
    return named, any(one.kind is one.VAR_KEYWORD for one in parameters)


def _without_default(function: Any) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    named = (one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    return {one.name for one in named if one.default is one.empty}


def _annotations(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function if inspect.isroutine(function) else type(function).__call__, include_extras=True)
    except Exception:  # an annotation may name what only a type checker sees
        return {}


def _own_arguments(function: Any) -> set[str] | None:
    """The arguments that a setting may have; None for any. `**_` takes what is offered and reads none of it."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD and not one.name.startswith("_") for one in parameters):
        return None
    return _keywords(function)[0]


def _num_turns(judged: RewardInput) -> int:
    return max((output.num_turns for output in judged.trajectory), default=0)
