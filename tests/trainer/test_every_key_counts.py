"""Every key of the configuration is read by a run, or answered where it has no effect: none is silently without one."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agentverl.settings.compose import compose_sft, compose_words
from agentverl.settings.idle import idle_keys
from agentverl.settings.keys import keys
from agentverl.settings.root import Settings
from agentverl.settings.section import Section
from agentverl.settings.sft import SFTSettings
from agentverl.trainer.sft import run_sft
from agentverl.trainer.train import train
from tests.trainer.command import rows

_JUDGES = {
    "checks",
    "compose",
    "correction_checks",
    "effects",
    "idle",
    "loss_effects",
    "merge",
    "problems",
    "sft_effects",
    "training_checks",
    "trees",
}
"""Modules of the settings room that look at keys without giving them an effect."""

ANSWERED = {
    "trainer.nnodes": "more than one is refused",
    "trainer.n_gpus_per_node": "more than one is refused",
    "actor_rollout_ref.rollout.val_kwargs.do_sample": "refused where it contradicts the temperature",
    "algorithm.rollout_correction.preset": "fills in the other keys before they are checked",
}

SMALL = (
    "data.train_size=2",
    "data.val_size=1",
    "data.train_batch_size=2",
    "actor.ppo_mini_batch_size=1",
    "rollout.n=2",
    "data.max_response_length=32",
    "trainer.total_training_steps=1",
    "trainer.logger=[file]",
    "trainer.test_freq=1",
)
TASKS = (*SMALL, "algorithm.adv_estimator=gae")
FILTERED = (
    *(word for word in SMALL if word.partition("=")[0] not in ("data.train_size", "data.train_batch_size")),
    "data.train_size=16",
    "data.train_batch_size=1",
    "rollout.n=4",
    "algorithm.filter_groups.enable=true",
    "algorithm.use_pf_ppo=true",
)
FROM_FILES = (
    *(word for word in SMALL if word.partition("=")[0] not in ("data.train_size", "data.val_size")),
    "~trainer.total_training_steps",
    "agent.environment=null",
    "data.train_files=rows.jsonl",
    "data.val_files=rows.jsonl",
    "trainer.total_epochs=1",
    "trainer.rollout_data_dir=samples",
    "trainer.validation_data_dir=validation",
    "trainer.max_actor_ckpt_to_keep=1",
    "actor.use_kl_loss=true",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl.type=adaptive",
    "actor.loss_agg_mode=seq-mean-token-sum-norm",
    "actor.shuffle=true",
    "algorithm.adv_estimator=gae",
    "critic.ppo_micro_batch_size_per_gpu=2",
    "actor.ppo_micro_batch_size_per_gpu=2",
    "rollout.log_prob_micro_batch_size_per_gpu=2",
    "ref.log_prob_use_dynamic_bsz=true",
    "ref.log_prob_max_token_len_per_gpu=2000",
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.module.path=agentverl.rewards.rate_limited",
    "reward.reward_manager.module.name=RateLimitedRewardManager",
)
FINE_TUNING = (
    "model.path=nano",
    "data.train_files=talk.jsonl",
    "data.val_files=talk.jsonl",
    "data.train_batch_size=2",
    "trainer.logger=[file]",
)


class Reads:
    """The keys that were read, by section object and, for copies of sections, by class."""

    def __init__(self) -> None:
        self.watching = False
        self.paths: set[str] = set()
        self.of_class: set[tuple[type, str]] = set()
        self._places: dict[int, tuple[Section, str]] = {}

    def watch(self, section: Section, prefix: str = "") -> None:
        """Know a section and those below it by their paths."""
        self._places[id(section)] = (section, prefix)
        for name in type(section).model_fields:
            value = section.__dict__[name]
            if isinstance(value, Section):
                self.watch(value, f"{prefix}{name}.")

    def note(self, section: Section, name: str) -> None:
        known, prefix = self._places.get(id(section), (None, ""))
        if known is section:
            self.paths.add(prefix + name)
        else:
            self.of_class.add((type(section), name))

    def unread(self, root: type[Section]) -> set[str]:
        """Keys that nothing read, sections left out."""
        sections = {key.path: key.section for key in keys(root).values()}
        return {path for path, section in sections.items() if section is None and not self._is_read(path, sections)}

    def _is_read(self, path: str, sections: dict[str, type[Section] | None]) -> bool:
        section, _, name = path.rpartition(".")
        if ".on_end." in section:  # one code reads the entries of all endings, of which a run sees only some
            return any(".on_end." in read and read.endswith(f".{name}") for read in self.paths)
        return path in self.paths or (sections[section], name) in self.of_class


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    """Sections tell who reads them; judges of the configuration do not count, nor does writing all of it down."""
    reads = Reads()
    read, dump = Section.__getattribute__, BaseModel.model_dump

    def reading(self: Section, name: str) -> Any:
        if reads.watching and name in type(self).__pydantic_fields__ and not _is_judged(sys._getframe(1)):
            reads.note(self, name)
        return read(self, name)

    def dumping(self: Section, **how: Any) -> Any:
        if reads.watching and not isinstance(self, Settings | SFTSettings):
            for name in set(type(self).model_fields) - set(how.get("exclude") or ()):
                reads.note(self, name)
        return dump(self, **how)

    monkeypatch.setattr(Section, "__getattribute__", reading)
    monkeypatch.setattr(Section, "model_dump", dumping)
    yield reads
    reads.watching = False


def _is_judged(frame: Any) -> bool:
    for _ in range(4):
        if frame is None:
            return False
        package, _, module = frame.f_globals.get("__name__", "").rpartition(".")
        if package == "agentverl.settings" and module in _JUDGES:
            return True
        frame = frame.f_back
    return False


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(rows())
    talk = '{"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello."}]}\n'
    (tmp_path / "talk.jsonl").write_text(talk * 2)


def _watched(reads: Reads, settings: Any, start: Callable[[Any], object]) -> set[str]:
    """Run with its keys watched; those that have no effect in it, which the user is told."""
    reads.watch(settings)
    reads.watching = True
    start(settings)
    reads.watching = False
    return set(idle_keys(settings))


def _go_on(name: str) -> None:
    """Let a finished run be an unfinished one, which the next goes on with."""
    Path("outputs", name, "summary.json").unlink()


def test_training_reads_every_key_or_answers_it(reads: Reads) -> None:
    idle = _watched(reads, compose_words((*TASKS, "trainer.experiment_name=tasks")), train)
    idle &= _watched(reads, compose_words((*FROM_FILES, "trainer.experiment_name=files")), train)
    idle &= _watched(reads, compose_words((*FILTERED, "trainer.experiment_name=filtered")), train)
    _go_on("tasks")
    longer = (*TASKS, "trainer.experiment_name=tasks", "trainer.total_training_steps=2")
    idle &= _watched(reads, compose_words(longer), train)
    assert reads.unread(Settings) - idle - set(ANSWERED) == set()


def test_fine_tuning_reads_every_key_or_answers_it(reads: Reads) -> None:
    by_sequences = "data.use_dynamic_bsz=false"
    idle = _watched(reads, compose_sft((*FINE_TUNING, "trainer.total_epochs=1")), run_sft)
    idle &= _watched(reads, compose_sft((*FINE_TUNING, by_sequences, "trainer.experiment_name=cut")), run_sft)
    _go_on("cut")
    longer = (*FINE_TUNING, by_sequences, "trainer.experiment_name=cut", "trainer.total_training_steps=5")
    idle &= _watched(reads, compose_sft(longer), run_sft)
    assert reads.unread(SFTSettings) - idle - set(ANSWERED) == set()
