"""`data.*`: the prompts, from files or from the environment's tasks."""

from typing import Any, Literal

from pydantic import Field

from agentverl.settings.section import Names, Section


class DataSettings(Section):
    """Where prompts come from, how many make a step, and how long they and their answers may be."""

    train_files: Names = []
    """Parquet, JSON or JSONL files in verl's columns; without any, tasks come from `agent.environment`."""
    val_files: Names = []
    """Held-out files; without any, held-out tasks come from `agent.environment`."""
    train_size: int = Field(8192, gt=0)
    """Tasks that the environment makes for training, where there are no `train_files`."""
    val_size: int = Field(256, gt=0)
    """Held-out tasks that the environment makes, where there are no `val_files`."""
    train_max_samples: int = Field(-1, ge=-1)
    """Rows used of `train_files` (a random choice where `shuffle`); -1 means all."""
    val_max_samples: int = Field(-1, ge=-1)
    """Rows used of `val_files`; -1 means all."""
    prompt_key: str = "prompt"
    """The column that holds the prompt, a list of messages."""
    reward_fn_key: str = "data_source"
    """The column that chooses the reward function."""
    max_prompt_length: int = Field(512, gt=0)
    """Tokens of the first prompt, tools included."""
    max_response_length: int = Field(512, gt=0)
    """Tokens after the first prompt, over all turns, tool results included."""
    train_batch_size: int = Field(1024, gt=0)
    """Prompts a step."""
    shuffle: bool = True
    seed: int | None = None
    """Seed of the order of prompts; null means `trainer.seed`."""
    validation_shuffle: bool = False
    filter_overlong_prompts: bool = False
    """Drop rows whose prompt is longer than `max_prompt_length`; the same as `truncation=drop`."""
    truncation: Literal["error", "left", "right", "drop"] = "error"
    """What happens to a prompt longer than `max_prompt_length`."""
    apply_chat_template_kwargs: dict[str, Any] = {}
    """Extra arguments of the chat template, such as `enable_thinking`."""

    @property
    def overlong_policy(self) -> Literal["error", "left", "right", "drop"]:
        """What happens to a prompt that is too long, from both keys that say so."""
        return "drop" if self.filter_overlong_prompts else self.truncation
