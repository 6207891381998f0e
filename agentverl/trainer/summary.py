"""How a run ended: `summary.json`, and what is said to the person who watched."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.panel import Panel


@dataclass(frozen=True, slots=True)
class ValidationPoint:
    """Held-out success after a step."""

    step: int
    success: float
    tool_call_rate: float


@dataclass(frozen=True, slots=True)
class Summary:
    """`summary.json`: held-out success and tool-call rate before and after, seconds and memory that it took.

    What was not validated before the first step, or after any, is None there.
    """

    validation_before: float | None
    validation_after: float | None
    tool_call_rate_before: float | None
    tool_call_rate_after: float | None
    wall_seconds: float
    """Since the process started; of a resumed run, all its processes added."""
    peak_memory_bytes: int
    """The most resident memory that the run's processes had at one time."""
    steps: int

    @classmethod
    def of(
        cls, validations: Sequence[ValidationPoint], *, wall_seconds: float, peak_memory_bytes: int, steps: int
    ) -> "Summary":
        before = next((point for point in validations if point.step == 0), None)
        after = validations[-1] if validations and validations[-1].step > 0 else None
        return cls(
            validation_before=before.success if before else None,
            validation_after=after.success if after else None,
            tool_call_rate_before=before.tool_call_rate if before else None,
            tool_call_rate_after=after.tool_call_rate if after else None,
            wall_seconds=round(wall_seconds, 3),
            peak_memory_bytes=peak_memory_bytes,
            steps=steps,
        )

    def as_dict(self) -> dict[str, float | int | None]:
        """As it is written."""
        return asdict(self)


def wilson_interval(share: float, count: int, deviations: float = 1.959964) -> tuple[float, float]:
    """The interval that a share of `count` trials leaves for the true one; 95 % by default (Wilson 1927)."""
    if count == 0:
        return 0.0, 1.0
    square = deviations**2
    centre = (share + square / (2 * count)) / (1 + square / count)
    half = deviations / (1 + square / count) * (share * (1 - share) / count + square / (4 * count**2)) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


def say_resumed(run: Path, step: int, console: Console) -> None:
    """Say after which step an unfinished run goes on."""
    console.print(f"{run} goes on after step {step}", markup=False, highlight=False, soft_wrap=True)


def say_goodbye(summary: Summary, run: Path, *, quickstart: bool, console: Console) -> None:
    """Say what came out, where everything lies, and what to try next."""
    lines = []
    if summary.validation_before is not None and summary.validation_after is not None:
        lines.append(
            f"Held-out success [bold]{summary.validation_before:.3f} → {summary.validation_after:.3f}[/bold], "
            f"tool called in {summary.tool_call_rate_before:.2f} → {summary.tool_call_rate_after:.2f} of the episodes"
        )
    elif summary.validation_before is not None:
        lines.append(
            f"Held-out success {summary.validation_before:.3f} before; not measured since (trainer.test_freq validates)"
        )
    elif summary.validation_after is not None:
        lines.append(f"Held-out success [bold]{summary.validation_after:.3f}[/bold]; not measured before")
    lines.append(
        f"{summary.steps} steps in {summary.wall_seconds:.0f} s, at most {summary.peak_memory_bytes / 2**20:,.0f} MiB"
    )
    lines += ["", "[bold]Where it lies[/bold]"]
    places = {
        "curves.png": "reward and held-out success over the steps",
        "metrics.jsonl": "all metrics, a line a step",
        "summary.json": "this summary",
        "journal": "every trajectory, token by token",
        "checkpoints": "the policy",
    }
    lines += [f"  {run / name}  [dim]{what}[/dim]" for name, what in places.items() if (run / name).exists()]
    lines += ["", "[bold]Try next[/bold]", f"  agentverl show {run}  [dim]open its trajectories[/dim]"]
    if quickstart:
        lines += [
            "  agentverl train trainer.seed=1  [dim]another seed[/dim]",
            "  agentverl train multi_turn.function_tool_path=my_tools.py  [dim]tools of your own[/dim]",
            "  agentverl train --dry-run  [dim]every key and its value[/dim]",
        ]
    console.print(Panel("\n".join(lines), title="Done", expand=False))
