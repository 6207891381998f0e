"""A world in which the first of four turns decides, and the reward comes after the last."""

from collections.abc import Sequence
from random import Random
from typing import Any

from agentverl.environments.base import Environment, EnvironmentContext, Observation, Step, Task
from agentverl.messages import Message
from agentverl.settings.seeds import derive_seed

TURNS = 4
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


class DelayedCredit(Environment):
    """Whoever begins with anything but a call of the calculator wins; the three turns after it change nothing.

    What is seen after the first turn tells who began how. It asks for idle talk, which only adds noise to the gradient.
    """

    @classmethod
    def tasks(cls, split: str, size: int, seed: int, **settings: Any) -> Sequence[Task]:
        chance = Random(derive_seed("delayed credit", split, seed))
        pairs = [(chance.randrange(10, 99), chance.randrange(10, 99)) for _ in range(size)]
        return [
            Task(fields={"left": left, "right": right}, prompt=_asked(left, "*", right), data_source="delayed_credit")
            for left, right in pairs
        ]

    async def reset(self, context: EnvironmentContext, *, left: int, right: int) -> Observation:
        self.left, self.right, self.turns, self.won = left, right, 0, False
        return Observation(messages=_asked(left, "*", right), tools=[CALCULATOR], state_key="first")

    async def step(self, action: Message) -> Step:
        if self.turns == 0:
            self.won = not action.get("tool_calls")
        self.turns += 1
        talk = f"{'Yes' if self.won else 'No'}. Tell me about {self.left} and {self.right}."
        seen = Observation(messages=[{"role": "user", "content": talk}], state_key=f"{self.turns} {self.won}")
        return Step(observation=seen, done=self.turns == TURNS)

    async def score(self) -> dict[str, float]:
        return {"score": float(self.won), "acc": float(self.won)}


def _asked(left: int, operator: str, right: int) -> list[Message]:
    return [{"role": "user", "content": f"What is {left} {operator} {right}?"}]
