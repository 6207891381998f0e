"""Who scores a trajectory: the loop itself, else the environment, else the reward manager."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from agentverl.deadlines import OutOfTimeError, bounded
from agentverl.errors import BadInputError, Boundary, BoundaryError, DeadlineError, InfrastructureError
from agentverl.plugins import line_of
from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.scorer import LARGEST_SCORE, as_result
from agentverl.rollout.episode import EpisodeResult, Failure
from agentverl.rollout.parts import EpisodeParts
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.rollout.stage import Stage
from agentverl.trajectory import AgentLoopOutput

T = TypeVar("T")


class Scoring:
    """Scores trajectories that did not fail, as far as it takes their environment.

    What the reward manager has to judge is left in the result's `to_judge`, because that needs neither environment nor
    server. No score to be had is a failure, never a reward of 0.
    """

    def __init__(self, parts: EpisodeParts, settings: RunnerSettings) -> None:
        self._parts = parts
        self._settings = settings

    async def score(self, stage: Stage, result: EpisodeResult) -> None:
        """Set the result's score, its failure, or what there is to judge."""
        outputs = result.outputs
        stage.show(main_output(result).messages)
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
            await self._choose(stage, result)
        main_output(result).metrics.compute_score = time.monotonic() - started

    async def _choose(self, stage: Stage, result: EpisodeResult) -> None:
        environment, reward, settings = stage.environment, self._parts.reward, self._settings
        by_environment = environment is not None and environment.scores()
        if settings.score_from == "environment" and not by_environment:
            raise BadInputError("reward.score_from=environment, but there is no environment that defines `score`")
        prefers_function = settings.score_from == "function" or (
            settings.score_from == "auto" and settings.has_custom_reward
        )
        scored: RewardResult | None = None
        judges = reward is not None and (prefers_function or not by_environment)
        if by_environment and (not judges or (reward is not None and reward.asks_environment)):
            scored = await attempted(lambda: self._ask_environment(stage), "environment", result, settings)
            if scored is None:
                return
            result.environment_score = scored.score
        if judges:
            result.to_judge = RewardInput.of(stage.row, result.outputs, self._decode)
            result.to_judge.environment = scored
        elif scored is not None:
            result.score, result.components = scored.score, scored.components

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


async def attempted(
    ask: Callable[[], Awaitable[T]], boundary: Boundary, result: EpisodeResult, settings: RunnerSettings
) -> T | None:
    """What `ask` gives; else None, with the result's failure. What the policy cannot have caused is tried twice."""
    for last in (False, True):
        try:
            return await ask()
        except BadInputError:
            raise
        except Exception as error:  # environments and rewards may raise anything
            if not last and isinstance(error, InfrastructureError | DeadlineError):
                await asyncio.sleep(settings.retry_backoff_seconds)
                continue
            result.failure = failure_of(error, boundary)
            break
    return None


def failure_of(error: Exception, boundary: Boundary) -> Failure:
    """The failure that an error means; `boundary` where it does not say its own."""
    if isinstance(error, BoundaryError):
        return Failure(boundary=error.boundary, message=str(error))
    return Failure(boundary=boundary, message=f"{type(error).__name__}: {error}{line_of(error)}")


def main_output(result: EpisodeResult) -> AgentLoopOutput:
    """The last sequence of the agent itself, which carries the score; of any role where it has none."""
    return ([output for output in result.outputs if output.role == "main"] or result.outputs)[-1]
