"""Arithmetic: `What is 37 * 48?`, scored by the last number of the final answer."""

from collections.abc import Sequence
from random import Random
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from agentverl.environments.base import Environment, EnvironmentContext, EnvironmentSettings, Observation, Task
from agentverl.environments.splits import split_of
from agentverl.errors import SettingsError
from agentverl.rewards.final_answer import last_number
from agentverl.settings.seeds import derive_seed

_COMPUTE = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


class ArithmeticSettings(EnvironmentSettings):
    """Which problems there are."""

    minimum: int = 2
    maximum: Annotated[int, Field(le=999)] = 99
    operators: Annotated[str, StringConstraints(pattern=r"^[-+*]+$")] = "+-*"


class Arithmetic(Environment):
    """Problems of two integers and one operator; train and held-out ones never meet."""

    Settings = ArithmeticSettings

    @classmethod
    def tasks(cls, split: str, size: int, seed: int, **settings: Any) -> Sequence[Task]:
        chosen = ArithmeticSettings(**settings)
        numbers = range(chosen.minimum, chosen.maximum + 1)
        problems = [
            (left, operator, right)
            for operator in dict.fromkeys(chosen.operators)
            for left in numbers
            for right in numbers
            if split_of(f"{left} {operator} {right}") == split
        ]
        if size > len(problems):
            raise SettingsError(
                f"arithmetic has {len(problems)} problems in its split {split!r}, fewer than the {size} asked for; "
                "widen minimum and maximum, or ask for fewer"
            )
        picked = Random(derive_seed("arithmetic", split, seed)).sample(problems, size)
        return [_task(*problem) for problem in picked]

    async def reset(self, context: EnvironmentContext, *, left: int, operator: str, right: int) -> Observation:
        self.answer = _COMPUTE[operator](left, right)
        return Observation(messages=_prompt(left, operator, right))

    async def score(self) -> dict[str, float]:
        right = float(last_number(self.context.final_answer) == self.answer)
        return {"score": right, "acc": right}


def _prompt(left: int, operator: str, right: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"What is {left} {operator} {right}?"}]


def _task(left: int, operator: str, right: int) -> Task:
    return Task(
        fields={"left": left, "operator": operator, "right": right},
        prompt=_prompt(left, operator, right),
        ground_truth=str(_COMPUTE[operator](left, right)),
        data_source="arithmetic",
    )
