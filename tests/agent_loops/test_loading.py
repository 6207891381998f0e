"""Agent loops are found by the YAML, by entry point and by path; what is wrong is said at once."""

from pathlib import Path
from typing import Any

import pytest

from agentverl.agent_loops.base import AgentLoopBase, AgentLoopSettings
from agentverl.agent_loops.loading import AgentLoops
from agentverl.agent_loops.single_turn import SingleTurnAgent
from agentverl.agent_loops.tool_agent import ToolAgent
from agentverl.errors import DatasetError, PluginError, SettingsError
from agentverl.trajectory import AgentLoopOutput
from tests.agent_loops.conftest import MakeScene
from tests.agent_loops.scripted import call_text
from tests.agent_loops.test_chat import ADD

HERE = "tests.agent_loops.test_loading"


class PoliteSettings(AgentLoopSettings):
    """How polite."""

    thanks: int = 1


class Polite(AgentLoopBase):
    """Thanks for each reply."""

    Settings = PoliteSettings

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        chat = await self.chat(row, sampling_params)
        for _ in range(self.settings.thanks):
            await chat.generate()
            await chat.observe({"role": "user", "content": "Thank you."})
        return chat.outputs()


class Unfinished(AgentLoopBase):
    """Does not define run."""


def write(folder: Path, text: str) -> Path:
    path = folder / "loops.yaml"
    path.write_text(text)
    return path


async def test_a_loop_of_the_yaml_gets_its_settings(tmp_path: Path, scene: MakeScene) -> None:
    loops = AgentLoops(write(tmp_path, f"- {{name: polite, _target_: {HERE}.Polite, thanks: 2}}"))
    stage = scene(["one", "two"])
    loop = loops.find("polite").make(stage.context)
    outputs = await loop.run({}, raw_prompt=[{"role": "user", "content": "Hi"}])
    assert isinstance(outputs, list)
    assert outputs[0].num_turns == 5
    assert len(stage.server.requests) == 2


def test_installed_loops_and_paths_are_found() -> None:
    loops = AgentLoops()
    assert loops.find("single_turn_agent").loop_class is SingleTurnAgent
    assert loops.find("tool_agent").loop_class is ToolAgent
    assert loops.find(f"{HERE}:Polite").loop_class.__name__ == "Polite"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[", "is not YAML"),
        ("name: polite", "holds dict; expected a list"),
        ("- {name: polite}", "entry 0 lacks `name` or `_target_`"),
        (f"- {{name: polite, _target_: {HERE}.Polite, thank: 2}}", "thank: .* its settings: thanks"),
        (f"- {{name: polite, _target_: {HERE}.Polite, thanks: many}}", "thanks: "),
        (f"[{{name: a, _target_: {HERE}.Polite}}, {{name: a, _target_: {HERE}.Polite}}]", "two agent loops"),
    ],
)
def test_a_wrong_yaml_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        AgentLoops(write(tmp_path, text))


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (f"{HERE}.Unfinished", "does not define `async def run`"),
        (f"{HERE}.HERE", "expected a subclass of agentverl.AgentLoopBase"),
        ("no_such_package.Loop", "does not import"),
    ],
)
def test_a_target_that_is_no_loop_is_refused(tmp_path: Path, target: str, reason: str) -> None:
    with pytest.raises(PluginError, match=reason):
        AgentLoops(write(tmp_path, f"- {{name: polite, _target_: {target}}}"))


def test_a_misspelt_name_is_told_the_nearest(tmp_path: Path) -> None:
    loops = AgentLoops(write(tmp_path, f"- {{name: polite, _target_: {HERE}.Polite}}"))
    with pytest.raises(PluginError, match="did you mean 'polite'"):
        loops.find("polit")
    with pytest.raises(SettingsError, match="is not a file"):
        AgentLoops(tmp_path / "missing.yaml")


async def test_a_single_turn_shows_no_tools_and_a_prompt_is_needed(scene: MakeScene) -> None:
    stage = scene([call_text("add", a=1, b=2)], tools=[ADD])
    loop = AgentLoops().find("single_turn_agent").make(stage.context)
    outputs = await loop.run({}, raw_prompt=[{"role": "user", "content": "Hi"}])
    assert isinstance(outputs, list)
    assert "tools" not in stage.context.tokenizer.decode(outputs[0].prompt_ids)
    assert outputs[0].num_turns == 2
    with pytest.raises(DatasetError, match="raw_prompt"):
        await loop.run({}, prompt="Hi")
