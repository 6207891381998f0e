"""What the controller does not compute with passes it by: ids and images stay in a store, and nothing else changes."""

import gc
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray

from agentverl.protocol.column_store import Block, ColumnStore, MemoryColumnStore, blocks_of, referred
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ray_column_store import RayColumnStore
from agentverl.settings.compose import compose_words
from agentverl.single_controller.launcher import Places
from agentverl.single_controller.ray_cluster import RayInit, connect, disconnect
from agentverl.tracking.journal import read_journal
from agentverl.trainer.ppo import PPOTrainer
from agentverl.trainer.schedule import Sampled
from agentverl.trainer.stopwatch import Stopwatch
from tests.trainer.runs import SMALL, assert_each_prompt_is_in_one_step, logged

WORDS = (
    *SMALL,
    "trainer.launcher=ray",
    "trainer.total_training_steps=2",
    "trainer.test_freq=2",
    "trainer.val_before_train=false",
    "trainer.log_val_generations=2",
    "trainer.rollout_data_dir=samples",
    "trainer.n_gpus_per_node=1",
    "agent.num_workers=2",
    "actor.ppo_mini_batch_size=2",
    "actor.use_kl_loss=true",
    "actor.calculate_entropy=true",
    "algorithm.use_kl_in_reward=true",
)


class Watched(PPOTrainer):
    """A controller in this process that looks at what it is given, and at what it still holds after a step."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.steps: list[tuple[set[str], set[Block]]] = []
        """Of each step: the names of the columns that are references, and what they refer to."""

    def _learn(self, sampled: Sampled, watch: Stopwatch) -> tuple[DataProto, dict[str, float]]:
        for result in (result for group in sampled.groups for result in group.results):
            assert not any(output.prompt_ids or output.response_ids or output.messages for output in result.outputs)
        batch, metrics = super()._learn(sampled, watch)
        assert not {"prompts", "responses", "token_class"} & set(batch.batch)
        self.steps.append((set(referred(batch)), set(blocks_of(batch))))
        return batch, metrics


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    connect(RayInit(num_cpus=2, include_dashboard=False, object_store_memory=200 * 2**20))
    yield
    disconnect()


def trained(*words: str) -> Watched:
    trainer = Watched(compose_words((*WORDS, *words)))
    trainer.fit()
    return trainer


def refuse(store: ColumnStore, keys: Sequence[Any]) -> list[Any]:
    raise AssertionError("the controller fetches a column")


def references_alive() -> set[str]:
    counts = ray._private.worker.global_worker.core_worker.get_all_reference_counts()
    return {key.decode() for key in counts}


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_the_controller_never_sees_a_token_and_metrics_are_those_of_columns_sent_by_value(
    cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Places, "column_store", lambda places: MemoryColumnStore())
        by_value = trained("trainer.experiment_name=by_value")
    monkeypatch.setattr(RayColumnStore, "get", refuse)  # here, not in the processes of runners and ranks
    by_reference = trained("trainer.experiment_name=by_reference")

    assert logged(by_reference.run.path) == logged(by_value.run.path)
    references = set()
    for names, blocks in by_reference.steps:
        assert names == {"prompts", "responses", "token_class", "multi_modal_data"}
        references |= {block.key.reference.hex() for block in blocks}  # type: ignore[attr-defined]
    assert 1 < len(references) <= 2 * 16
    assert references <= references_alive()  # this test keeps them
    del blocks
    by_reference.steps.clear()
    gc.collect()
    time.sleep(0.5)
    assert not references & references_alive()
    look_at_files(by_reference.run.path)


def look_at_files(run: Path) -> None:
    """What people read of a run is complete, wherever it was written."""
    assert_each_prompt_is_in_one_step(run)
    assert {path.stem for path in (run / "journal").glob("*.jsonl")} == {"controller", "runner-rank0", "runner-rank1"}
    trajectories = list(read_journal(run / "journal"))
    assert len(trajectories) == 2 * 16 + 4
    assert all(output["prompt_ids"] and output["messages"] for one in trajectories for output in one["outputs"])
    for file, count in ((Path("samples") / "1.jsonl", 16), (run / "validation" / "2.jsonl", 4)):
        samples = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(samples) == count
        assert all(sample["input"] and sample["output"] for sample in samples)
