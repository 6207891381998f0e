"""The server's core, without threads or event loops: requests in, steps, answers out."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from agentverl.rollout.hf.kept import KeptCaches
from agentverl.rollout.hf.kv_pool import KVPool
from agentverl.rollout.hf.model import ServedModel
from agentverl.rollout.hf.planning import Step, plan, runs
from agentverl.rollout.hf.queue import RoundQueue, WaitingQueue
from agentverl.rollout.hf.requests import Request, model_failure
from agentverl.rollout.hf.rows import Rows
from agentverl.rollout.hf.sampling import sample
from agentverl.rollout.hf.settings import HFSettings
from agentverl.rollout.hf.weights import apply

_GRAIN = 64  # tokens; capacities are multiples of it
_CALL_BYTES = 2**18  # what attention reads in the time that one more call to it costs
_WORTH_SHARING = 16  # tokens; what copying and waiting a step cost to read
_TIDY_STEPS = 16  # at least so many steps between two reorderings of all rows


class Engine:
    """Serves requests with continuous batching. Not thread-safe; everything happens between two steps or in one."""

    def __init__(self, model: ServedModel, settings: HFSettings, kv_memory_bytes: int, weight_version: int) -> None:
        self.model = model
        self.weight_version = weight_version
        self.steps = self.forwarded_tokens = 0
        self._settings = settings
        self._budget = kv_memory_bytes
        self._pool = KVPool(model.layers, model.cache_dtype, model.device)
        self._rows = Rows()
        self._kept = KeptCaches()
        self._queue = RoundQueue() if settings.deterministic else WaitingQueue()
        self._allowance = max(16, _CALL_BYTES * len(model.layers) // self._pool.bytes_per_token)
        self._run_ends: list[int] = []
        self._tidied_at = 0
        self._released = (0, 0)

    @property
    def bytes_per_token(self) -> int:
        return self._pool.bytes_per_token

    @property
    def idle(self) -> bool:
        """Whether a step would do nothing."""
        return not self._rows and not self._queue.ready(self._kept.open_leases, 0)

    @property
    def expects_more(self) -> bool:
        """Whether nothing runs, and there are trajectories that have not sent a request yet."""
        return not self._rows and len(self._queue) < len(self._kept.open_leases)

    def counters(self) -> dict[str, Any]:
        return {
            "running": len(self._rows),
            "waiting": len(self._queue),
            "open_leases": len(self._kept.open_leases),
            "kept_caches": len(self._kept),
            "kv_memory_bytes": self._pool.memory_bytes + self._kept.memory_bytes,
            "weight_version": self.weight_version,
            "steps": self.steps,
            "forwarded_tokens": self.forwarded_tokens,
        }

    def submit(self, request: Request) -> None:
        self._queue.push(request)

    def open(self, request_id: str) -> None:
        self._kept.open(request_id)

    def close(self, request_id: str) -> None:
        self._kept.close(request_id)

    def abort(self, condition: Callable[[Request], bool]) -> None:
        """End all requests that fulfil a condition, with what they have."""
        for request in self._queue.take_if(condition):
            request.settle(request, request.output("aborted"))
        for row in reversed(range(len(self._rows))):
            if condition(self._rows.requests[row]):
                self._finish(row, "aborted")

    def fail_all(self, message: str, cause: BaseException | None = None) -> None:
        """End all requests, running and waiting, with an error."""
        self._fail([*self._rows.clear(), *self._queue.take_if(lambda _: True)], message, cause)

    def fail_running(self, message: str, cause: BaseException) -> None:
        """End the running requests with an error and forget all caches, which may be half written."""
        self._fail(self._rows.clear(), message, cause)
        self._drop_caches()

    def load(self, weights: dict[str, torch.Tensor], version: int) -> None:
        """Serve a complete new set of weights; running requests are read again under them."""
        apply(self.model, weights)
        self.model.forget_copies()
        for row, request in enumerate(self._rows.requests):
            request.close_span(int(self._rows.length[row]), self.weight_version)
        self.weight_version = version
        self.clear_caches()

    def clear_caches(self) -> None:
        """Drop all kept caches and read running requests again."""
        self._kept.clear()
        self._rows.retract()

    def release_caches(self) -> None:
        """Give the memory of all caches back; running requests go back to the queue."""
        self._rows.retract()
        while self._rows:
            self._preempt()
        self.model.forget_copies()
        if self._pool.slots:
            self._released = (self._pool.slots, self._pool.capacity)
        self._drop_caches()

    def _drop_caches(self) -> None:
        self._kept.clear()
        self._pool.release()
        self._rows.reserve(0, 0)

    def step(self) -> None:
        """Admit what fits, then one forward pass and one token for each row that is read to its end."""
        if not self._rows:
            # The order of rows shows in the last bits; what was served before must not decide it.
            self._tidied_at = self.steps
        self._admit()
        if not self._rows:
            return
        self._make_room()
        rows = self._rows
        step = plan(rows, self._runs(), self._settings.max_num_batched_tokens, self.model.device)
        logits = self.model.forward(step, self._pool)
        self.steps += 1
        self.forwarded_tokens += len(step.ids)
        if step.read > step.sampled:
            rows.computed[step.sampled] += np.count_nonzero(step.rows == step.sampled)
        if step.sampled:
            if twins := self._admit_twins(step):
                logits = logits[[*range(step.sampled), *twins]]
            tokens, log_probs = (
                sampled.cpu().numpy() for sampled in sample(logits, rows.draw(len(logits), self.model.device))
            )
            rows.append(tokens, log_probs)
            self._end_rows(~np.isfinite(log_probs))

    def _runs(self) -> list[int]:
        rows = self._rows
        decoding = rows.decoding
        ends = runs(rows.length[:decoding].tolist(), self._allowance)
        if len(ends) > 4 and self.steps >= self._tidied_at + _TIDY_STEPS:
            order = np.argsort(-rows.length[:decoding], kind="stable")
            sorted_ends = runs(rows.length[order].tolist(), self._allowance)
            if len(sorted_ends) + 2 < len(ends):
                self._tidied_at = self.steps
                rows.reorder(order)
                self._pool.reorder(torch.from_numpy(order).to(self.model.device), rows.longest)
                ends = sorted_ends
        self._run_ends = ends
        return ends

    def _end_rows(self, broken: npt.NDArray[np.bool_]) -> None:
        rows = self._rows
        count = rows.decoding
        ended = rows.ended()
        for row in rows.company(count).stops:
            stop = rows.requests[row].stop
            if stop is not None and stop.completed_by(self._last_answer_ids(row, stop.window)):
                ended[row] = True
        done = ended | broken | (rows.length[:count] >= rows.limit[:count])
        if not done.any():
            return
        for row in np.flatnonzero(done)[::-1].tolist():
            if broken[row]:
                self._fail([self._take_out(row)], "the model's logits are not finite; its weights may have diverged")
            else:
                self._finish(row, "completed" if ended[row] else "length")

    def _last_answer_ids(self, row: int, window: int) -> list[int]:
        length = int(self._rows.length[row])
        first = max(int(self._rows.prompt_length[row]), length - window)
        ids: list[int] = self._rows.ids[row, first:length].tolist()
        return ids

    def _finish(self, row: int, stop_reason: str) -> None:
        request = self._rows.write_back(row)
        request.close_span(len(request.ids), self.weight_version)
        computed = int(self._rows.computed[row])
        if computed and self._kept.is_open(request.request_id):
            self._kept.add(request.request_id, request.ids[:computed], self._pool.take(row, computed))
            self._kept.shrink_to(self._budget - self._pool.memory_bytes)
        self._take_out(row)
        request.settle(request, request.output(stop_reason))

    def _take_out(self, row: int) -> Request:
        request = self._rows.requests[row]
        decoding = self._rows.decoding
        ends = [*(end for end in self._run_ends if end <= decoding), decoding, len(self._rows)]
        for source, target in self._rows.remove(row, ends):
            self._pool.move(source, target, int(self._rows.computed[target]))
        self._run_ends = ends[:-2]
        return request

    def _preempt(self) -> None:
        """Send the last row back to the queue."""
        row = len(self._rows) - 1
        request = self._rows.write_back(row)
        request.preempted += bool(self._rows.computed[row])
        request.close_span(len(request.ids), self.weight_version)
        self._take_out(row)
        request.queued_since = time.monotonic()
        self._queue.push_back(request)

    def _fail(self, requests: Iterable[Request], message: str, cause: BaseException | None = None) -> None:
        for request in requests:
            request.settle(request, model_failure(message, cause))

    def _admit(self) -> None:
        rows = self._rows
        ready = self._queue.ready(self._kept.open_leases, len(rows))
        place = 0
        while place < len(ready) and len(rows) < self._settings.max_num_seqs:
            request = ready[place]
            if self._others_read_for(request):
                place += 1
                continue
            if not self._reserve(len(rows) + len(ready), len(rows) + 1, max(rows.longest, len(request.ids))):
                return
            row = rows.add(self._queue.pop(place))
            self._restore(row, request)

    def _admit_twins(self, step: Step) -> list[int]:
        """Admit requests whose ids a row has just been read to the end of; gives that row for each.

        Samples of one prompt so begin together, and rows of one length need no mask.
        """
        rows = self._rows
        read = range(rows.decoding, step.sampled) if step.sampled == len(rows) else range(0)
        ready, twins = self._queue.ready(self._kept.open_leases, len(rows)), []
        while read and ready and len(rows) < self._settings.max_num_seqs:
            request = ready[0]
            twin = None if self._kept.holds(request.request_id) else rows.find(request.ids, read)
            if twin is None or not self._reserve(len(rows) + len(ready), len(rows) + 1, rows.longest):
                break
            row = rows.add(self._queue.pop(0))
            self._pool.move(twin, row, len(request.ids))
            self._begin(row, request, computed=len(request.ids))
            twins.append(twin)
        return twins

    def _others_read_for(self, request: Request) -> bool:
        """Whether rows that are read in the next step begin as this request does, so that it better waits for them."""
        rows = self._rows
        if rows.decoding == len(rows) or self._kept.holds(request.request_id):
            return False
        shared = rows.common_prefixes(request.ids)
        now = np.minimum(shared, rows.computed[: len(rows)])
        return bool(shared.max() - now.max() >= _WORTH_SHARING)

    def _restore(self, row: int, request: Request) -> None:
        """Take keys and values over from the trajectory's kept caches, or from a running row that begins alike."""
        rows = self._rows
        found = self._kept.longest_prefix(request.request_id, request.ids)
        if found is not None:
            self._pool.put(row, *found)
            rows.computed[row] = found[1]
        if len(request.ids) - rows.computed[row] > _WORTH_SHARING:
            self._share(row, request)
        self._begin(row, request, computed=int(rows.computed[row]))

    def _begin(self, row: int, request: Request, *, computed: int) -> None:
        self._rows.computed[row] = computed
        request.leave_queue()
        if request.cached is None:
            request.cached = computed

    def _share(self, row: int, request: Request) -> None:
        rows = self._rows
        shared = np.minimum(rows.common_prefixes(request.ids), rows.computed[: len(rows)])
        best = int(shared.argmax())
        if shared[best] >= rows.computed[row] + _WORTH_SHARING:
            self._pool.move(best, row, int(shared[best]))
            rows.computed[row] = shared[best]

    def _make_room(self) -> None:
        while not self._reserve(len(self._rows), len(self._rows), self._rows.longest):
            self._preempt()

    def _reserve(self, wanted: int, rows: int, length: int) -> bool:
        """Have room for `rows` rows of `length` tokens, with more for the future while memory allows."""
        pool = self._pool
        if rows <= pool.slots and length <= pool.capacity:
            return True
        tight = _rounded(length)
        most = min(max(wanted, 2 * pool.slots), self._settings.max_num_seqs)
        slots = pool.slots if rows <= pool.slots else max(rows, most)
        capacity = pool.capacity if length <= pool.capacity else max(tight, 2 * pool.capacity)
        if not pool.slots:
            # As large as before its release, rather than growing there again by copies.
            slots, capacity = max(slots, self._released[0]), max(capacity, self._released[1])
        for choice in ((slots, capacity), (rows, capacity), (rows, tight)):
            needed = choice[0] * choice[1] * self.bytes_per_token
            if needed <= self._budget:
                self._kept.shrink_to(self._budget - needed)
                current = self._rows
                pool.resize(*choice, rows=len(current), length=min(current.longest, pool.capacity, choice[1]))
                current.reserve(*choice)
                return True
        return False


def kv_bytes_for(length: int, bytes_per_token: int) -> int:
    """What one sequence of `length` tokens takes in the pool."""
    return _rounded(length) * bytes_per_token


def _rounded(length: int) -> int:
    return -(-length // _GRAIN) * _GRAIN
