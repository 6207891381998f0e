"""Checkpoints of many ranks: taken up by any number of them, and never trusted when a rank died."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentverl.engines.settings import OptimizerSettings
from agentverl.errors import RunFolderError
from agentverl.protocol.data_proto import DataProto
from tests.engines.ranks import World, on_ranks
from tests.engines.saved import saved_tensors
from tests.engines.test_packed_exactness import weighted_loss
from tests.engines.tiny_models import batch_of, engine_of

LENGTHS = [(3, 9), (7, 2), (4, 30), (5, 12)]
SETTINGS = OptimizerSettings(lr=1e-2, lr_scheduler_type="cosine", lr_warmup_steps=1, total_training_steps=8)


def my_rows() -> DataProto:
    size, rank = (int(os.environ.get(name, default)) for name, default in (("WORLD_SIZE", "1"), ("RANK", "0")))
    return batch_of(LENGTHS).chunk(size)[rank]


def steps(engine: Any, count: int) -> list[dict[str, float]]:
    return [
        engine.train_batch(my_rows(), weighted_loss, calculate_entropy=True) | {"lr": engine.lr_scheduler_step()}
        for _ in range(count)
    ]


def begin(folder: Path, asynchronous: bool = False) -> list[dict[str, float]]:
    """Two steps, a checkpoint, and the metrics of two more."""
    engine = engine_of("llama", optimizer=SETTINGS)
    steps(engine, 2)
    engine.save_checkpoint(folder, ["model", "optimizer", "extra", "hf_model"], asynchronous=asynchronous)
    metrics = steps(engine, 2)
    engine.wait_for_checkpoint()
    return metrics


def go_on(folder: Path) -> list[dict[str, float]]:
    engine = engine_of("llama", optimizer=SETTINGS, seed=1)
    engine.load_checkpoint(folder)
    return steps(engine, 2)


@pytest.mark.parametrize(("saving", "loading"), [(2, 4), (4, 1), (1, 2)])
def test_a_checkpoint_is_taken_up_by_another_number_of_ranks(tmp_path: Path, saving: int, loading: int) -> None:
    expected = begin(tmp_path) if saving == 1 else on_ranks(saving, begin, tmp_path)[0]
    ours = go_on(tmp_path) if loading == 1 else on_ranks(loading, go_on, tmp_path)[0]
    for metrics, of_undisturbed in zip(ours, expected, strict=True):
        assert metrics == pytest.approx(of_undisturbed, rel=1e-4)


def test_the_same_ranks_go_on_bit_by_bit_from_a_save_beside_training(tmp_path: Path) -> None:
    assert on_ranks(2, begin, tmp_path, True) == on_ranks(2, go_on, tmp_path)
    assert len(list(tmp_path.glob("*.distcp"))) == 2


def test_ranks_export_the_whole_model(tmp_path: Path) -> None:
    on_ranks(2, begin, tmp_path)
    loaded = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "huggingface").named_parameters())
    saved = saved_tensors(tmp_path, "model/")
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in saved.items())


def foreign(folder: Path) -> None:
    with pytest.raises(RunFolderError, match="another model"):
        engine_of("qwen2").load_checkpoint(folder)


def test_a_checkpoint_of_another_model_is_refused_on_all_ranks(tmp_path: Path) -> None:
    on_ranks(2, begin, tmp_path)
    on_ranks(2, foreign, tmp_path)


def save_and_die(folder: Path, dying: int) -> None:
    engine = engine_of("llama", optimizer=SETTINGS)
    steps(engine, 1)
    if int(os.environ["RANK"]) == dying:
        # The moment that it comes to write: the others have agreed with it on who writes what.
        torch.save = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    engine.save_checkpoint(folder)


@pytest.mark.parametrize("dying", [0, 1])
def test_ranks_whose_fellow_is_killed_in_a_save_stop_and_leave_nothing_to_load(tmp_path: Path, dying: int) -> None:
    world = World(2)
    try:
        world.start(save_and_die, tmp_path, dying)
        with pytest.raises(AssertionError, match=r"rank \d (died|raised)"):
            world.results()
        give_up = time.monotonic() + 60
        while world.pipes[1 - dying].poll(0.1) is False and time.monotonic() < give_up:
            pass
        assert time.monotonic() < give_up, "the rank that lives waits for ever"
    finally:
        world.end()
    with pytest.raises(RunFolderError, match="no readable list of contents"):
        engine_of("llama").load_checkpoint(tmp_path)
