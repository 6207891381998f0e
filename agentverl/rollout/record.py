"""What servers sampled in one trajectory, as it came: nobody who holds an answer can change it here."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from agentverl.trajectory import TokenOutput


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """One answer of a server, after `before` and `between`.

    Most answers stand after an earlier one and what was inserted since; then only that is held, not the prompt again.
    """

    before: "Sampled | None"
    """The answer that its prompt goes on from."""
    between: list[int]
    """The prompt, or what of it stands after the answer before."""
    token_ids: list[int]
    log_probs: list[float] | None
    temperature: float

    @property
    def prompt_ids(self) -> list[int]:
        """What it was sampled after."""
        parts, one = [self.between], self.before
        while one is not None:
            parts += [one.token_ids, one.between]
            one = one.before
        return list(itertools.chain.from_iterable(reversed(parts)))

    def stands_at(self, ids: Sequence[int], start: int, checked: "tuple[Sampled, int] | None" = None) -> bool:
        """Whether `ids[:start]` are its prompt.

        Args:
            checked: an answer that is known to be within `ids` with its prompt, and where it stops.
        """
        begin = start - len(self.between)
        holds, one = begin >= 0 and ids[begin:start] == self.between, self.before
        while holds and one is not None and (one, begin) != checked:
            start = begin - len(one.token_ids)
            holds = start >= 0 and ids[start:begin] == one.token_ids
            begin = start - len(one.between)
            holds = holds and begin >= 0 and ids[begin:start] == one.between
            one = one.before
        return holds and (begin == 0 or one is not None)


class Record(list[Sampled]):
    """The answers of one trajectory, in the order in which they came."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, tuple[Sampled, int]] = {}
        """Of each request id the last answer, and how many ids there are up to its end."""

    def add(self, request_id: str, prompt_ids: list[int], output: TokenOutput, temperature: float) -> None:
        """Copy an answer."""
        token_ids = list(output.token_ids)
        log_probs = None if output.log_probs is None else list(output.log_probs)
        last, stop = self._last.get(request_id, (None, 0))
        sampled = Sampled(last, prompt_ids[stop:], token_ids, log_probs, temperature)
        if not sampled.stands_at(prompt_ids, len(prompt_ids)):
            sampled = Sampled(None, list(prompt_ids), token_ids, log_probs, temperature)
        self._last[request_id] = sampled, len(prompt_ids) + len(token_ids)
        self.append(sampled)
