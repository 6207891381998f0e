"""Who scores a trajectory: the loop itself, else the environment, else the reward function of its data source."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from agentverl.deadlines import OutOfTimeError, bounded
from agentverl.errors import BadInputError, Boundary, BoundaryError, DeadlineError, InfrastructureError
from agentverl.plugins import line_of
from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.scorer import LARGEST_SCORE, as_result
from agentverl.rollout.episode import EpisodeResult, Failure
from agentverl.rollout.parts import EpisodeParts
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.rollout.stage import Stage

Judge = Callable[[], Awaitable[RewardResult]]


class Scoring:
    """Scores trajectories that did not fail; no score to be had is a failure, never a reward of 0."""

    def __init__(self, parts: EpisodeParts, settings: RunnerSettings) -> None:
        self._parts = parts
        self._settings = settings

    async def score(self, stage: Stage, result: EpisodeResult) -> None:
        """Set the result's score and components, or its failure; the score also stands in its last main sequence."""
        outputs = result.outputs
        main = ([output for output in outputs if output.role == "main"] or outputs)[-1]
        stage.show(main.messages)
        given = [output.reward_score for output in outputs if output.reward_score is not None]
        started = time.monotonic()
        rewards = [turn.reward for output in outputs for turn in output.turns if turn.reward is not None]
        wrong = [value for value in (*given[-1:], *rewards) if not abs(value) <= LARGEST_SCORE]
        if wrong:
            message = f"a turn's reward or the loop's reward_score is {wrong[0]:g}; expected at most {LARGEST_SCORE:g}"
            result.failure = Failure(boundary="agent", message=message)
            return
        if given:
            result.score = given[-1]
        else:
            await self._judge(stage, result)
        for output in outputs:
            output.reward_score = None
        main.reward_score = result.score
        main.metrics.compute_score = time.monotonic() - started

    async def _judge(self, stage: Stage, result: EpisodeResult) -> None:
        chosen = self._choose(stage, result)
        if chosen is None:
            return
        judge, boundary = chosen
        for last in (False, True):
            try:
                judged = await judge()
            except BadInputError:
                raise
            except Exception as error:  # environments and rewards may raise anything
                if not last and isinstance(error, InfrastructureError | DeadlineError):
                    await asyncio.sleep(self._settings.retry_backoff_seconds)
                    continue
                at = error.boundary if isinstance(error, BoundaryError) else boundary
                message = str(error)
                if not isinstance(error, BoundaryError):
                    message = f"{type(error).__name__}: {error}{line_of(error)}"
                result.failure = Failure(boundary=at, message=message)
                return
            result.score, result.components = judged.score, judged.components
            return

    def _choose(self, stage: Stage, result: EpisodeResult) -> tuple[Judge, Boundary] | None:
        environment, reward, settings = stage.environment, self._parts.reward, self._settings
        by_environment = environment is not None and environment.scores()
        if settings.score_from == "environment" and not by_environment:
            raise BadInputError("reward.score_from=environment, but there is no environment that defines `score`")
        prefers_function = settings.score_from == "function" or (
            settings.score_from == "auto" and settings.has_custom_reward
        )
        if by_environment and not (prefers_function and reward is not None):
            return lambda: self._ask_environment(stage), "environment"
        if reward is None:
            return None
        judged = RewardInput.of(stage.row, result.outputs, self._decode)
        return lambda: reward.score(judged), "reward"

    async def _ask_environment(self, stage: Stage) -> RewardResult:
        environment = stage.environment
        if environment is None:
            raise BadInputError("there is no environment to score the episode")
        seconds = self._settings.seconds(self._settings.environment_timeout_seconds)
        try:
            value: Any = await bounded(environment.score(), seconds)
        except OutOfTimeError as error:
            raise DeadlineError(f"{type(environment).__name__}.score gave {error}", "environment") from None
        return as_result(value, f"{type(environment).__name__}.score")

    def _decode(self, ids: list[int]) -> str:
        text: str = self._parts.template.tokenizer.decode(ids, skip_special_tokens=True)
        return text
