"""Metrics reach each logger; a broken one is named once and stops nothing."""

import io
import logging
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

from agentverl import plugins
from agentverl.errors import PluginError, RunFolderError
from agentverl.tracking.base import Logger, Metrics, RunInfo, Tracking
from agentverl.tracking.console import ConsoleLogger, plain_line
from agentverl.tracking.dumps import dump_samples
from agentverl.tracking.json_lines import read_json_lines
from agentverl.tracking.jsonl import JsonlLogger, read_metrics
from agentverl.tracking.plots import plot_curves

METRICS = {
    "critic/score/mean": 0.5,
    "num_turns/mean": 3.25,
    "perf/throughput": 12345.6,
    "val-core/arithmetic/acc/mean@1": 0.75,
    "actor/other": 1.0,
}


class Broken(Logger):
    def log(self, metrics: Metrics, step: int) -> None:
        raise ConnectionError("no route")


def test_each_logger_gets_the_metrics_and_a_broken_one_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Tracking(["file"], RunInfo(folder=tmp_path)) as tracking:
        tracking.loggers["broken"] = Broken(RunInfo(folder=tmp_path))
        with caplog.at_level(logging.WARNING):
            for step in (1, 2):
                tracking.log({"a": np.float32(0.5), "b": 2}, step)
    assert read_metrics(tmp_path) == {1: {"a": 0.5, "b": 2.0}, 2: {"a": 0.5, "b": 2.0}}
    assert caplog.messages == ["logger broken failed to log, training goes on: no route"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("consol", "no loggers plugin named 'consol'; did you mean 'console'"),
        ("agentverl.tracking.jsonl:read_metrics", "is no subclass of agentverl.tracking.base.Logger"),
    ],
)
def test_a_wrong_logger_is_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=said):
        Tracking([name], RunInfo(folder=tmp_path))


def test_metrics_that_cannot_be_written_are_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"metrics\.jsonl cannot be written"):
        Tracking(["file"], RunInfo(folder=tmp_path / "file"))


def test_a_step_logged_in_parts_or_again_is_joined(tmp_path: Path) -> None:
    lines = JsonlLogger(RunInfo(folder=tmp_path))
    lines.log({"a": 1.0, "b": 1.0}, 2)
    lines.log({"c": 1.0}, 2)
    lines.log({"a": 0.1 + 0.2}, 1)
    lines.log({"a": 5.0}, 2)
    assert read_metrics(tmp_path) == {1: {"a": 0.1 + 0.2}, 2: {"a": 5.0, "b": 1.0, "c": 1.0}}
    assert list(read_metrics(tmp_path)) == [1, 2]


def test_a_pipe_gets_a_plain_line_in_verl_s_names(tmp_path: Path) -> None:
    stream = io.StringIO()
    console = ConsoleLogger(RunInfo(folder=tmp_path, total_steps=60), Console(file=stream, width=40))
    console.log(METRICS, 3)
    console.close()
    assert stream.getvalue() == (
        "step:3/60 - critic/score/mean:0.500 - val-core/arithmetic/acc/mean@1:0.750 - num_turns/mean:3.2 - "
        "perf/throughput:12346\n"
    )


def test_a_terminal_gets_a_table_and_a_bar(tmp_path: Path) -> None:
    stream = io.StringIO()
    screen = Console(file=stream, width=120, force_terminal=True, color_system=None)
    console = ConsoleLogger(RunInfo(folder=tmp_path, total_steps=60, experiment_name="mine"), screen)
    for step in range(1, 15):
        console.log(METRICS if step == 14 else {"critic/score/mean": 0.25}, step)
    console.show(Text("a trajectory"))
    console.log({"actor/entropy": 0.125}, 14)
    console.close()
    final = stream.getvalue().rpartition("step")[2]
    assert "held-out" in final
    assert "0.750" in final
    assert "0.125" in final
    assert "12,346" in final
    assert "14/60" in final
    assert "a trajectory" in stream.getvalue()
    assert [line.split()[0] for line in final.splitlines()[1:11]] == [str(step) for step in range(5, 15)]


def test_debug_has_no_live_display(tmp_path: Path) -> None:
    stream = io.StringIO()
    screen = Console(file=stream, width=200, force_terminal=True, color_system=None)
    ConsoleLogger(RunInfo(folder=tmp_path, debug=True), screen).log(METRICS, 1)
    assert stream.getvalue() == plain_line(METRICS, 1, None) + "\n"


def test_tensorboard_writes_events(tmp_path: Path) -> None:
    with Tracking(["tensorboard"], RunInfo(folder=tmp_path)) as tracking:
        tracking.log(METRICS, 1)
    (events,) = (tmp_path / "logs" / "tensorboard").iterdir()
    assert b"critic/score/mean" in events.read_bytes()


def test_wandb_writes_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    (tmp_path / "logs").mkdir()
    with Tracking(["wandb"], RunInfo(folder=tmp_path, config={"a": 1})) as tracking:
        tracking.log(METRICS, 1)
        assert "wandb" in tracking.loggers
    assert list((tmp_path / "logs" / "wandb").glob("offline-run-*/*.wandb"))


@pytest.mark.parametrize("name", [name for name, _ in plugins.installed("loggers")])
def test_every_installed_logger_loads(name: str) -> None:
    assert issubclass(plugins.find("loggers", name), Logger)


def test_curves_are_drawn_from_the_metrics(tmp_path: Path) -> None:
    lines = JsonlLogger(RunInfo(folder=tmp_path))
    with pytest.raises(RunFolderError, match="no reward and no validation to draw yet"):
        plot_curves(tmp_path)
    for step in range(20):
        lines.log({"critic/score/mean": step / 20, **({"val-core/x/acc/mean@1": 0.5} if step % 10 == 0 else {})}, step)
    path = plot_curves(tmp_path)
    assert path == tmp_path / "curves.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunFolderError, match=r"has no metrics\.jsonl"):
        plot_curves(tmp_path / "empty")


def test_samples_are_dumped_in_verl_s_columns(tmp_path: Path) -> None:
    path = dump_samples(tmp_path / "dump", 3, [{"input": "q", "output": "a", "gts": None, "score": np.float32(1)}])
    assert path == tmp_path / "dump" / "3.jsonl"
    assert [row for _, row in read_json_lines(path)] == [
        {"input": "q", "output": "a", "gts": None, "score": 1.0, "step": 3}
    ]
