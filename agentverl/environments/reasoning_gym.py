"""Tasks of reasoning_gym: one dataset or a weighted mix, scored by each dataset's own verifier."""

import importlib.util
import json
from collections.abc import Iterator, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentverl import blocking
from agentverl.environments.base import Environment, EnvironmentContext, EnvironmentSettings, Observation, Task
from agentverl.environments.splits import HELD_OUT_SHARE, split_of
from agentverl.errors import PluginError, SettingsError
from agentverl.rewards.final_answer import Extraction
from agentverl.rewards.reasoning_gym import score_entry
from agentverl.settings.seeds import derive_seed

if importlib.util.find_spec("reasoning_gym") is None:
    raise PluginError("the environment reasoning_gym needs `pip install 'agentverl[reasoning-gym]'`")

_LARGEST_SEED = 1 << 31


class DatasetShare(BaseModel):
    """One dataset of a mix."""

    model_config = ConfigDict(extra="forbid")

    name: str
    weight: float = Field(1.0, gt=0)
    config: dict[str, Any] = {}


class ReasoningGymSettings(EnvironmentSettings):
    """`dataset` with its `config`, or `datasets` for a mix."""

    dataset: str | None = None
    config: dict[str, Any] = {}
    """The dataset's own settings, such as min_terms."""
    datasets: list[DatasetShare] = []
    instruction: str = ""
    """Put after each question, for instance how to mark the answer."""
    extraction: Extraction = "auto"
    """Where the answer stands: tag (<answer>), boxed, number (the last), line (the last), text, or auto."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.dataset is None) == (not self.datasets):
            raise ValueError("set either dataset (with config) or datasets (a list of {name, weight, config})")
        if self.datasets and self.config:
            raise ValueError("config belongs to dataset; in a mix each of datasets has its own")
        return self

    @property
    def shares(self) -> list[DatasetShare]:
        """The datasets with their weights."""
        return self.datasets or [DatasetShare(name=str(self.dataset), config=self.config)]


class ReasoningGym(Environment):
    """Problems that reasoning_gym makes up; a problem's text decides whether it is held out."""

    Settings = ReasoningGymSettings

    @classmethod
    def tasks(cls, split: str, size: int, seed: int, **settings: Any) -> Sequence[Task]:
        chosen = ReasoningGymSettings(**settings)
        made: list[Task] = []
        # Twice as many as are needed on average; no more, since some datasets prepare all their problems at once.
        tries = 200 + 2 * size * (HELD_OUT_SHARE if split == "val" else 2)
        for entry in _entries(chosen, tries, derive_seed("reasoning_gym", split, seed)):
            if len(made) == size:
                break
            if split_of(entry["question"]) == split:
                made.append(_task(entry, chosen.instruction))
        if len(made) < size:
            names = ", ".join(share.name for share in chosen.shares)
            raise SettingsError(
                f"{names} gave {len(made)} problems in split {split!r}, fewer than the {size} asked for"
            )
        return made

    async def reset(self, context: EnvironmentContext, *, entry: str, question: str) -> Observation:
        self.entry: dict[str, Any] = json.loads(entry)
        return Observation(messages=[{"role": "user", "content": question}])

    async def score(self) -> dict[str, float]:
        name = self.entry["metadata"]["source_dataset"]
        answer = self.context.final_answer
        result = await blocking.call(score_entry, name, self.entry, answer, self.settings.extraction)
        return {"score": result["score"], "acc": result["acc"]}


def _entries(settings: ReasoningGymSettings, size: int, seed: int) -> Iterator[dict[str, Any]]:
    """`size` problems, made when asked for; the datasets are drawn by weight.

    Raises:
        SettingsError: a dataset does not exist or refuses its config.
    """
    import reasoning_gym  # seconds of imports: only where it is used

    shares = settings.shares
    specs = [reasoning_gym.composite.DatasetSpec(share.name, share.weight, share.config) for share in shares]
    try:
        mix = reasoning_gym.create_dataset("composite", seed=seed % _LARGEST_SEED, size=size, datasets=specs)
    except (ValueError, TypeError, AssertionError) as error:
        names = ", ".join(share.name for share in shares)
        raise SettingsError(f"agent.environment_kwargs: reasoning_gym refuses {names}: {error}") from None
    return (mix[index] for index in range(size))


def _task(entry: dict[str, Any], instruction: str) -> Task:
    question = f"{entry['question']}\n{instruction}" if instruction else entry["question"]
    return Task(
        # In JSON: metadata differ from dataset to dataset, and must survive a parquet file and another process.
        fields={"entry": json.dumps(entry, default=str), "question": question},
        prompt=[{"role": "user", "content": question}],
        ground_truth=entry["answer"],
        data_source=f"reasoning_gym/{entry['metadata']['source_dataset']}",
    )
