"""The runner owns episodes: it resolves the row, opens, plays under the deadline, checks, scores, and closes."""

import asyncio
import itertools
import random
import time

from agentverl.agent_loops.cutting import TokenCutter
from agentverl.errors import BoundaryError
from agentverl.rollout.attempt import Attempt
from agentverl.rollout.client import Gate, HeldServer
from agentverl.rollout.episode import Episode, EpisodeResult
from agentverl.rollout.judging import Judging
from agentverl.rollout.parts import EpisodeParts, Workshop
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.rollout.stage import Worlds
from agentverl.rollout.turnstile import Turnstile


class EpisodeRunner:
    """Plays episodes; `setup` before the first, `teardown` after the last.

    An infrastructure failure is tried again with backoff, `max_retries` times, with the same seeds; then the trajectory
    is failed. What the policy or the loop's own code caused is not tried again.
    """

    def __init__(self, settings: RunnerSettings, parts: EpisodeParts) -> None:
        self.settings = settings
        self.parts = parts
        self.worlds = Worlds(settings.environment, settings.environment_kwargs)
        cutter = TokenCutter(parts.template.tokenizer)
        vocabulary = max(parts.template.tokenizer.get_vocab().values()) + 1
        self._workshop = Workshop(settings, parts, self.worlds, cutter, Turnstile(), vocabulary)
        self._judging = None if parts.reward is None else Judging(parts.reward, settings, parts.keeper)
        self._defers_judging = False

    def defer_judging(self) -> Judging | None:
        """Leave to the caller, from now on, what can be judged after an episode; None where it belongs into it.

        What is judged is then also kept.

        Where servers work in rounds, a judged trajectory must not come back in the middle of one; groups are judged
        outside of episodes in any case, because each would wait for the others.
        """
        if self._judging is None or (self.settings.deterministic and not self._judging.takes_groups):
            return None
        self._defers_judging = True
        return self._judging

    async def setup(self) -> None:
        """Make what tools share; environments are set up when the first row needs them."""
        await self.parts.toolset.setup()

    async def teardown(self) -> None:
        """Give back what tools, environments and the reward manager hold."""
        await self.parts.toolset.teardown()
        await self.worlds.teardown()
        if self.parts.reward is not None:
            await self.parts.reward.close()

    async def run(self, episode: Episode, lease: HeldServer, gate: Gate) -> EpisodeResult:
        """Play one episode on the leased server.

        Raises:
            BadInputError: the row, a plugin or a setting cannot work; not the trajectory's fault, so not its outcome.
        """
        result = await self._played(episode, lease, gate)
        if result.to_judge is None:
            self.parts.keeper.keep(result)
        elif not self._defers_judging:
            assert self._judging is not None
            await self._judging.judge([result])
        return result

    async def _played(self, episode: Episode, lease: HeldServer, gate: Gate) -> EpisodeResult:
        started = time.monotonic()
        await self._workshop.turnstile.passed()
        for attempt in itertools.count():
            result = await Attempt(self._workshop, episode, lease, gate).run()
            result.attempts = attempt + 1
            result.seconds = time.monotonic() - started
            failure = result.failure
            if failure is None or not failure.retriable or attempt >= self.settings.max_retries:
                return result
            # Jitter only spreads the load: what a retry samples depends on its seeds.
            await asyncio.sleep(self.settings.retry_backoff_seconds * 2**attempt * random.uniform(0.5, 1.5))
            if failure.boundary == "model":
                try:
                    await lease.renew()
                except BoundaryError:
                    return result
        raise AssertionError("unreachable: the last attempt returns")
