"""Passes in several threads give what one gives, and the same to the last bit each time."""

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.engines.fsdp.engine import FSDPEngine
from agentverl.engines.fsdp.gradient_sum import GradientSum
from agentverl.engines.fsdp.shared_prompts import shares
from agentverl.engines.settings import EngineSettings, OptimizerSettings
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from tests.engines.test_shared_prompts import grouped_batch, weighted_loss
from tests.engines.tiny_models import CONFIGS, batch_of, engine_of

GROUPS = [(12, [90, 20, 80, 0]), (40, [50, 60, 60, 60]), (7, [100])]
ONE_PROMPT = [(30, [90, 80, 100, 20, 95, 60, 70, 85])]


@pytest.fixture(params=[2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


def alone(name: str = "qwen2", **settings: Any) -> FSDPEngine:
    """An engine that computes in the calling thread."""
    engine = engine_of(name, **settings)
    engine._threads = None
    return engine


def gradients(engine: FSDPEngine, data: DataProto) -> dict[str, torch.Tensor]:
    """Those of one pass."""
    engine.optimizer_zero_grad()
    engine.forward_backward_batch(data, weighted_loss, calculate_entropy=True)
    return {name: weight.grad for name, weight in engine.weights.masters.items() if weight.grad is not None}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("groups", [GROUPS, ONE_PROMPT], ids=["several prompts", "one prompt"])
def test_threads_compute_what_one_computes(name: str, groups: list[tuple[int, list[int]]], threads: int) -> None:
    data, together, expected = grouped_batch(groups), engine_of(name), alone(name)
    asked = {"calculate_entropy": True, "calculate_sum_pi_squared": True}
    ours, theirs = (engine.infer_batch(data, **asked) for engine in (together, expected))
    for column in ("log_probs", "entropys", "sum_pi_squared"):
        found, wanted = (output.batch.ragged(column).values for output in (ours, theirs))
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    found_gradients, wanted_gradients = gradients(together, data), gradients(expected, data)
    assert found_gradients.keys() == wanted_gradients.keys()
    for key, wanted in wanted_gradients.items():
        assert float((found_gradients[key] - wanted).abs().max()) <= 1e-5 * max(float(wanted.abs().max()), 1e-3)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_steps_repeat_to_the_last_bit(dtype: str, checkpointing: bool, threads: int) -> None:
    data = grouped_batch(GROUPS)
    runs = []
    for _ in range(2):
        engine = engine_of(dtype=dtype, enable_gradient_checkpointing=checkpointing, max_tokens=600)
        metrics = [engine.train_batch(data, weighted_loss, calculate_entropy=True) for _ in range(4)]
        runs.append((metrics, dict(engine.get_per_tensor_param())))
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(weight, runs[1][1][name]) for name, weight in runs[0][1].items())


def test_threads_train_as_one_does(threads: int) -> None:
    data = grouped_batch(GROUPS)
    for dtype, tolerance in (("float32", 1e-4), ("bfloat16", 3e-2)):
        together, expected = engine_of(dtype=dtype), alone(dtype=dtype)
        for _ in range(4):
            ours, theirs = (
                engine.train_batch(data, weighted_loss, calculate_entropy=True) for engine in (together, expected)
            )
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=tolerance)
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=tolerance)


def test_a_value_head_is_trained_in_threads_too(threads: int) -> None:
    def squares(output: Any, _: DataProto) -> Any:
        return (output.values - 1).square().mean(), {}

    data = grouped_batch(GROUPS)
    engines = engine_of(head="value"), alone(head="value")
    for _ in range(3):
        norms = [engine.train_batch(data, squares)["grad_norm"] for engine in engines]
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_what_a_thread_raises_is_raised(threads: int) -> None:
    engine, data = engine_of(), grouped_batch(GROUPS)
    data.batch["prompts"] = Ragged.from_list([prompt + 10**6 for prompt in data.batch.ragged("prompts")])
    with pytest.raises(IndexError):
        engine.infer_batch(data)
    assert torch.get_num_threads() == threads


def test_few_tokens_stay_in_one_thread(threads: int) -> None:
    engine, data = engine_of(), batch_of([(3, 9), (7, 2)])
    assert torch.equal(*(one.infer_batch(data).batch.ragged("log_probs").values for one in (engine, alone())))


@pytest.fixture
def folder_with_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with code of its own, of which a module holds a lock."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which transformers adds that folder
    folder = tmp_path / "model"
    engine_of().export(folder)
    code = """
        import threading
        from transformers import Qwen2ForCausalLM

        class Locked(Qwen2ForCausalLM):
            def __init__(self, config):
                super().__init__(config)
                self.model.lock = threading.Lock()
    """
    (folder / "locked.py").write_text(dedent(code))
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "locked.Locked"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_model_that_cannot_be_copied_is_trained_in_one_thread(
    folder_with_a_lock: Path, threads: int, caplog: pytest.LogCaptureFixture
) -> None:
    settings = EngineSettings(model=folder_with_a_lock, trust_remote_code=True, optimizer=OptimizerSettings(lr=1e-2))
    engine, expected, data = FSDPEngine(settings), alone(), grouped_batch(GROUPS)
    with caplog.at_level(logging.WARNING, "agentverl"):
        engine.initialize()
        ours, theirs = (
            [one.train_batch(data, weighted_loss, calculate_entropy=True) for _ in range(3)]
            for one in (engine, expected)
        )
    assert ours == theirs
    (warning,) = caplog.messages
    assert warning.startswith("Locked is trained in one thread")
    assert "(TypeError: cannot pickle '_thread.lock' object)" in warning
    assert torch.get_num_threads() == threads


def test_without_threads_there_are_no_twins() -> None:
    assert engine_of()._threads is None


@given(st.lists(st.tuples(st.integers(1, 30), st.lists(st.integers(0, 30), min_size=1, max_size=8)), max_size=5))
def test_every_row_that_is_seen_is_dealt_out_once(groups: list[tuple[int, list[int]]]) -> None:
    rows = [(prompt, length) for prompt, lengths in groups for length in lengths]
    prompts = Ragged.from_list([torch.full((prompt,), prompt) for prompt, _ in rows])
    lengths = [prompt + length if length else 0 for prompt, length in rows]
    for count in (1, 2, 3):
        dealt = shares(prompts, lengths, count)
        assert sorted(row for part in dealt for row in part) == [row for row, length in enumerate(lengths) if length]
        assert len(dealt) <= count


@given(st.permutations(range(4)), st.sets(st.integers(0, 3)))
def test_gradients_add_up_in_the_order_of_their_parts(order: list[int], missing: set[int]) -> None:
    terms = [torch.tensor([1e8]), torch.tensor([1.0]), torch.tensor([-1e8]), torch.tensor([0.25])]
    weight = torch.nn.Parameter(torch.zeros(1))
    gradients = GradientSum(weight)
    twins = [torch.nn.Parameter(torch.zeros(1)) for _ in terms]
    for part, twin in enumerate(twins):
        gradients.take_from(twin, part)
    for _ in range(2):
        weight.grad = None
        for part in order:
            if part not in missing:
                torch.autograd.backward((twins[part] * terms[part]).sum())
        gradients.end_pass()
        expected = sum((term for part, term in enumerate(terms) if part not in missing), torch.zeros(1))
        assert torch.equal(weight.grad if weight.grad is not None else torch.zeros(1), expected)
