"""Every command of the documentation is one that the command line takes; those of the tutorials are run."""

from pathlib import Path

import pytest

from agentverl.cli import run
from tests.docs.pages import ROOT, Page, all_pages, read

PAGES = [page for page in all_pages() if page.commands]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
COMPOSED = {"train", "sft", "rollout", "eval"}
SMALL = ["trainer.total_training_steps=2", "trainer.save_freq=-1", "trainer.test_freq=-1", "data.val_size=4",
         "data.train_size=32", "data.train_batch_size=4", "actor.ppo_mini_batch_size=4", "rollout.n=2"]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.path.relative_to(ROOT)))
def test_the_commands_of_a_page_have_keys_and_values_that_exist(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    for words in page.commands:
        if words[0] not in COMPOSED or any("<" in word for word in words):
            continue
        for word in words[1:]:
            file = word.rpartition("=")[2].rpartition(":")[0] or word.rpartition("=")[2]
            if word == "my.yaml":
                (tmp_path / word).write_text("model: {path: nano}\nrollout: {n: 8}\nagent: {environment: arithmetic}\n")
            if file.endswith((".jsonl", ".parquet")):
                Path(file).parent.mkdir(parents=True, exist_ok=True)
                Path(file).touch()
        dry = [] if "--dry-run" in words else ["--dry-run"]
        assert run([*words, *dry]) == 0, words


@pytest.mark.integration
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_the_commands_of_a_tutorial_train(tutorial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = read(tutorial)
    page.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    for words in page.commands:
        if words[0] == "train":
            assert run([*words, *SMALL, "trainer.resume_mode=disable"]) == 0, words
