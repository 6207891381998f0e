"""An answer of several pieces, where servers left before it was complete."""

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
    """

    def __init__(self, prompt_ids: list[int], sampling_params: dict[str, Any]) -> None:
        self.prompt_ids = prompt_ids
        self.sampling_params = sampling_params
        self._begun = (prompt_ids, sampling_params)
        self._joined: TokenOutput | None = None
        self._empty = 0

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
        self._joined = piece if self._joined is None else _join(self._joined, piece)
        if piece.stop_reason != "aborted":
            return True
        self._empty = 0 if piece.token_ids else self._empty + 1
        if self._empty == _MOST_EMPTY:
            raise InfrastructureError(f"rollout servers aborted a request {_MOST_EMPTY} times without a token", "model")
        prompt_ids, params = self._begun
        count = len(self._joined.token_ids)
        limit = "max_new_tokens" if "max_new_tokens" in params else "max_tokens"
        if count == params.get(limit):
            self._joined.stop_reason = "length"
            return True
        self.prompt_ids = [*prompt_ids, *self._joined.token_ids]
        self.sampling_params = dict(params)
        if params.get(limit) is not None:
            self.sampling_params[limit] = params[limit] - count
        if params.get("seed") is not None and count:
            self.sampling_params["seed"] = derive_seed(params["seed"], "continued", count)
        return False


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
        num_preempted=first.num_preempted + second.num_preempted + 1,
        routed_experts=second.routed_experts,
        extra_fields={**first.extra_fields, **second.extra_fields},
    )
