"""The tool YAML: what it may hold, and what is said about each way it can be wrong."""

from pathlib import Path
from typing import Any

import pytest

from agentverl import plugins
from agentverl.errors import BadInputError, PluginError, SettingsError
from agentverl.tools.base import Tool, ToolContext, ToolSettings
from agentverl.tools.loading import load_tools, tools_of_entries
from agentverl.tools.toolset import Toolset, ToolSpec

MODULE = '''
from agentverl.tools.base import Tool, ToolSettings
from agentverl.tools.function_tool import tool
from agentverl.tools.verl import BaseTool, OpenAIFunctionToolSchema

class Old(BaseTool):
    def get_openai_tool_schema(self):
        function = {"name": "old", "description": "Old.", "parameters": {"type": "object", "properties": {}}}
        return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})

class DiceSettings(ToolSettings):
    sides: int = 6

class Dice(Tool):
    """Roll a die."""
    Settings = DiceSettings
    async def call(self) -> int:
        return self.context.random.randint(1, self.settings.sides)

class Untyped(Tool):
    """No hint."""
    async def call(self, x):
        return x

class Abstract(Tool):
    """No call."""

@tool
def double(x: int) -> int:
    """Double a number."""
    return 2 * x

@tool("shout")
async def loud(text: str) -> str:
    """Shout."""
    return text.upper()

def helper(x: int) -> int:
    """Not marked."""
    return x
'''


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "my_tools.py"
    path.write_text(MODULE)
    return path


def test_reads_names_settings_and_timeouts(tmp_path: Path, module: Path) -> None:
    config = tmp_path / "tools.yaml"
    config.write_text(f"""
tools:
  - {{tool: calculator, timeout_seconds: 5, significant_digits: 4}}
  - {{tool: "{module}:Dice", sides: 20}}
  - "{module}:helper"
""")
    calculator, dice, helper = load_tools(config)
    assert (calculator.name, calculator.timeout_seconds, calculator.settings.significant_digits) == ("calculator", 5, 4)
    assert (dice.name, dice.timeout_seconds, dice.settings.sides) == ("dice", None, 20)
    assert helper.name == "helper"


async def test_reads_marked_functions(module: Path) -> None:
    specs = load_tools(function_tool_path=module)
    assert [spec.name for spec in specs] == ["double", "shout"]
    bound = await Toolset(specs).open(ToolContext())
    assert (await bound["double"].call({"x": "4"})).text == "8"
    assert (await bound["shout"].call({"text": "hi"})).text == "HI"


def test_takes_the_public_functions_of_a_file_without_marks(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(
        "from os.path import join\n\n"
        'def double(x: int) -> int:\n    """Double."""\n    return 2 * _same(x)\n\n'
        "def _same(x: int) -> int:\n    return x\n"
    )
    assert [spec.name for spec in load_tools(function_tool_path=tmp_path / "plain.py")] == ["double"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("tools: [", "is not YAML"),
        ("", "holds NoneType, no key `tools`"),
        ("[calculator]", "holds list, no key `tools`"),
        ("tool: [calculator]", "holds keys tool, no key `tools`"),
        ("{tools: [calculator], timeout: 3}", "key 'timeout' is unknown"),
        ("tools: calculator", "must be a list of at least one tool"),
        ("tools: []", "must be a list of at least one tool"),
        ("tools: [3]", r"tools\[0\] is int 3"),
        ("tools: [{timeout_seconds: 5}]", r"tools\[0\] must have either `tool` or verl's `class_name`; it has neither"),
        ("tools: [{tool: calculator, class_name: x.Y}]", "it has both"),
        ("tools: [{tool: 3}]", "`tool` must be a name or an import path, not 3"),
        ("tools: [{tool: calculater}]", "no tools plugin named 'calculater'; did you mean 'calculator'"),
        ("tools: [{tool: 'no_such_module:Tool'}]", "does not import: ModuleNotFoundError"),
        (
            "tools: [{tool: 'agentverl.tools.calculator:Calculater'}]",
            "has no attribute 'Calculater'; it has Calculator",
        ),
        ("tools: [{tool: 'agentverl.tools.calculator:CalculatorSettings'}]", "is a class CalculatorSettings; expected"),
        ("tools: [{tool: 'MODULE:Abstract'}]", "does not define `async def call`"),
        ("tools: [{tool: 'MODULE:Untyped'}]", "parameter 'x' has no type hint"),
        ("tools: [{tool: 'MODULE:DiceSettings'}]", "is a class DiceSettings"),
        ("tools: [{tool: 'nowhere.py:Dice'}]", "plugin file nowhere.py does not exist"),
        (
            "tools: [{tool: calculator, timeout: 5}]",
            "key 'timeout' is unknown .did you mean 'timeout_sec",
        ),
        ("tools: [{tool: calculator, timeout_seconds: 0}]", "timeout_seconds must be a number above 0, not 0"),
        ("tools: [{tool: calculator, timeout_seconds: soon}]", "timeout_seconds must be a number above 0, not 'soon'"),
        (
            "tools: [{tool: calculator, significant_digits: lots}]",
            "significant_digits = 'lots': Input should be a valid",
        ),
        ("tools: [{tool: calculator, significant_digits: 0}]", "greater than or equal to 1"),
        ("tools: [calculator, calculator]", "two tools are called 'calculator'"),
        ("tools: [{class_name: agentverl.tools.calculator.Calculator}]", "not a tool in verl's form; it lacks create"),
        (
            "tools: [{class_name: 'MODULE:Old', timeout_seconds: -1}]",
            "timeout_seconds must be a number above 0, not -1",
        ),
        ("tools: [{class_name: agentverl.tools.verl.BaseTool, schema: {}}]", "key 'schema' is unknown"),
        ("tools: [{class_name: agentverl.tools.verl.BaseTool, tool_schema: {}}]", "tool_schema: .*function"),
        ("tools: [{class_name: agentverl.tools.verl.BaseTool}]", "has no schema: give the entry a `tool_schema`"),
    ],
)
def test_says_how_the_yaml_is_wrong(content: str, said: str, tmp_path: Path, module: Path) -> None:
    config = tmp_path / "tools.yaml"
    config.write_text(content.replace("MODULE", str(module)))
    with pytest.raises(BadInputError, match=said) as caught:
        load_tools(config)
    assert isinstance(caught.value, SettingsError | PluginError)
    assert "\n" not in str(caught.value)


def test_says_which_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"tool_config_path: .*tools.yaml is not a file"):
        load_tools(tmp_path / "tools.yaml")
    with pytest.raises(SettingsError, match=r"function_tool_path: .*tools.py is not a Python file"):
        load_tools(function_tool_path=tmp_path / "tools.py")
    (tmp_path / "tools.py").write_text("x = 1")
    with pytest.raises(PluginError, match="has no function; expected annotated functions"):
        load_tools(function_tool_path=tmp_path / "tools.py")
    (tmp_path / "broken.py").write_text("import no_such_module")
    with pytest.raises(PluginError, match="does not import: ModuleNotFoundError"):
        load_tools(function_tool_path=tmp_path / "broken.py")


def test_names_collide_across_both_files(tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text("tools: [calculator]")
    (tmp_path / "tools.py").write_text(
        "from agentverl.tools.function_tool import tool\n"
        "@tool('calculator')\ndef add(a: int) -> int:\n    'Add.'\n    return a\n"
    )
    with pytest.raises(SettingsError, match="two tools are called 'calculator'"):
        load_tools(tmp_path / "tools.yaml", tmp_path / "tools.py")


@pytest.mark.parametrize("name", [name for name, _ in plugins.installed("tools")])
def test_every_installed_tool_can_be_described(name: str) -> None:
    (spec,) = tools_of_entries([{"tool": name}])
    assert spec.schema["type"] == "function"
    assert spec.schema["function"]["description"]


def test_settings_and_contexts_are_public() -> None:
    class Mine(Tool):
        """Mine."""

        class Settings(ToolSettings):
            depth: int = 2

        async def call(self, x: int) -> Any:
            return x

    assert ToolSpec.of(Mine).settings.depth == 2
