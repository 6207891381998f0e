"""A fake rollout server: it writes what a function of (turn, random) says, obeys max_tokens and keeps a record."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from agentverl.data.chat_template import ChatTemplate
from agentverl.errors import InfrastructureError
from agentverl.trajectory import TokenOutput

Write = Callable[[int, random.Random], str]
"""(number of the request in its trajectory, randomness seeded by the request) -> the reply's text."""


@dataclass(eq=False)
class FakeReplica:
    """Not a model: a script behind the interface of a rollout server."""

    template: ChatTemplate
    write: Write
    weight_version: int = 0
    delay_seconds: float = 0.0
    fails: Callable[[str, int], BaseException | None] = lambda request_id, turn: None
    events: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    answers: dict[str, list[tuple[list[int], TokenOutput]]] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)
    params: list[dict[str, Any]] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    running: int = 0
    most_running: int = 0
    lost: bool = False
    """Whether its process is gone: all that is asked of it fails, what runs too."""
    leaving: asyncio.Event = field(default_factory=asyncio.Event)

    async def health(self) -> dict[str, Any]:
        self._require()
        return {"state": "serving", "weight_version": self.weight_version}

    async def abort(self, request_id: str) -> None:
        self._require()
        self.events.append(f"abort {request_id}")

    async def abort_all_requests(self) -> None:
        self.leaving.set()

    def _require(self) -> None:
        if self.lost:
            raise InfrastructureError("its process died", "model")

    async def open(self, request_id: str) -> None:
        self._require()
        self.opened.append(request_id)
        self.events.append(f"open {request_id}")

    async def close(self, request_id: str) -> None:
        self._require()
        self.closed.append(request_id)
        self.events.append(f"close {request_id}")

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **media: Any
    ) -> TokenOutput:
        turn = self.requests[request_id]
        self.requests[request_id] += 1
        self.params.append(dict(sampling_params))
        self.running += 1
        self.started.set()
        self.most_running = max(self.most_running, self.running)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.leaving.wait(), self.delay_seconds)
        except asyncio.CancelledError:
            self.aborted.append(request_id)
            raise
        finally:
            self.running -= 1
        self._require()
        error = self.fails(request_id, turn)
        if error is not None:
            raise error
        output = self._answer(turn, sampling_params)
        if self.leaving.is_set():
            output = _cut(output)
        self.answers.setdefault(request_id, []).append((list(prompt_ids), output))
        return output

    def _answer(self, turn: int, params: dict[str, Any]) -> TokenOutput:
        chance = random.Random(params["seed"])
        ids = self.template.tokenizer(self.write(turn, chance), add_special_tokens=False)["input_ids"]
        stop = set(params["stop_token_ids"])
        ids = [*ids, self.template.tokenizer.eos_token_id]
        end = next(position for position, token in enumerate(ids) if token in stop) + 1
        taken = ids[: min(end, params["max_tokens"])]
        reason = "completed" if taken[-1] in stop else "length"
        versions = [(len(taken), self.weight_version)]
        return TokenOutput(taken, [-chance.random() for _ in taken], reason, versions)


def _cut(output: TokenOutput) -> TokenOutput:
    """The first half of an answer, as a server gives it back that leaves."""
    half = len(output.token_ids) // 2
    log_probs = (output.log_probs or [])[:half]
    versions = [(half, version) for _, version in output.weight_versions]
    return TokenOutput(output.token_ids[:half], log_probs, "aborted", versions)
