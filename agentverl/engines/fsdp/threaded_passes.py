"""Passes of one model over several packed rows at once, each in a thread of its own that computes alone.

For CPUs: all cores share a matrix product well, and the short operations between products badly.
"""

import copy
import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch

from agentverl.engines.fsdp.packed_batch import PackedBatch
from agentverl.engines.fsdp.packed_model import PackedModel
from agentverl.engines.fsdp.weights import Weights

Value = TypeVar("Value")

_log = logging.getLogger(__name__)

MOST_THREADS = 4
"""Beyond that, a thread has several cores: what is between the operations runs under Python's lock, one at a time."""


class ThreadedPasses:
    """Threads with a twin of the model each: other modules over the same weights.

    Gradients add up in the weights; those of a pass in the order of its parts, so that results repeat to the last bit.

    Raises:
        Exception: whatever a module raises that cannot be copied.
    """

    def __init__(self, model: PackedModel, weights: Weights) -> None:
        self._cores = torch.get_num_threads()
        self.count = min(self._cores, MOST_THREADS)
        self._weights = weights
        buffers = {id(buffer): buffer for buffer in model.buffers()}
        self._twins = [copy.deepcopy(model, buffers | weights.twins(part)) for part in range(self.count)]

    def __call__(
        self, parts: Sequence[PackedBatch], names: Collection[str], *, kept_bytes: int
    ) -> dict[str, torch.Tensor]:
        """What `PackedModel.forward` says about the predicted tokens of at most `count` parts, one after the other."""
        passes = [
            partial(_pass, *pair, names, kept_bytes // len(parts)) for pair in zip(self._twins, parts, strict=False)
        ]
        if torch.is_grad_enabled():
            outputs = _through_graphs(torch.zeros((), requires_grad=True), self, passes)
        else:
            outputs = _joined(self.each(passes))
        return dict(zip(names, outputs, strict=True))

    def each(self, works: Sequence[Callable[[], Value]]) -> list[Value]:
        """The results of what each thread is given."""
        with_gradients = torch.is_grad_enabled()

        def alone(work: Callable[[], Value]) -> Value:
            torch.set_num_threads(self._cores // self.count)
            with torch.set_grad_enabled(with_gradients):
                return work()

        try:
            # They end with their work: OpenMP keeps a team of threads for each thread that computed (see `blocking`).
            with ThreadPoolExecutor(len(works), "pass") as threads:
                return list(threads.map(alone, works))
        finally:
            torch.set_num_threads(self._cores)  # threads that start later take what any thread has set last

    def backward(self, outputs: Sequence[Sequence[torch.Tensor]], gradients: Sequence[Sequence[torch.Tensor]]) -> None:
        """Go back through the graph of each part."""
        try:
            self.each([partial(_backward, *of_part) for of_part in zip(outputs, gradients, strict=True)])
        finally:
            self._weights.end_pass()


def threaded(model: PackedModel, weights: Weights) -> ThreadedPasses | None:
    """Passes in a thread for each core; None where there is one core, or the model's modules cannot be copied."""
    if torch.get_num_threads() == 1:
        return None
    try:
        return ThreadedPasses(model, weights)
    except Exception as error:  # a model's code may hold anything, and anything may refuse to be copied
        _log.warning(
            "%s is trained in one thread, which is slower, because its modules cannot be copied (%s: %s); for a thread "
            "for each core, keep locks, generators, files and their like out of the modules",
            type(model.model).__name__,
            type(error).__name__,
            error,
        )
        return None


def _pass(model: PackedModel, packed: PackedBatch, names: Collection[str], kept_bytes: int) -> list[torch.Tensor]:
    computed = model(packed, names, kept_bytes=kept_bytes)
    return [computed[name] for name in names]


def _backward(outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
    wanted = [pair for pair in zip(outputs, gradients, strict=True) if pair[0].requires_grad]
    torch.autograd.backward([output for output, _ in wanted], [gradient for _, gradient in wanted])


def _joined(outputs: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.cat(of_name) for of_name in zip(*outputs, strict=True))


def _through_graphs(*inputs: Any) -> tuple[torch.Tensor, ...]:
    function: Any = _ThroughGraphs
    outputs: tuple[torch.Tensor, ...] = function.apply(*inputs)
    return outputs


class _ThroughGraphs(torch.autograd.Function):
    """The parts' passes keep graphs of their own; `anchor` lets what is joined of them need gradients."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, threads: ThreadedPasses, passes: Sequence[Callable[[], list[torch.Tensor]]]
    ) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            ctx.threads, ctx.outputs = threads, threads.each(passes)
        joined = _joined(ctx.outputs)
        found = zip(joined, ctx.outputs[0], strict=True)
        ctx.mark_non_differentiable(*(whole for whole, output in found if not output.requires_grad))
        return joined

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, ...]:
        sizes = [len(outputs[0]) for outputs in ctx.outputs]
        by_part = list(zip(*(torch.split(gradient, sizes) for gradient in gradients), strict=True))
        with torch.enable_grad():
            ctx.threads.backward(ctx.outputs, by_part)
        return None, None, None
