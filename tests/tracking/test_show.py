"""`show` opens any run, also one that crashed, and lets no text steer the terminal."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentverl.data.model_folder import resolve_model_path
from agentverl.data.tokenizers import load_tokenizer
from agentverl.errors import RunFolderError
from agentverl.tracking import rendering
from agentverl.tracking.journal import Journal
from agentverl.tracking.show import decoder_of, show
from agentverl.tracking.tokens import coloured, legend, pieces, style_of, visible
from tests.tracking.episodes import as_read, decode, output, record


@pytest.fixture
def printed() -> tuple[Console, Callable[[], str]]:
    stream = io.StringIO()
    return Console(file=stream, width=160, color_system=None), stream.getvalue


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "quickstart"
    journal = Journal(folder / "journal")
    for step in (1, 2):
        for sample, reward in enumerate((0.0, 1.0, 0.5)):
            journal.trajectory(
                record(step=step, sample=sample, trajectory_id=f"0-{step}/{sample}", uid=f"0-{step}", reward=reward)
            )
        journal.step(step, [f"0-{step}"], {f"0-{step}/1": [0.75]})
    failed: dict[str, Any] = {
        "reward": None,
        "termination": "error:tool",
        "error": "server is gone",
        "reward_components": {},
    }
    journal.trajectory(record(step=2, sample=3, uid="0-2", **failed))
    journal.close()
    return folder


def shown(text: str) -> list[str]:
    return [line.split("\N{MIDDLE DOT}")[2].split()[0] for line in text.splitlines() if line.startswith("╭─ step")]


def test_shows_the_newest_step_with_its_summary(run: Path, printed: Any) -> None:
    console, text = printed
    show(run, console=console)
    assert shown(text()) == ["0-2/0", "0-2/1", "0-2/2", "0-2/3"]
    assert "steps 1 to 2" in text()
    assert "error:tool" in text()
    assert "error: server is gone" in text()
    assert "reward 1 (acc 1)" in text()
    assert "7 response tokens, 5 sampled" in text()
    assert "weights 3 to 4" in text()
    assert "advantage +0.750" in text()
    assert '{"name": "calculator", "arguments": {"expression": "2+2"}}' in text()


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"step": 1}, ["0-1/0", "0-1/1", "0-1/2"]),
        ({"uid": "0-1", "limit": 1}, ["0-1/0"]),
        ({"pick": "best", "limit": 2}, ["0-2/1", "0-2/2"]),
        ({"pick": "worst", "limit": 1}, ["0-2/0"]),
        ({"pick": "failed"}, ["0-2/3"]),
        ({"step": 1, "pick": "failed"}, []),
    ],
)
def test_selects(selection: dict[str, Any], expected: list[str], run: Path, printed: Any) -> None:
    console, text = printed
    show(run, console=console, **selection)
    assert shown(text()) == expected
    assert bool(expected) != ("none of these 3 trajectories failed" in text())


@pytest.mark.parametrize(
    ("path", "selection", "said"),
    [
        ("nowhere", {}, "nowhere is not a folder; expected a run's folder such as outputs/quickstart"),
        (".", {}, "is not a run's folder; it holds the runs quickstart"),
        ("quickstart/journal", {}, r"is not a run's folder; a run's folder has config\.yaml and journal/"),
        ("quickstart", {"step": 7}, "has no trajectory of step 7; it has steps 1 to 2"),
        ("quickstart", {"uid": "x", "step": 1}, "has no trajectory of step 1 and uid 'x'"),
    ],
)
def test_says_what_is_not_there(path: str, selection: dict[str, Any], said: str, run: Path) -> None:
    with pytest.raises(RunFolderError, match=said):
        show(run.parent / path, **selection)


def test_a_run_without_trajectories_says_so(tmp_path: Path) -> None:
    Journal(tmp_path / "journal").close()
    with pytest.raises(RunFolderError, match="has no trajectory in its journal yet"):
        show(tmp_path)


def test_tokens_stand_in_the_colours_of_their_probability(printed: Any) -> None:
    console, text = printed
    console.print(rendering.trajectory(as_read(record()), decode=decode, tokens=True, advantages=[[0.5] * 7]))
    assert "advantage +0.500" in text()
    assert "What is 2+2?" in text()
    assert "assistant  calls calculator" in text()
    assert "length" in text()
    row = next(line for line in text().splitlines() if "-2.0000" in line)
    assert row.split()[1:-1] == ["4", "7", "It", "is", "1", "-2.0000", "4", "+0.500"]
    colours = {span.style for span in coloured(output().model_dump(), 0, 7, decode).spans}
    assert colours == {"green", "yellow", "dim", "dark_orange", "bold red"}


def test_probabilities_have_their_colours() -> None:
    assert [style_of(1, log_prob) for log_prob in (0.0, -0.5, -2.0, -9.0, None, float("nan"))] == [
        "green",
        "yellow",
        "dark_orange",
        "bold red",
        "cyan",
        "cyan",
    ]
    assert style_of(0, -9.0) == "dim"
    assert legend().plain == "sampled with probability  0.9-1  0.5-0.9  0.1-0.5  0-0.1   not sampled by the policy"


def test_tokens_of_one_character_stand_together() -> None:
    raw = "aé€".encode()
    found = list(pieces(list(raw), lambda ids: bytes(ids).decode(errors="replace")))
    assert found == [(0, 1, "a"), (1, 3, "é"), (3, 6, "€")]
    broken = list(pieces([0xE2, 0x61], lambda ids: bytes(ids).decode(errors="replace")))
    assert [(start, stop) for start, stop, _ in broken] == [(0, 1), (1, 2)]


def test_no_text_steers_the_terminal() -> None:
    assert visible("a\x1b[31mred\n\tb\x07\x9b") == "a␛[31mred\n\tb␇\\u009b"


def test_an_output_without_turns_is_shown_whole(printed: Any) -> None:
    console, text = printed
    console.print(rendering.trajectory(as_read(record(outputs=[output(turns=[])])), decode=decode))
    assert "calc(2+2) tool: 4 It is 4<end>" in text()


def test_the_run_s_own_model_decodes(tmp_path: Path) -> None:
    assert decoder_of(tmp_path)[0] is None
    (tmp_path / "config.yaml").write_text("actor_rollout_ref: {model: {path: no/such/folder}}")
    decoder, reason = decoder_of(tmp_path)
    assert decoder is None
    assert "no/such/folder" in reason


def test_the_shipped_model_decodes_its_tokens_whole(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("actor_rollout_ref: {model: {path: nano}}")
    decoder, reason = decoder_of(tmp_path)
    assert decoder is not None, reason
    tokenizer = load_tokenizer(resolve_model_path("nano").path)
    text = "<|im_start|>user\nWhat is 37 * 48?<|im_end|>\n"
    assert decoder(tokenizer.encode(text, add_special_tokens=False)) == text
