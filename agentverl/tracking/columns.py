"""The few metrics that a person watches while a run trains: their titles, names and forms."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agentverl.tracking.base import Metrics


@dataclass(frozen=True, slots=True)
class Column:
    """One watched metric; `pattern` is its name, or stands for the first name that fits."""

    title: str
    pattern: str
    form: str = ".3f"

    def found(self, metrics: Metrics) -> tuple[str, float] | None:
        """The name and value of the metric, where a step has it."""
        if self.pattern in metrics:
            return self.pattern, metrics[self.pattern]
        return next(((name, value) for name, value in metrics.items() if fnmatchcase(name, self.pattern)), None)

    def written(self, metrics: Metrics) -> str:
        """The value for a table, empty where a step lacks it."""
        found = self.found(metrics)
        return "" if found is None else format(found[1], self.form)


COLUMNS: Sequence[Column] = (
    Column("reward", "critic/score/mean"),
    Column("held-out", "val-core/*mean@*"),
    Column("loss", "train/loss"),
    Column("val loss", "val/loss"),
    Column("turns", "num_turns/mean", ".1f"),
    Column("calls", "tool_call_counts/mean", ".2f"),
    Column("tokens", "response_length/mean", ".1f"),
    Column("entropy", "actor/entropy*"),
    Column("kl", "actor/ppo_kl", ".1e"),
    Column("grad", "actor/grad_norm", ".2f"),
    Column("s/step", "perf/time_per_step", ".2f"),
    Column("tokens/s", "perf/throughput", ",.0f"),
)
