"""One request on the server: its tokens so far, its random numbers, and what it becomes at its end."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agentverl.errors import InfrastructureError
from agentverl.rollout.hf.stop_strings import StopStrings
from agentverl.rollout.replica import SamplingParams
from agentverl.trajectory import TokenOutput, VersionSpan

Ids = npt.NDArray[np.int64]
Answer = TokenOutput | Exception


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A request that waits or runs. While it runs, its row holds ids and log-probabilities; `ids` are then older."""

    request_id: str
    params: SamplingParams
    priority: int
    order: int
    """Number of arrival."""
    ids: Ids
    """Prompt and answer so far."""
    prompt_length: int
    limit: int
    """Length, prompt included, at which the answer is cut."""
    ends: tuple[int, ...]
    """Ids that end the answer."""
    stop: StopStrings | None
    random: np.random.Generator
    settle: Callable[["Request", Answer], None]
    log_probs: npt.NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    uniforms: npt.NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """Random numbers drawn for the current block of tokens; they survive a preemption."""
    spans: list[VersionSpan] = field(default_factory=list)
    cached: int | None = None
    """Prompt tokens taken from a kept cache; None until the request first runs."""
    preempted: int = 0
    queued_since: float | None = field(default_factory=time.monotonic)
    queued_seconds: float = 0.0

    def leave_queue(self) -> None:
        """Count the time since the request joined the queue."""
        if self.queued_since is not None:
            self.queued_seconds += time.monotonic() - self.queued_since
            self.queued_since = None

    @property
    def rank(self) -> tuple[int, str, int]:
        """Place in a deterministic round."""
        return (self.priority, self.request_id, self.order)

    @property
    def turn(self) -> tuple[int, int]:
        """Place in the queue."""
        return (self.priority, self.order)

    def close_span(self, length: int, version: int) -> None:
        """Note that the answer up to a length (prompt included) was sampled with `version`."""
        stop = length - self.prompt_length
        if stop <= (self.spans[-1][0] if self.spans else 0):
            return
        if self.spans and self.spans[-1][1] == version:
            self.spans.pop()
        self.spans.append((stop, version))

    def output(self, stop_reason: str) -> TokenOutput:
        """The answer from `ids`, `log_probs` and `spans`."""
        self.leave_queue()
        return TokenOutput(
            token_ids=self.ids[self.prompt_length :].tolist(),
            log_probs=self.log_probs.tolist() if self.params.logprobs else None,
            stop_reason=stop_reason,
            weight_versions=list(self.spans),
            num_cached_tokens=self.cached or 0,
            num_preempted=self.preempted,
            extra_fields={"queue_seconds": self.queued_seconds},
        )


def model_failure(message: str, cause: BaseException | None = None) -> InfrastructureError:
    """An error of the `model` boundary for one request."""
    error = InfrastructureError(message, "model")
    error.__cause__ = cause
    return error
