"""`agentverl merge`: a model folder from a run's checkpoint, or one clear line."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from agentverl.cli import run
from tests.engines.saved import saved_tensors
from tests.trainer.command import Command


def test_a_runs_newest_checkpoint_becomes_a_model_folder_once(command: Command) -> None:
    ended = command.train()
    assert ended.code == 0, ended.printed
    checkpoint = ended.run / "checkpoints" / "global_step_1"
    assert run(["merge", str(ended.run)]) == 0
    merged = dict(AutoModelForCausalLM.from_pretrained(checkpoint / "actor" / "huggingface").named_parameters())
    saved = saved_tensors(checkpoint / "actor", "model/")
    assert saved.keys() == merged.keys()
    assert all(torch.equal(merged[name], saved[name]) for name in saved)
    assert run(["merge", str(checkpoint)]) == 2
    assert run(["merge", str(checkpoint), "--output", str(ended.run / "again")]) == 0
    assert (ended.run / "again" / "tokenizer.json").is_file()


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    assert run(["merge", str(tmp_path)]) == 2
    (tmp_path / "config.yaml").write_text("{}")
    assert run(["merge", str(tmp_path)]) == 2
    assert run(["merge", str(tmp_path / "checkpoints" / "global_step_3")]) == 2
