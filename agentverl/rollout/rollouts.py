"""What the trainer sees of rollouts: rows go in, complete groups of trajectories come out."""

import asyncio
import logging
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentverl import blocking
from agentverl.errors import BadInputError, BoundaryError, TrainingStoppedError
from agentverl.loop_thread import LoopThread
from agentverl.rollout.client import Gate
from agentverl.rollout.episode import Episode, EpisodeResult, Failure, Group
from agentverl.rollout.failures import FailureLedger, ValidationLedger
from agentverl.rollout.groups import GroupPolicy, OpenGroup, lost_with_runners
from agentverl.rollout.judging import Judge
from agentverl.rollout.router import Lease, Router

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Plays one episode on a leased server."""

    async def run(self, episode: Episode, lease: Lease, gate: Gate) -> EpisodeResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutsSettings:
    """How many trajectories run at a time, how they are sampled, and what failures mean.

    With `deterministic`, the servers of a batch are leased before any of its trajectories starts, so that servers which
    work in rounds do the same whatever the timing.
    """

    sampling_params: Mapping[str, Any] = field(default_factory=dict)
    validation_sampling_params: Mapping[str, Any] = field(default_factory=dict)
    max_concurrent_trajectories: int = 256
    group_policy: GroupPolicy = field(default_factory=GroupPolicy)
    max_excluded_fraction: float = 0.1
    close_timeout_seconds: float = 30.0
    deterministic: bool = False


class Rollouts:
    """Plays episodes in the background of synchronous code; a context manager, or `close` it.

    Args:
        thread: the loop that the servers live on; Rollouts that make their own also close it.
        judging: judges what the runner leaves to be judged, while the trajectory's server and slot serve another.
    """

    def __init__(
        self,
        runner: Runner,
        router: Router,
        settings: RolloutsSettings,
        *,
        thread: LoopThread | None = None,
        judging: Judge | None = None,
    ) -> None:
        self.step = 0
        """That trajectories are sampled for."""
        self.router = router
        self.thread = thread or LoopThread()
        self._owns_thread = thread is None
        self._runner = runner
        self._judging = judging
        self._settings = settings
        self._gate = Gate()
        self._slots = asyncio.Semaphore(settings.max_concurrent_trajectories)
        self._changed = threading.Condition()
        self._open: dict[int, OpenGroup] = {}
        self._ready: dict[int, tuple[OpenGroup, Group]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._submitted = 0
        self._dropped = {False: 0, True: 0}
        self._error: BaseException | None = None
        self._ledgers = {
            False: FailureLedger(settings.max_excluded_fraction),
            True: ValidationLedger(),
        }

    def __enter__(self) -> "Rollouts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(
        self, rows: Sequence[Mapping[str, Any]], n: int, *, validation: bool = False, greedy: bool = False
    ) -> None:
        """Begin `n` trajectories for each row, with `greedy` of the likeliest tokens; each row has its own `uid`.

        Raises:
            BadInputError: a row without `uid`, or two of the same that are under way.
        """
        with self._changed:
            if validation and not self._expected(True):
                self._ledgers[True] = ValidationLedger()  # each validation counts for itself
            groups = [self._group(row, n, validation, greedy) for row in rows]
            self._open |= {group.number: group for group in groups}
        self.thread.start(self._play(groups))

    def next_groups(self, count: int, max_staleness: int | None = None, *, validation: bool = False) -> list[Group]:
        """Wait for `count` groups, in the order in which they were submitted; fewer where the rest was dropped.

        With `max_staleness`, groups sampled with weights older than that many versions are played again.

        Raises:
            BadInputError: more groups are asked for than were submitted.
            TrainingStoppedError: too many trajectories failed, or no group is left.
        """
        while self._replay_lost(numbers := self._wait_for(count, max_staleness, validation)):
            pass
        with self._changed:
            self._ledgers[validation].check(few=True)
            if count and not numbers:
                raise TrainingStoppedError("no group of trajectories is left to train on: all were dropped")
            groups = [self._ready.pop(number)[1] for number in numbers]
            self._dropped[validation] -= count - len(groups)
            return groups

    def pause(self) -> None:
        """Hold back new requests and new trajectories; the wait counts for no deadline."""
        self.thread.loop.call_soon_threadsafe(self._gate.close)

    def resume(self) -> None:
        """Go on after `pause`."""
        self.thread.loop.call_soon_threadsafe(self._gate.open)

    @property
    def excluded_fraction(self) -> float:
        """The share of the last trajectories that failed."""
        return self._ledgers[False].excluded_fraction

    def state_dict(self) -> dict[str, Any]:
        """The training rows that were submitted but not handed out."""
        with self._changed:
            groups = {**self._open, **{number: group for number, (group, _) in self._ready.items()}}
            rows = [
                {"row": dict(group.row), "n": group.size} for _, group in sorted(groups.items()) if not group.validation
            ]
        return {"groups": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Submit again what was under way when the state was taken."""
        for entry in state["groups"]:
            self.submit([entry["row"]], entry["n"])

    def close(self) -> None:
        """Cancel what is under way; tools and environments are closed under their deadline."""
        if self._owns_thread:
            self.thread.close(self._settings.close_timeout_seconds)
        elif not self.thread.closed:
            self.thread.end(self._cancel(), "the rollouts", self._settings.close_timeout_seconds + 5.0)

    def _group(self, row: Mapping[str, Any], n: int, validation: bool, greedy: bool = False) -> OpenGroup:
        uid = row.get("uid")
        if not isinstance(uid, str) or not uid:
            raise BadInputError(f"a row to roll out needs a `uid` (text); its fields: {', '.join(sorted(row))}")
        under_way = [*self._open.values(), *(group for group, _ in self._ready.values())]
        if any(group.uid == uid and group.validation == validation for group in under_way):
            raise BadInputError(f"a row with uid {uid!r} is already under way")
        settings = self._settings
        params = settings.validation_sampling_params if validation else settings.sampling_params
        if greedy:
            params = {**params, "temperature": 0.0}
        self._submitted += 1
        return OpenGroup(
            number=self._submitted,
            uid=uid,
            row=row,
            size=n,
            sampling_params=params,
            policy=settings.group_policy,
            validation=validation,
            step=self.step,
        )

    def _expected(self, validation: bool) -> int:
        """Groups that were submitted and not handed out, those that were dropped since included."""
        groups = [*self._open.values(), *(group for group, _ in self._ready.values())]
        return sum(group.validation == validation for group in groups) + self._dropped[validation]

    def _raise_error(self, validation: bool) -> None:
        if self._error is not None:
            raise self._error
        self._ledgers[validation].check()

    def _replay_stale(self, validation: bool, max_staleness: int | None) -> None:
        if max_staleness is None or validation:
            return
        oldest = self.router.weight_version - max_staleness
        stale = [number for number, (_, group) in self._ready.items() if _oldest_version(group) < oldest]
        for number in stale:
            old, _ = self._ready.pop(number)
            fresh = self._group(old.row, old.size, False, greedy=old.sampling_params.get("temperature") == 0)
            self._open[fresh.number] = fresh
            self.thread.start(self._play([fresh]))

    def _wait_for(self, count: int, max_staleness: int | None, validation: bool) -> list[int]:
        """The numbers of the next `count` groups, once they are ready; fewer where the rest was dropped."""
        with self._changed:
            expected = self._expected(validation)
            if count > expected:
                raise BadInputError(f"next_groups({count}): only {expected} groups are under way; submit more rows")
            while True:
                self._raise_error(validation)
                self._replay_stale(validation, max_staleness)
                ready = sorted(number for number, (group, _) in self._ready.items() if group.validation == validation)
                still_open = any(group.validation == validation for group in self._open.values())
                if len(ready) >= count or not still_open:
                    return ready[:count]
                self._changed.wait()

    def _replay_lost(self, numbers: Sequence[int]) -> bool:
        """Play new samples for those whose tokens went with their runner; whether there are any."""
        groups = [self._ready[number][0] for number in numbers]
        # This asks other processes, so without the lock, for which all waits that is played.
        lost = lost_with_runners([result for group in groups for result in group.results])
        if not lost:
            return False
        with self._changed:
            for group in groups:
                if episodes := group.forget(lost):
                    self._open[group.number] = self._ready.pop(group.number)[0]
                    self.thread.start(self._tracked(self._play_instead(group, episodes)))
        return True

    # What follows runs on the loop's thread.

    async def _play(self, groups: Sequence[OpenGroup]) -> None:
        await self._tracked(self._play_all(groups))

    async def _tracked(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await self._guarded(work)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:  # nobody awaits this task: who waits for groups has to hear of it
            self._stop(error)
        except (SystemExit, KeyboardInterrupt) as error:
            self._stop(TrainingStoppedError(f"code that plays or scores episodes raised {error!r}"))

    async def _play_all(self, groups: Sequence[OpenGroup]) -> None:
        work = [(group, group.next_episode()) for group in groups for _ in range(group.size)]
        if not self._settings.deterministic:
            await asyncio.gather(*(self._play_in_slot(group, episode) for group, episode in work))
            return
        size = self._settings.max_concurrent_trajectories
        for start in range(0, len(work), size):
            wave = work[start : start + size]
            leases = [await self.router.lease(episode.trajectory_id) for _, episode in wave]
            await asyncio.gather(*(self._play_in_wave(*pair, lease) for pair, lease in zip(wave, leases, strict=True)))

    async def _play_in_wave(self, group: OpenGroup, episode: Episode, lease: Lease) -> None:
        result = await self._play_leased(group, episode, lease)
        if result is not None:
            await self._judge(group, result)

    async def _play_in_slot(self, group: OpenGroup, episode: Episode) -> None:
        async with self._slots:
            await self._gate.passed()
            try:
                lease = await self.router.lease(episode.trajectory_id)
            except BoundaryError as error:
                failure = Failure(boundary=error.boundary, message=str(error))
                ending = failure.termination
                # Without a server a new sample would fare no better, so it fails in the same breath.
                while self._note(group, EpisodeResult(episode=episode, failure=failure, termination=ending)):
                    episode = group.next_episode()
                    self._settle(group)
                self._settle(group)
                return
            result = await self._play_leased(group, episode, lease)
        if result is not None:
            await self._judge(group, result)

    async def _play_leased(self, group: OpenGroup, episode: Episode, lease: Lease) -> EpisodeResult | None:
        """Play an episode and, where it fails and the policy says so, a new sample in its place.

        Returns what is still to be judged; None where all that was begun is settled.
        """
        following: Lease | None = lease
        while following is not None:
            lease, following = following, None
            try:
                result = await self._runner.run(episode, lease, self._gate)
                if result.to_judge is not None:
                    return result
                if self._note(group, result):
                    episode = group.next_episode()
                    # Leased before the other lease ends, so that no server takes the batch for complete.
                    following = await self.router.lease(episode.trajectory_id)
            finally:
                await asyncio.shield(asyncio.ensure_future(_give_back(lease)))
            self._settle(group)
        return None

    async def _judge(self, group: OpenGroup, result: EpisodeResult) -> None:
        """Judge a trajectory that was played, or leave it until its group can be judged."""
        assert self._judging is not None
        if self._judging.takes_groups:
            group.unjudged.append(result)
            self._judge_group_when_played(group)
            return
        await self._judging.judge([result])
        await self._conclude(group, [result])

    def _judge_group_when_played(self, group: OpenGroup) -> None:
        if group.unjudged and group.settled + len(group.unjudged) == group.started:
            task = asyncio.ensure_future(self._guarded(self._judge_group(group)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _judge_group(self, group: OpenGroup) -> None:
        assert self._judging is not None
        if lost := await blocking.call(lost_with_runners, group.unjudged):
            await self._play_instead(group, group.forget(lost))
            return
        results, group.unjudged = group.unjudged, []
        results.sort(key=lambda result: result.episode.sample)
        await self._judging.judge(results)
        await self._conclude(group, results)

    async def _conclude(self, group: OpenGroup, judged: Sequence[EpisodeResult]) -> None:
        """Book judged trajectories, and play new samples for those that failed."""
        new = [group.next_episode() for result in judged if self._note(group, result)]
        for _ in judged:
            self._settle(group)
        await self._play_instead(group, new)

    async def _play_instead(self, group: OpenGroup, episodes: Sequence[Episode]) -> None:
        await asyncio.gather(*(self._play_in_slot(group, episode) for episode in episodes))

    def _note(self, group: OpenGroup, result: EpisodeResult) -> bool:
        """Book a trajectory that ended; whether a new sample takes its place."""
        with self._changed:
            ledger = self._ledgers[group.validation]
            ledger.note(result)
            if ledger.too_many:
                self._changed.notify_all()
            return group.note(result)

    def _settle(self, group: OpenGroup) -> None:
        """A trajectory's server is given back; its group is ready when that holds for all of it."""
        with self._changed:
            group.settled += 1
            if group.complete:
                del self._open[group.number]
                closed = group.close()
                if closed is None:
                    self._dropped[group.validation] += 1
                else:
                    self._ready[group.number] = (group, closed)
                self._changed.notify_all()
        self._judge_group_when_played(group)

    def _stop(self, error: BaseException) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    async def _cancel(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _give_back(lease: Lease) -> None:
    try:
        await lease.close()
    except Exception:  # the server may be gone; its trajectory is over either way
        logger.warning("closing the lease of %s failed", lease.request_id, exc_info=True)


def _oldest_version(group: Group) -> int:
    versions = [result.weight_versions for result in group.results]
    return min((oldest for oldest, _ in filter(None, versions)), default=0)
