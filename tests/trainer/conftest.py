"""The command line in a folder of its own."""

from pathlib import Path

import pytest

from tests.trainer.command import Command


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    return Command(tmp_path, capsys)
