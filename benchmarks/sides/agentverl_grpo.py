"""Side of `step_vs_trl`: agentverl's whole step, from prompts in a file to new weights in the rollout server."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from turns import serve

from agentverl import freed_memory

MODEL, ROWS, PROMPTS, MICRO_BATCH, DTYPE = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
RECOMPUTES = sys.argv[6] == "recomputing"
SAMPLES, NEW_TOKENS = 8, 64

RECIPE = f"""
model:
  path: {MODEL}
  enable_gradient_checkpointing: {RECOMPUTES}
data:
  train_files: {ROWS}
  train_batch_size: {PROMPTS}
  max_prompt_length: 128
  max_response_length: {NEW_TOKENS}
rollout:
  n: {SAMPLES}
  ignore_eos: true
agent:
  default_agent_loop: single_turn_agent
actor:
  ppo_mini_batch_size: {PROMPTS}
  ppo_micro_batch_size_per_gpu: {MICRO_BATCH}
  optim:
    lr: 1.0e-5
  fsdp_config:
    dtype: {DTYPE}
algorithm:
  adv_estimator: grpo
reward:
  custom_reward_function:
    path: {Path(__file__).with_name("digit_share.py")}
trainer:
  total_training_steps: 1000000
  test_freq: -1
  save_freq: -1
  val_before_train: false
  logger: [file]
"""


def main() -> None:
    freed_memory.keep()  # before what starts threads is imported, as `agentverl train` does
    from agentverl.settings.compose import compose
    from agentverl.trainer.ppo import PPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text(RECIPE)
        trainer = PPOTrainer(compose(recipe, [f"trainer.default_local_dir={folder}/run"]))
        trainer.begin()

        def turn() -> dict[str, Any]:
            metrics = trainer.train_step()
            assert metrics["response_length/min"] == NEW_TOKENS
            return {
                "seconds": metrics["timing_s/step"],
                "tokens": PROMPTS * SAMPLES * NEW_TOKENS,
                "generation_seconds": metrics["timing_s/gen"],
                "training_seconds": metrics["timing_s/update_actor"],
            }

        try:
            serve(turn)
        finally:
            trainer.end()


if __name__ == "__main__":
    main()
