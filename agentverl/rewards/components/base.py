"""One part of a hybrid reward: what every kind has in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from agentverl import plugins
from agentverl.errors import BadInputError
from agentverl.rewards.base import RewardContext, RewardInput, RewardResult
from agentverl.rewards.function_calls import FunctionCalls
from agentverl.settings.section import Section


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentContext:
    """What all components of a manager share."""

    calls: FunctionCalls
    timeout_seconds: float
    run: RewardContext


SettingsType = TypeVar("SettingsType", bound=Section)


class RewardComponent(ABC, Generic[SettingsType]):
    """Subclass for another kind of component; named by entry point (`agentverl.reward_components`) or import path.

    `Settings` checks the entry's `settings`; they are `self.settings`.
    """

    Settings: ClassVar[type[Section]] = Section

    def __init__(self, name: str, settings: SettingsType, context: ComponentContext) -> None:
        self.name = name
        self.settings = settings
        self.context = context

    @property
    def asks_environment(self) -> bool:
        """Whether it needs `RewardInput.environment`."""
        return False

    @property
    def stays_at_turns(self) -> bool:
        """Whether it judges turn rewards where they are, by `turn_weights`, and adds nothing to the score."""
        return False

    @abstractmethod
    async def score(self, judged: RewardInput) -> RewardResult:
        """The component's score of one trajectory, without its weight.

        Raises:
            BoundaryError: no score could be had (boundary "reward").
        """

    def turn_weights(self, judged: RewardInput, weight: float) -> dict[str, float]:
        """Factors of turn rewards by name, for a component that judges them."""
        return {}

    def check(self, data_sources: set[str]) -> None:
        """Find now what judging these data sources needs, so that what is missing shows before anything starts."""
        return None

    async def close(self) -> None:
        """Give back what the component holds."""
        return None


def make_component(
    name: str, kind: str, settings: Mapping[str, Any], context: ComponentContext
) -> RewardComponent[Any]:
    """The component that an entry of `reward.components` describes.

    Raises:
        PluginError: no such kind.
        SettingsError: keys that the kind does not have, lacks, or takes otherwise.
    """
    with naming(name):
        found: type[RewardComponent[Any]] = plugins.find("reward_components", kind)
        checked = plugins.checked_settings(found.Settings, settings, f"settings of kind {kind}")
        return found(name, checked, context)


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Say of bad input which component it belongs to."""
    try:
        yield
    except BadInputError as error:
        raise type(error)(f"reward.components: {name}: {error}") from error
