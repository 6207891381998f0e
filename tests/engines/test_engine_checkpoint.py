"""A resumed engine goes on bit by bit, and foreign or damaged checkpoints are refused."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentverl.engines.fsdp.engine import FSDPEngine
from agentverl.engines.settings import EngineSettings, OptimizerSettings
from agentverl.errors import BadInputError, ModelFolderError, RunFolderError
from tests.engines.saved import saved_tensors
from tests.engines.test_optimization import nll
from tests.engines.tiny_models import batch_of, engine_of

SETTINGS = OptimizerSettings(lr=1e-2, lr_scheduler_type="cosine", lr_warmup_steps=1, total_training_steps=8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_resumed_engine_goes_on_bit_by_bit(tmp_path: Path, dtype: str) -> None:
    data = batch_of([(3, 9), (7, 2), (4, 30)])
    whole, resumed = (engine_of(optimizer=SETTINGS, dtype=dtype, seed=seed) for seed in (0, 1))
    for step in range(6):
        if step == 3:
            whole.save_checkpoint(tmp_path)
            resumed.load_checkpoint(tmp_path)
        metrics = whole.train_batch(data, nll)
        if step >= 3:
            assert resumed.train_batch(data, nll) == metrics
            assert resumed.lr_scheduler_step() == whole.lr_scheduler_step()
        else:
            whole.lr_scheduler_step()
    for (name, one), (_, other) in zip(whole.get_per_tensor_param(), resumed.get_per_tensor_param(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("name", ["qwen2", "llama"])
def test_an_exported_folder_is_the_model(tmp_path: Path, name: str) -> None:
    engine, data = engine_of(name, dtype="bfloat16"), batch_of([(3, 9)])
    engine.train_batch(data, nll)
    engine.save_checkpoint(tmp_path, ["hf_model"])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "huggingface")
    for parameter_name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, engine.weights.masters[parameter_name])
    assert loaded.config._attn_implementation == "sdpa"


def test_a_folder_trains_as_the_model_it_was_saved_from(tmp_path: Path) -> None:
    first, data = engine_of(), batch_of([(3, 9), (2, 5)])
    first.export(tmp_path)
    second = FSDPEngine(EngineSettings(model=tmp_path))
    second.initialize()
    ours, theirs = (engine.infer_batch(data).batch.ragged("log_probs") for engine in (first, second))
    assert torch.equal(ours.values, theirs.values)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    engine_of("llama").save_checkpoint(tmp_path)
    with pytest.raises(RunFolderError, match="another model"):
        engine_of("qwen2").load_checkpoint(tmp_path)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    engine = engine_of()
    engine.save_checkpoint(tmp_path)
    (file,) = tmp_path.glob("*.distcp")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RunFolderError, match="cannot be read"):
        engine.load_checkpoint(tmp_path)
    (tmp_path / ".metadata").write_bytes(b"damaged")
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(RunFolderError, match="no readable list of contents"):
            engine.load_checkpoint(folder, ["model"])


def test_a_save_beside_training_holds_what_was_when_it_began(tmp_path: Path) -> None:
    engine, data = engine_of(), batch_of([(3, 9), (7, 2)])
    engine.train_batch(data, nll)
    (tmp_path / "beside").mkdir()
    engine.save_checkpoint(tmp_path)
    engine.save_checkpoint(tmp_path / "beside", asynchronous=True)
    engine.train_batch(data, nll)
    engine.wait_for_checkpoint()
    assert not engine.is_saving
    expected, saved = saved_tensors(tmp_path), saved_tensors(tmp_path / "beside")
    assert saved.keys() == expected.keys()
    assert all(torch.equal(saved[name], expected[name]) for name in expected)


def test_a_save_beside_training_that_fails_says_so(tmp_path: Path) -> None:
    engine = engine_of()
    (tmp_path / "file").touch()
    engine.save_checkpoint(tmp_path / "file", asynchronous=True)
    with pytest.raises(Exception, match="file"):
        engine.wait_for_checkpoint()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"config\.json"):
        FSDPEngine(EngineSettings(model=tmp_path)).initialize()


def test_overrides_of_the_configuration_reach_the_model_and_unknown_ones_are_refused(tmp_path: Path) -> None:
    engine_of("qwen2").export(tmp_path)
    engine = FSDPEngine(EngineSettings(model=tmp_path, override_config={"rms_norm_eps": 0.5}))
    engine.initialize()
    assert engine.model.model.config.rms_norm_eps == 0.5
    with pytest.raises(BadInputError, match="rms_norm_epsilon"):
        FSDPEngine(EngineSettings(model=tmp_path, override_config={"rms_norm_epsilon": 1})).initialize()
