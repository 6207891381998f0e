"""Several rewards as one: a weighted sum, in which some have to pass before the others count."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from agentverl import plugins
from agentverl.errors import BadInputError, BoundaryError
from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.components.base import ComponentContext, RewardComponent, make_component, naming
from agentverl.settings.reward import ComponentSettings

_SHARED = ("acc", "pred")
"""What validation reads under these names comes from the first component that reports it."""


@dataclass(frozen=True, slots=True)
class _Part:
    component: RewardComponent[Any]
    weight: float
    gate: float | None


class Hybrid:
    """The components of `reward.components`.

    A component with a `gate` is asked first. Where its score is below, only gates count, and the others are not asked.

    Raises:
        PluginError, SettingsError: an entry that cannot work, with the component's name.
    """

    def __init__(self, entries: Sequence[ComponentSettings], context: ComponentContext) -> None:
        self._parts = [
            _Part(make_component(entry.name, entry.kind, entry.settings, context), entry.weight, entry.gate)
            for entry in entries
        ]

    @property
    def asks_environment(self) -> bool:
        """Whether a component needs the environment's score."""
        return any(part.component.asks_environment for part in self._parts)

    def check(self, data_sources: set[str]) -> None:
        """Find now what judging these data sources needs."""
        for part in self._parts:
            with naming(part.component.name):
                part.component.check(data_sources)

    async def score(self, judged: RewardInput) -> RewardResult:
        """The weighted sum, and each component's own score under its name; what it reports under `name/key`.

        Raises:
            BoundaryError: a component has no score; says which.
        """
        gates = [part for part in self._parts if part.gate is not None]
        others = [part for part in self._parts if part.gate is None]
        results = await _ask(gates, judged)
        passed = all(result.score >= (part.gate or 0.0) for part, result in zip(gates, results, strict=True))
        if passed:
            results += await _ask(others, judged)
        total, factors = RewardResult(score=0.0), Counter[str]()
        for part, result in zip([*gates, *others], results, strict=False):
            _add(total, part, result)
        for part in self._parts:
            counts = passed or part.gate is not None
            factors.update(part.component.turn_weights(judged, part.weight if counts else 0.0))
        total.turn_weights = dict(factors)
        return total

    async def close(self) -> None:
        """Give back what the components hold."""
        await asyncio.gather(*(part.component.close() for part in self._parts))


async def _ask(parts: Sequence[_Part], judged: RewardInput) -> list[RewardResult]:
    results = await asyncio.gather(*(part.component.score(judged) for part in parts), return_exceptions=True)
    return [_checked(part.component.name, result) for part, result in zip(parts, results, strict=True)]


def _checked(name: str, result: RewardResult | BaseException) -> RewardResult:
    """What a component gave; a component of the user's own may raise and return anything."""
    if isinstance(result, BoundaryError):
        raise type(result)(f"component {name}: {result}", result.boundary) from result
    if isinstance(result, BadInputError) or (isinstance(result, BaseException) and not isinstance(result, Exception)):
        raise result
    if isinstance(result, Exception):
        reason = f"{type(result).__name__}: {result}{plugins.line_of(result)}"
        raise BoundaryError(f"component {name} failed: {reason}", "reward") from result
    if not isinstance(result, RewardResult) or not isinstance(result.score, Real) or not math.isfinite(result.score):
        raise BoundaryError(f"component {name} gave {str(result)[:80]}; expected a RewardResult of a number", "reward")
    return result


def _add(total: RewardResult, part: _Part, result: RewardResult) -> None:
    name = part.component.name
    total.components[name] = result.score
    if part.gate is not None:
        total.components[f"{name}/passed"] = float(result.score >= part.gate)
    for key, value in result.components.items():
        total.components[f"{name}/{key}"] = value
        if key in _SHARED:
            total.components.setdefault(key, value)
    if not part.component.stays_at_turns:
        total.score += part.weight * result.score
