"""Supervised fine-tuning of the nano model on two conversations."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from agentverl.settings.sft import SFTSettings
from agentverl.single_controller.launcher import start_workers
from agentverl.single_controller.worker import WorkerClass
from agentverl.single_controller.worker_group import WorkerGroup
from agentverl.workers.sft import SFTWorker, sft_batch

EXAMPLES = [([5, 6, 7, 8, 9, 10], [0, 0, 1, 1, 0, 1]), ([11, 12, 13], [0, 1, 1]), ([4], [1])]


def workers() -> WorkerGroup:
    settings = SFTSettings.model_validate(
        {
            "model": {"path": "nano", "enable_gradient_checkpointing": False},
            "engine": {"dtype": "float32"},
            "optim": {"lr": 1e-2, "lr_scheduler_type": "cosine"},
        }
    )
    group = start_workers("local", WorkerClass(SFTWorker, (settings, 20)))
    group.init_model()
    return group


def test_it_learns_what_is_masked_in_and_its_folder_can_be_loaded(tmp_path: Path) -> None:
    group, data = workers(), sft_batch(EXAMPLES)
    first = group.evaluate(data)
    assert first["val/tokens"] == 5
    steps = [group.train_step(data) for _ in range(8)]
    assert steps[0]["train/loss"] == pytest.approx(first["val/loss"], rel=1e-5)
    assert steps[0]["train/lr"] == 1e-2
    assert steps[-1]["train/lr"] < 1e-2
    assert group.evaluate(data)["val/loss"] < 0.5 * first["val/loss"]
    group.export(tmp_path)
    AutoModelForCausalLM.from_pretrained(tmp_path / "huggingface")


def test_a_resumed_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    whole, resumed, data = workers(), workers(), sft_batch(EXAMPLES)
    whole.train_step(data)
    whole.save_checkpoint(tmp_path)
    resumed.load_checkpoint(tmp_path)
    assert resumed.train_step(data) == whole.train_step(data)
