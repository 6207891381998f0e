"""Checkpoints that are written beside training hold what those hold that training waits for."""

import torch

from agentverl.trainer.checkpoints import CheckpointFolder
from tests.engines.saved import saved_tensors
from tests.trainer.command import Command

WORDS = (
    "trainer.total_training_steps=3",
    "trainer.save_freq=1",
    "trainer.max_actor_ckpt_to_keep=2",
    "trainer.deterministic=true",
    "actor.optim.lr=1e-3",
    "actor.calculate_entropy=true",
)


def test_a_save_beside_training_holds_what_one_holds_that_it_waits_for(command: Command) -> None:
    folders = []
    for name, words in (("waiting", ()), ("beside", ("actor.checkpoint.async_save=true",))):
        ended = command.train(*WORDS, *words, f"trainer.experiment_name={name}", name=name)
        assert ended.code == 0, ended.printed
        folders.append(CheckpointFolder(ended.run / "checkpoints"))
    waiting, beside = folders
    assert waiting.steps() == beside.steps() == [2, 3]
    for step in beside.steps():
        expected, saved = (saved_tensors(folder.of(step) / "actor") for folder in folders)
        assert saved.keys() == expected.keys()
        assert all(torch.equal(saved[name], expected[name]) for name in expected)
    assert not list(beside.path.glob("*.unfinished"))
