"""How the samples of groups are played: on leased servers, so many at a time, judged alone or with their group."""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from agentverl import blocking
from agentverl.errors import BoundaryError, TrainingStoppedError
from agentverl.rollout.client import Gate
from agentverl.rollout.episode import Episode, EpisodeResult, Failure
from agentverl.rollout.group_book import GroupBook
from agentverl.rollout.groups import OpenGroup, lost_with_runners
from agentverl.rollout.judging import Judge
from agentverl.rollout.rollouts_settings import RolloutsSettings
from agentverl.rollout.router import Lease, Router

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Plays one episode on a leased server."""

    async def run(self, episode: Episode, lease: Lease, gate: Gate) -> EpisodeResult: ...


class GroupPlayer:
    """Plays groups and tells the book what came of them; all of it runs on one event loop.

    Args:
        judging: judges what the runner leaves to be judged, while the trajectory's server and slot serve another.
    """

    def __init__(
        self, runner: Runner, router: Router, settings: RolloutsSettings, book: GroupBook, judging: Judge | None
    ) -> None:
        self.gate = Gate()
        """While it is closed no trajectory begins and no request is sent."""
        self._runner = runner
        self._router = router
        self._settings = settings
        self._book = book
        self._judging = judging
        self._slots = asyncio.Semaphore(settings.max_concurrent_trajectories)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def play(self, groups: Sequence[OpenGroup]) -> None:
        """Play all samples of these groups."""
        await self._tracked(self._play_all(groups))

    async def play_instead(self, group: OpenGroup, episodes: Sequence[Episode]) -> None:
        """Play these samples of a group, in place of others."""
        await self._tracked(self._play_in_slots(group, episodes))

    async def cancel(self) -> None:
        """End what is under way; tools and environments are closed under their deadline."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tracked(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._track(task)
        await self._guarded(work)

    def _track(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:  # nobody awaits this task: who waits for groups has to hear of it
            self._book.fail(error)
        except (SystemExit, KeyboardInterrupt) as error:
            self._book.fail(TrainingStoppedError(f"code that plays or scores episodes raised {error!r}"))

    async def _play_all(self, groups: Sequence[OpenGroup]) -> None:
        work = [(group, group.next_episode()) for group in groups for _ in range(group.size)]
        if not self._settings.deterministic:
            await asyncio.gather(*(self._play_in_slot(group, episode) for group, episode in work))
            return
        size = self._settings.max_concurrent_trajectories
        for start in range(0, len(work), size):
            wave = work[start : start + size]
            leases = [await self._router.lease(episode.trajectory_id) for _, episode in wave]
            await asyncio.gather(*(self._play_in_wave(*pair, lease) for pair, lease in zip(wave, leases, strict=True)))

    async def _play_in_wave(self, group: OpenGroup, episode: Episode, lease: Lease) -> None:
        result = await self._play_leased(group, episode, lease)
        if result is not None:
            await self._judge(group, result)

    async def _play_in_slot(self, group: OpenGroup, episode: Episode) -> None:
        async with self._slots:
            await self.gate.passed()
            try:
                lease = await self._router.lease(episode.trajectory_id)
            except BoundaryError as error:
                failure = Failure(boundary=error.boundary, message=str(error))
                ending = failure.termination
                # Without a server a new sample would fare no better, so it fails in the same breath.
                while self._book.note(group, EpisodeResult(episode=episode, failure=failure, termination=ending)):
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
                result = await self._runner.run(episode, lease, self.gate)
                if result.to_judge is not None:
                    return result
                if self._book.note(group, result):
                    episode = group.next_episode()
                    # Leased before the other lease ends, so that no server takes the batch for complete.
                    following = await self._router.lease(episode.trajectory_id)
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
            self._track(asyncio.ensure_future(self._guarded(self._judge_group(group))))

    async def _judge_group(self, group: OpenGroup) -> None:
        assert self._judging is not None
        if lost := await blocking.call(lost_with_runners, group.unjudged):
            await self._play_in_slots(group, group.forget(lost))
            return
        results, group.unjudged = group.unjudged, []
        results.sort(key=lambda result: result.episode.sample)
        await self._judging.judge(results)
        await self._conclude(group, results)

    async def _conclude(self, group: OpenGroup, judged: Sequence[EpisodeResult]) -> None:
        """Book judged trajectories, and play new samples for those that failed."""
        new = [group.next_episode() for result in judged if self._book.note(group, result)]
        for _ in judged:
            self._settle(group)
        await self._play_in_slots(group, new)

    async def _play_in_slots(self, group: OpenGroup, episodes: Sequence[Episode]) -> None:
        await asyncio.gather(*(self._play_in_slot(group, episode) for episode in episodes))

    def _settle(self, group: OpenGroup) -> None:
        self._book.settle(group)
        self._judge_group_when_played(group)


async def _give_back(lease: Lease) -> None:
    try:
        await lease.close()
    except Exception:  # the server may be gone; its trajectory is over either way
        logger.warning("closing the lease of %s failed", lease.request_id, exc_info=True)
