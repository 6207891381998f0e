"""Validation: the held-out prompts rolled out with their own sampling, and what came of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentverl.rewards.base import numbers
from agentverl.rollout.episode import EpisodeResult, Group
from agentverl.trainer.data_metrics import termination_metrics
from agentverl.trainer.validation_metrics import ValidationSample, validation_metrics


class ValidationRollouts(Protocol):
    """What validation asks of the rollouts."""

    def submit(self, rows: Sequence[Mapping[str, Any]], n: int, *, validation: bool) -> None: ...
    def next_groups(self, count: int, max_staleness: int | None = None, *, validation: bool) -> list[Group]: ...


@dataclass(frozen=True, slots=True)
class ValidationOutcome:
    """One validation: its metrics, the mean of its core variable, and the share of episodes that called a tool."""

    success: float
    tool_call_rate: float
    metrics: dict[str, float] = field(default_factory=dict)
    results: list[EpisodeResult] = field(default_factory=list)


def validate(
    rollouts: ValidationRollouts, rows: Sequence[Mapping[str, Any]], samples: int, step: int
) -> ValidationOutcome:
    """Roll out each held-out row `samples` times.

    A failed sample counts as unsolved, so that failures cannot raise a result; `acc_success_only` leaves them out.
    """
    named = [{**row, "uid": f"validation-{step}-{number}"} for number, row in enumerate(rows)]
    rollouts.submit(named, samples, validation=True)
    groups = rollouts.next_groups(len(named), validation=True)
    return outcome_of([result for group in groups for result in (*group.results, *group.failures)])


def outcome_of(results: list[EpisodeResult]) -> ValidationOutcome:
    """Metrics of validated trajectories."""
    core = "acc" if any("acc" in _numbers(result) for result in results) else "reward"
    samples = [_sample(result, core) for result in results]
    metrics = validation_metrics(samples)
    solved = [sample.values[core] for sample in samples]
    if any(result.failed for result in results):
        kept = [sample for sample, result in zip(samples, results, strict=True) if not result.failed]
        metrics["val-aux/acc_success_only"] = _mean(sample.values[core] for sample in kept)
    turns = [float(result.outputs[0].num_turns) for result in results if result.outputs]
    if turns:
        metrics |= {
            "val-aux/num_turns/mean": _mean(turns),
            "val-aux/num_turns/max": max(turns),
            "val-aux/num_turns/min": min(turns),
        }
    tool_call_rate = _mean(float(_calls(result) > 0) for result in results)
    metrics["val-aux/tool_call_rate"] = tool_call_rate
    metrics |= termination_metrics([result.termination for result in results], prefix="val-aux")
    return ValidationOutcome(_mean(solved), tool_call_rate, metrics, results)


def dump_rows(results: Iterable[EpisodeResult], step: int) -> list[dict[str, Any]]:
    """verl's dump of samples: one object with input, output, gts, score, step and the reward's components each."""
    rows = []
    for result in results:
        prompt, response = result.texts or ("", "")
        rows.append(
            {
                "input": prompt,
                "output": response,
                "gts": (result.episode.row.get("reward_model") or {}).get("ground_truth"),
                "score": result.score,
                "step": step,
                "termination": str(result.termination),
                **result.components,
            }
        )
    return rows


def _sample(result: EpisodeResult, core: str) -> ValidationSample:
    values = {"reward": 0.0, core: 0.0} if result.failed else _numbers(result)
    prediction = result.components.get("pred")
    return ValidationSample(
        uid=result.episode.uid,
        data_source=str(result.episode.row.get("data_source") or "unknown"),
        values=values,
        prediction=None if prediction is None else str(prediction),
    )


def _numbers(result: EpisodeResult) -> dict[str, float]:
    return {"reward": result.score or 0.0, **numbers(result.components)}


def _calls(result: EpisodeResult) -> int:
    return sum(int(output.extra_fields.get("num_tool_calls", 0)) for output in result.outputs)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
