"""What the reward manager has to judge, judged: after the episode, beside the rollout, alone or with its group."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from agentverl.errors import BadInputError, BoundaryError
from agentverl.rewards.base import RewardInput, RewardManager, RewardResult
from agentverl.rewards.scorer import LARGEST_SCORE
from agentverl.rollout.episode import EpisodeResult, Failure
from agentverl.rollout.keeper import Keeper
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.rollout.scoring import attempted, failure_of, main_output


class Judge(Protocol):
    """Judges trajectories whose `to_judge` is set."""

    @property
    def takes_groups(self) -> bool:
        """Whether a prompt's trajectories are judged together."""
        ...

    async def judge(self, results: Sequence[EpisodeResult]) -> None:
        """Set scores and components, or failures at the boundary `reward`."""
        ...


class Judging:
    """Asks the reward manager of this process, writes down what it says, and keeps what was judged."""

    def __init__(self, reward: RewardManager, settings: RunnerSettings, keeper: Keeper) -> None:
        self._reward = reward
        self._settings = settings
        self._keeper = keeper

    @property
    def takes_groups(self) -> bool:
        """Whether a prompt's trajectories are judged together."""
        return self._reward.scores_groups

    async def judge(self, results: Sequence[EpisodeResult]) -> None:
        """Set scores and components, or failures at the boundary `reward`.

        Raises:
            BadInputError: nothing can be scored so.
        """
        started = time.monotonic()
        if self.takes_groups:
            for result, verdict in zip(results, await self._ask_group(results), strict=True):
                self._write(result, verdict)
        else:
            for result in results:
                ask = partial(self._ask, result)
                self._write(result, await attempted(ask, "reward", result, self._settings))
        for result in results:
            result.to_judge = None
            main_output(result).metrics.compute_score += time.monotonic() - started
            self._keeper.keep(result)

    async def _ask(self, result: EpisodeResult) -> RewardResult:
        return await self._reward.score(_input(result))

    async def _ask_group(self, results: Sequence[EpisodeResult]) -> Sequence[RewardResult | Exception | None]:
        inputs = [_input(result) for result in results]
        try:
            verdicts = await self._reward.score_group(inputs)
        except BadInputError:
            raise
        except Exception as error:  # a manager may raise anything
            return [error] * len(inputs)
        if len(verdicts) != len(inputs):
            wrong = f"{type(self._reward).__name__}.score_group gave {len(verdicts)} results for {len(inputs)}"
            return [BoundaryError(wrong, "reward")] * len(inputs)
        return verdicts

    def _write(self, result: EpisodeResult, verdict: RewardResult | Exception | None) -> None:
        if isinstance(verdict, RewardResult) and not abs(verdict.score) <= LARGEST_SCORE:
            gave = f"{type(self._reward).__name__} gave the score {verdict.score:g}"
            verdict = BoundaryError(f"{gave}; expected a finite number of at most {LARGEST_SCORE:g}", "reward")
        if isinstance(verdict, Exception):
            result.failure = failure_of(verdict, "reward")
        if isinstance(verdict, RewardResult):
            result.score, result.components = verdict.score, verdict.components
            weigh_turns(result, verdict.turn_weights)
        settle(result)


def _input(result: EpisodeResult) -> RewardInput:
    assert isinstance(result.to_judge, RewardInput), "a result of another process is fetched before it is judged"
    return result.to_judge


def fail_unjudged(result: EpisodeResult, message: str) -> None:
    """Fail a trajectory that can no longer be judged."""
    result.to_judge, result.failure = None, Failure(boundary="model", message=message)
    settle(result)


def weigh_turns(result: EpisodeResult, weights: dict[str, float]) -> None:
    """Multiply the turn rewards of these names; the journal keeps what they were under `rewards`."""
    if not weights:
        return
    for output in result.outputs:
        for turn in output.turns:
            parts = turn.rewards_by_name()
            if parts:
                turn.rewards = parts
                turn.reward = sum(weights.get(name, 1.0) * value for name, value in parts.items())


def settle(result: EpisodeResult) -> None:
    """Let the sequences of a trajectory say what became of it: its failure, else its score on the last main one."""
    failure: Failure | None = result.failure
    if failure is not None:
        result.termination = failure.termination
        result.score = None
        for output in result.outputs:
            output.termination = failure.termination
    if result.outputs:
        for output in result.outputs:
            output.reward_score = None
        main_output(result).reward_score = result.score
