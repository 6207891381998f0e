"""Environments are found by name, and a wrong one is refused with a reason."""

from pathlib import Path
from typing import Any

import pytest

from agentverl import plugins
from agentverl.environments.base import Environment, EnvironmentContext, Observation, Step
from agentverl.environments.loading import EnvironmentSpec, reset
from agentverl.errors import DatasetError, PluginError, SettingsError

MODULE = '''
from agentverl.environments.base import Environment, EnvironmentSettings, Observation, Step, Task

class GuessSettings(EnvironmentSettings):
    highest: int = 10

class Guess(Environment):
    """Guess a number."""
    Settings = GuessSettings

    @classmethod
    def tasks(cls, split, size, seed, highest):
        return [Task(fields={"number": index % highest}) for index in range(size)]

    @classmethod
    async def setup(cls, settings):
        return ["shared", settings.highest]

    async def reset(self, context, *, number):
        self.number, self.guesses = number, 0
        return Observation(messages=[{"role": "user", "content": f"Guess a number below {self.settings.highest}."}])

    async def step(self, action):
        self.guesses += 1
        right = action["content"] == str(self.number)
        return Step(observation=Observation(messages=[{"role": "user", "content": "no"}]), done=right)

    async def score(self):
        return 1 / self.guesses

class Nothing:
    pass
'''


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "guess.py"
    path.write_text(MODULE)
    return str(path)


async def test_plays_an_episode(file: str) -> None:
    spec = EnvironmentSpec.find(f"{file}:Guess", {"highest": 3})
    rows = spec.rows("train", 5, 0)
    assert [row["environment_kwargs"]["number"] for row in rows] == [0, 1, 2, 0, 1]
    assert rows[0]["data_source"] == "Guess"
    await spec.setup()
    context = EnvironmentContext(trajectory_id="t")
    environment = spec.create(context)
    assert environment.resources == ["shared", 3]
    assert environment.context is context
    assert (environment.makes_tasks(), environment.steps(), environment.scores()) == (True, True, True)
    observation = await reset(environment, context, rows[1]["environment_kwargs"])
    assert observation.messages[0]["content"] == "Guess a number below 3."
    assert not (await environment.step({"role": "assistant", "content": "2"})).done
    assert (await environment.step({"role": "assistant", "content": "1"})).done
    assert await environment.score() == 0.5
    await environment.close()
    await spec.teardown()


async def test_a_row_that_does_not_fit_is_the_dataset_s_error(file: str) -> None:
    environment = EnvironmentSpec.find(f"{file}:Guess").create(EnvironmentContext())
    with pytest.raises(DatasetError, match=r"do not fit Guess\.reset: .*number"):
        await reset(environment, environment.context, {})


@pytest.mark.parametrize(
    ("name", "settings", "error", "said"),
    [
        ("arithmetics", {}, PluginError, "no environments plugin named 'arithmetics'; did you mean 'arithmetic'"),
        ("FILE:Nothing", {}, PluginError, "is a class Nothing; expected a subclass of agentverl.Environment"),
        ("FILE:Gues", {}, PluginError, "has no attribute 'Gues'; it has Guess"),
        ("FILE:Guess", {"higest": 3}, SettingsError, "key 'higest' is unknown .did you mean 'highest'"),
        ("FILE:Guess", {"highest": "many"}, SettingsError, "highest = 'many': Input should be a valid integer"),
        ("arithmetic", {"operators": "/"}, SettingsError, "operators = '/'"),
    ],
)
def test_wrong_environments_are_refused(
    name: str, settings: dict[str, Any], error: type[Exception], said: str, file: str
) -> None:
    with pytest.raises(error, match=said):
        EnvironmentSpec.find(name.replace("FILE", file), settings)


async def test_an_environment_may_leave_everything_out() -> None:
    class Bare(Environment):
        pass

    assert (Bare.makes_tasks(), Bare.steps(), Bare.scores()) == (False, False, False)
    assert await Bare().reset(EnvironmentContext()) == Observation()
    assert Step() == Step(observation=Observation(messages=[], tools=None), done=False)
    with pytest.raises(SettingsError, match=r"makes no tasks; set data\.train_files"):
        EnvironmentSpec("bare", Bare, None).rows("train", 1, 0)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(SettingsError, match="no split 'test'; environments have train and val"):
        EnvironmentSpec.find("arithmetic").rows("test", 1, 0)


@pytest.mark.parametrize("name", [name for name, _ in plugins.installed("environments")])
def test_every_installed_environment_loads(name: str) -> None:
    assert issubclass(plugins.find("environments", name), Environment)
