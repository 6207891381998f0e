"""Once installed: nothing but `agentverl` is importable, every plugin loads, and the data files are there."""

import subprocess
import sys
import zipfile
from importlib.metadata import EntryPoint, distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLUGINS = [entry for entry in distribution("agentverl").entry_points if entry.group.startswith("agentverl.")]


def test_the_groups_of_plugins_are_those_that_the_design_names() -> None:
    assert {"agentverl.agent_loops", "agentverl.tools", "agentverl.environments", "agentverl.rewards"} <= {
        plugin.group for plugin in PLUGINS
    }


@pytest.mark.parametrize("entry", PLUGINS, ids=lambda entry: f"{entry.group}:{entry.name}")
def test_every_entry_point_loads(entry: EntryPoint) -> None:
    assert callable(entry.load())


@pytest.mark.integration
def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True)
    (wheel,) = tmp_path.glob("agentverl-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"agentverl"}
    for needed in (
        "agentverl/py.typed",
        "agentverl/configs/quickstart.yaml",
        "agentverl/configs/tools/calculator.yaml",
        "agentverl/data/nano/model.safetensors",
        "agentverl/data/nano/tokenizer.json",
        "agentverl/data/nano/chat_template.jinja",
    ):
        assert needed in names
    installed = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(installed), str(wheel)]
    subprocess.run(install, check=True)
    top = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert top <= {"agentverl", "bin"}
