"""An answer of several pieces: one too long for one request, or one whose server left before it was complete."""

from typing import Any

from agentverl.errors import InfrastructureError
from agentverl.settings.seeds import derive_seed
from agentverl.trajectory import TokenOutput

_MOST_EMPTY = 8
"""Pieces without a token, one after the other."""


class Continued:
    """Joins pieces: each token keeps its log-probability and the weights that it was sampled with.

    `prompt_ids` and `sampling_params` are those of the next piece: after all tokens so far, within what is left of
    `max_tokens`, with a stream of random numbers of its own.

    Args:
        most_tokens: of one piece; None for the whole answer. Answers that a stop string may end are never cut, as it
            could begin in one piece and end in the next, where no server looks for it.
    """

    def __init__(self, prompt_ids: list[int], sampling_params: dict[str, Any], most_tokens: int | None = None) -> None:
        self._begun = (prompt_ids, sampling_params)
        self._limit = "max_new_tokens" if "max_new_tokens" in sampling_params else "max_tokens"
        self._max_tokens: int | None = sampling_params.get(self._limit)
        self._most_tokens = None if sampling_params.get("stop") else most_tokens
        self._joined: TokenOutput | None = None
        self._empty = 0
        self._ask_after([])

    @property
    def output(self) -> TokenOutput:
        """All pieces as one."""
        assert self._joined is not None, "no piece was taken"
        return self._joined

    def takes(self, piece: TokenOutput) -> bool:
        """Append a piece; whether the answer is complete.

        Raises:
            InfrastructureError: servers give back nothing, again and again.
        """
        self._joined = joined = piece if self._joined is None else _join(self._joined, piece)
        is_whole = len(joined.token_ids) == self._max_tokens
        if piece.stop_reason == "aborted" and is_whole:
            joined.stop_reason = "length"
        if is_whole or not (piece.stop_reason == "aborted" or self._is_cut(piece)):
            return True
        self._empty = 0 if piece.token_ids else self._empty + 1
        if self._empty == _MOST_EMPTY:
            raise InfrastructureError(f"rollout servers aborted a request {_MOST_EMPTY} times without a token", "model")
        self._ask_after(joined.token_ids)
        return False

    def _is_cut(self, piece: TokenOutput) -> bool:
        """Whether the bound of a piece ended it, and not the server's own."""
        return piece.stop_reason == "length" and len(piece.token_ids) == self.sampling_params.get(self._limit)

    def _ask_after(self, token_ids: list[int]) -> None:
        prompt_ids, params = self._begun
        self.prompt_ids = [*prompt_ids, *token_ids] if token_ids else prompt_ids
        self.sampling_params = dict(params)
        if self._max_tokens is not None:
            left = self._max_tokens - len(token_ids)
            self.sampling_params[self._limit] = min(left, self._most_tokens or left)
        if params.get("seed") is not None and token_ids:
            self.sampling_params["seed"] = derive_seed(params["seed"], "continued", len(token_ids))


def _join(first: TokenOutput, second: TokenOutput) -> TokenOutput:
    count = len(first.token_ids)
    known = first.log_probs is not None and second.log_probs is not None
    return TokenOutput(
        token_ids=[*first.token_ids, *second.token_ids],
        log_probs=[*(first.log_probs or ()), *(second.log_probs or ())] if known else None,
        stop_reason=second.stop_reason,
        weight_versions=[
            *first.weight_versions,
            *((count + stop, version) for stop, version in second.weight_versions),
        ],
        num_cached_tokens=first.num_cached_tokens + second.num_cached_tokens,
        num_preempted=first.num_preempted + second.num_preempted + (first.stop_reason == "aborted"),
        routed_experts=second.routed_experts,
        extra_fields={**first.extra_fields, **second.extra_fields},
    )
