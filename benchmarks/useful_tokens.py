"""Tokens that go through the model over tokens that have to; the last line is JSON.

Usage: python benchmarks/useful_tokens.py [--cases quickstart,tool_episodes] [--steps 3]

Forwarded are the tokens of every prefill and decoding step of the rollout server and of every training pass. Useful is
each token of every sequence once in rollout and once in the training pass. A ratio is forwarded over useful, and below
1 where samples of a prompt share its computation, or where sequences without an advantage are not trained on.

- `quickstart`: the nano model on the calculator tasks, as `agentverl train` runs it;
- `tool_episodes`: three turns of log-normal lengths (median 32, sigma 1.0, at most 256) with tool results between them.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison import Case, report
from tiny_model import build, write_rows

from agentverl.settings.compose import compose
from agentverl.trainer.ppo import PPOTrainer

SIDES = Path(__file__).parent / "sides"
MOST = 1.05
QUIET = ["trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1", "trainer.logger=[file]"]


@dataclass
class Tokens:
    """Tokens forwarded so far, in rollout and in training, and those of the sequences."""

    rollout: int
    training: int
    useful: int = 0

    @classmethod
    def forwarded(cls, trainer: PPOTrainer) -> "Tokens":
        """What server and engine count."""
        session = trainer.session
        workers: Any = session.workers
        health = session.thread.run(workers.replica().health())
        return cls(health["forwarded_tokens"], workers.workers[0].actor.tokens_forwarded)


def measure(words: list[str], steps: int) -> Tokens:
    """Forwarded and useful tokens of some steps."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = PPOTrainer(compose(None, [f"trainer.default_local_dir={folder}/run", *QUIET, *words]))
        try:
            trainer.begin()
            before = Tokens.forwarded(trainer)
            useful = sum(int(trainer.train_step()["perf/total_num_tokens"]) for _ in range(steps))
            after = Tokens.forwarded(trainer)
        finally:
            trainer.end()
    return Tokens(after.rollout - before.rollout, after.training - before.training, useful)


def quickstart(folder: Path, steps: int) -> Tokens:
    """The recipe as it is."""
    return measure([], steps)


def tool_episodes(folder: Path, steps: int) -> Tokens:
    """8 samples of 8 prompts, three turns each, of the model with 3.2 M random parameters."""
    words = {
        "model.path": build(folder / "tiny"),
        "data.train_files": write_rows(folder / "rows.jsonl", 64),
        "data.train_batch_size": 8,
        "data.max_prompt_length": 1024,
        "data.max_response_length": 1024,
        "agent.environment": "null",
        "agent.default_agent_loop": f"{SIDES / 'log_normal_agent.py'}:LogNormalAgent",
        "multi_turn.tool_config_path": "null",
        "multi_turn.function_tool_path": SIDES / "agent_tool.py",
        "multi_turn.max_assistant_turns": "null",
        "rollout.ignore_eos": "true",
        "actor.ppo_mini_batch_size": 8,
        "reward.custom_reward_function.path": SIDES / "digit_share.py",
        "trainer.total_training_steps": 1000,
    }
    return measure([f"{key}={value}" for key, value in words.items()], steps)


CASES = {"quickstart": quickstart, "tool_episodes": tool_episodes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="which workloads, separated by commas")
    parser.add_argument("--steps", type=int, default=3, help="training steps of each")
    arguments = parser.parse_args()
    chosen = arguments.cases.split(",")
    if not set(chosen) <= CASES.keys():
        parser.error(f"--cases={arguments.cases}: expected some of {','.join(CASES)}")
    cases = []
    for name in chosen:
        with tempfile.TemporaryDirectory() as folder:
            tokens = CASES[name](Path(folder), arguments.steps)
        print(  # noqa: T201
            f"{name}: {tokens.useful} tokens; forwarded in rollout {tokens.rollout / tokens.useful:.3f}, "
            f"in training {tokens.training / tokens.useful:.3f} of that"
        )
        ratio = (tokens.rollout + tokens.training) / (2 * tokens.useful)
        cases.append(Case.of_costs(name, ratio, 1.0, "tokens forwarded per useful token", round(1 / MOST, 4)))
    report(cases)


if __name__ == "__main__":
    main()
