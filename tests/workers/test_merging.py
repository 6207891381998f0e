"""A checkpoint of many ranks becomes a model folder whose logits are those of the trained model."""

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentverl.data.model_folder import resolve_model_path
from agentverl.engines.fsdp.engine import FSDPEngine
from agentverl.engines.settings import EngineSettings, OptimizerSettings
from agentverl.errors import RunFolderError
from agentverl.settings.engine import FSDPSettings
from agentverl.settings.model import ModelSettings
from agentverl.workers.merging import merge
from tests.engines.ranks import on_ranks
from tests.engines.test_optimization import nll
from tests.engines.tiny_models import batch_of

NANO = ModelSettings(path="nano")


def save(folder: Path) -> dict[str, torch.Tensor]:
    """Train one step and save; returns the weights."""
    settings = EngineSettings(model=resolve_model_path("nano").path, optimizer=OptimizerSettings(lr=1e-2))
    engine = FSDPEngine(settings)
    engine.initialize()
    engine.train_batch(batch_of([(3, 9), (7, 2)]).chunk(2)[int(os.environ["RANK"])], nll)
    engine.save_checkpoint(folder)
    return dict(engine.get_per_tensor_param())


def test_a_checkpoint_of_ranks_becomes_a_folder_with_the_same_logits(tmp_path: Path) -> None:
    weights, _ = on_ranks(2, save, tmp_path)
    output = tmp_path / "merged"
    assert merge(tmp_path, output, NANO, FSDPSettings()) < 1e-4
    merged = AutoModelForCausalLM.from_pretrained(output)
    trained = AutoModelForCausalLM.from_pretrained(resolve_model_path("nano").path)
    trained.load_state_dict(weights, strict=False)
    ids = torch.arange(1, 30)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, trained(ids).logits, rtol=0, atol=1e-5)
    assert AutoTokenizer.from_pretrained(output).chat_template
    assert not list(tmp_path.glob(".*unfinished"))


def test_a_folder_that_is_not_the_model_gets_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_ranks(2, save, tmp_path)
    monkeypatch.setattr("agentverl.workers.merging._difference", lambda *_: 0.5)
    with pytest.raises(RunFolderError, match=r"differ by 0\.5"):
        merge(tmp_path, tmp_path / "merged", NANO, FSDPSettings())
    assert not (tmp_path / "merged").exists()
