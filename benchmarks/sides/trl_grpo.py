"""Side of `step_vs_trl`: TRL's GRPOTrainer, one step a turn. Runs in a virtual environment with TRL."""

import sys
import time
from typing import Any

import datasets
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from turns import answer, commands

MODEL, ROWS, PROMPTS, MICRO_BATCH = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
RECOMPUTES = sys.argv[6] == "recomputing"
COMPLETIONS, SAMPLES, NEW_TOKENS = PROMPTS * 8, 8, 64


def digit_share(completions: list[Any], **_: Any) -> list[float]:
    texts = [completion[0]["content"] for completion in completions]
    return [sum(character.isdigit() for character in text) / max(len(text), 1) for text in texts]


class Turns(TrainerCallback):
    """Waits for a command before each step and answers after it."""

    def __init__(self) -> None:
        self.commands = commands()
        self.generation_seconds = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if next(self.commands, None) is None:
            control.should_training_stop = True
            sys.exit(0)
        self.generation_seconds = 0.0
        self.start = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        seconds = time.perf_counter() - self.start
        answer({"seconds": seconds, "tokens": COMPLETIONS * NEW_TOKENS, "generation_seconds": self.generation_seconds})


def main() -> None:
    turns = Turns()
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=digit_share,
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        train_dataset=datasets.load_dataset("json", data_files=ROWS, split="train").select_columns(["prompt"]),
        callbacks=[turns],
        args=GRPOConfig(
            output_dir="/tmp/trl-benchmark",
            per_device_train_batch_size=MICRO_BATCH,
            gradient_accumulation_steps=COMPLETIONS // MICRO_BATCH,
            num_generations=SAMPLES,
            max_completion_length=NEW_TOKENS,
            generation_kwargs={"min_new_tokens": NEW_TOKENS},
            beta=0.0,
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            max_steps=10_000,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=RECOMPUTES,
        ),
    )
    generate = trainer._generate

    def timed(*arguments: Any, **keywords: Any) -> Any:
        start = time.perf_counter()
        try:
            return generate(*arguments, **keywords)
        finally:
            turns.generation_seconds += time.perf_counter() - start

    trainer._generate = timed
    trainer.train()


if __name__ == "__main__":
    main()
