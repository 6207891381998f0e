"""What a user may get wrong beyond the configuration's keys, each with what has to stand in the answer."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agentverl.data.model_folder import resolve_model_path
from tests.trainer.command import File, rows

NANO = resolve_model_path("nano").path


class Case(NamedTuple):
    """Words and files that are wrong, and what has to stand in the answer."""

    name: str
    words: list[str]
    messages: list[str]
    files: Mapping[str, File] = {}


def _rows_case(name: str, file: str | bytes, *messages: str) -> Case:
    """Training rows from a file, in no environment."""
    words = ["agent.environment=null", "data.train_files=rows.jsonl"]
    return Case(name, words, list(messages), {"rows.jsonl": file})


DATA = [
    _rows_case("row that is no object", "[1]\n", "data.train_files: rows.jsonl, row 0, is a list; expected an object"),
    _rows_case("line that is no JSON", '{"prompt": "x"}\n{', "rows.jsonl, line 2, is no valid JSON"),
    _rows_case("text in another encoding", b'{"prompt": "\xe9"}\n', "rows.jsonl, line 1, is no valid JSON"),
    _rows_case("empty dataset", "", "data.train_files: data file rows.jsonl has no rows"),
    _rows_case("missing column", '{"question": "x"}\n', "no column 'prompt' (data.prompt_key); they have question"),
    _rows_case("wrong prompt in a later row", rows({}, {"prompt": 3}), "row 2: prompt is 3; expected a list"),
    _rows_case("message without text", rows({"prompt": [{"role": "user"}]}), "expected content that is text or a list"),
    _rows_case("agent_name of another type", rows({"agent_name": 3}), "row 0: agent_name is 3; expected text"),
    _rows_case("unknown agent loop", rows({"agent_name": "tool_agnt"}), "'tool_agnt'; did you mean 'tool_agent'?"),
    _rows_case("unknown environment", rows({"environment": "shop"}), "no environments plugin named 'shop'"),
    _rows_case(
        "task of another environment",
        rows({"environment": "arithmetic", "environment_kwargs": {"left": 1}}),
        "environment_kwargs of the row do not fit Arithmetic.reset: missing a required argument",
        "; it has left",
    ),
    _rows_case("environment_kwargs that are a list", rows({"environment_kwargs": [1]}), "environment_kwargs is [1]"),
    _rows_case("tools_kwargs that are a list", rows({"tools_kwargs": [1]}), "tools_kwargs is [1]; expected a mapping"),
    _rows_case(
        "tools_kwargs of a tool that are a number",
        rows({"tools_kwargs": {"calculator": 3}}),
        "tools_kwargs of the row hold 3 for tool 'calculator'; expected a mapping",
    ),
    _rows_case("unknown data source", rows({"data_source": "mine"}), "no reward function for data_source 'mine'"),
    _rows_case("row without ground truth", rows({"reward_model": {}}), "has no reward_model.ground_truth"),
    _rows_case(
        "tools for rows that call none",
        rows({"agent_name": "single_turn_agent"}),
        "single_turn_agent calls none and no row names another agent loop; set agent.default_agent_loop=tool_agent",
    ),
    _rows_case("too few rows", rows(count=1), "1 rows do not make a batch of data.train_batch_size=2"),
    Case(
        "rows that fit no environment",
        ["~data.train_size", "data.train_files=rows.jsonl"],
        ["do not fit Arithmetic.reset", "which agent.environment=null takes away"],
        {"rows.jsonl": rows()},
    ),
    Case(
        "file of another kind", ["~data.train_size", "data.train_files=rows.csv"], ["ending '.csv'"], {"rows.csv": "a"}
    ),
    Case(
        "damaged parquet",
        ["~data.train_size", "data.train_files=rows.parquet"],
        ["rows.parquet is no readable parquet file"],
        {"rows.parquet": "PAR1"},
    ),
    Case(
        "prompt longer than allowed",
        ["data.max_prompt_length=20"],
        ["train tasks of agent.environment=arithmetic: the prompt of row 0 has", "more than data.max_prompt_length=20"],
    ),
    Case(
        "all prompts longer than allowed",
        ["data.max_prompt_length=5", "data.truncation=drop"],
        ["all 2 prompts are longer than data.max_prompt_length=5"],
    ),
    Case(
        "prompt that cannot be shortened",
        ["data.max_prompt_length=5", "data.truncation=left"],
        ["the system message and tools alone have more than data.max_prompt_length=5 tokens"],
    ),
]


def _tools(name: str, yaml: str, *messages: str) -> Case:
    words = ["multi_turn.tool_config_path=tools.yaml"]
    return Case(f"tools: {name}", words, list(messages), {"tools.yaml": yaml, "my_tools.py": _TOOLS})


_TOOLS = '''
from agentverl import Tool

class Mute(Tool):
    """Does nothing."""

def undescribed(x: int):
    return x

def untyped(x):
    """Take anything.

    Args:
        x: Anything.
    """

number = 3
'''

TOOLS = [
    _tools("no YAML", "tools: [", "tools.yaml is not YAML: while parsing a flow node"),
    _tools("code in the YAML", "tools: !!python/name:os.system", "tools.yaml is not YAML: could not determine"),
    _tools("empty file", "", "tools.yaml holds NoneType, no key `tools`; expected `tools: [{tool: calculator"),
    _tools("a list", "- calculator", "tools.yaml holds list, no key `tools`"),
    _tools("another key", "tools: [calculator]\ntimeout: 4", "key 'timeout' is unknown"),
    _tools("no tool", "tools: []", "`tools` must be a list of at least one tool"),
    _tools("entry of another type", "tools: [3]", "tools[0] is int 3; expected a mapping such as {tool: calculator}"),
    _tools("entry without tool", "tools: [{name: x}]", "tools[0] must have either `tool` or verl's `class_name`"),
    _tools("tool of another type", "tools: [{tool: 3}]", "tools[0]: `tool` must be a name or an import path, not 3"),
    _tools(
        "unknown tool", "tools: [calculatr]", "tools.yaml: tools[0]: no tools plugin named 'calculatr'; did you mean"
    ),
    _tools(
        "unknown setting", "tools: [{tool: calculator, digits: 3}]", "tools[0] (calculator): key 'digits' is unknown"
    ),
    _tools("timeout", "tools: [{tool: calculator, timeout_seconds: soon}]", "must be a number above 0, not 'soon'"),
    _tools("the same twice", "tools: [calculator, calculator]", "two tools are called 'calculator'"),
    _tools("no such module", "tools: ['nowhere:X']", "does not import: ModuleNotFoundError: No module named 'nowhere'"),
    _tools("no such file", "tools: ['x.py:X']", "plugin file x.py does not exist"),
    _tools("no such attribute", "tools: ['my_tools.py:Mut']", "my_tools.py has no attribute 'Mut'; it has Mute"),
    _tools("class without call", "tools: ['my_tools.py:Mute']", "does not define `async def call`"),
    _tools(
        "neither class nor function", "tools: ['my_tools.py:number']", "is a int; expected a subclass of agentverl.Tool"
    ),
    _tools(
        "function without docstring", "tools: ['my_tools.py:undescribed']", "my_tools.py:undescribed) has no docstring"
    ),
    _tools("argument without type", "tools: ['my_tools.py:untyped']", "my_tools.py:untyped)"),
    _tools(
        "several wrong",
        "tools: [calculatr, {tool: calculator, digits: 3}]",
        "tools[0]: no tools plugin named 'calculatr'",
        "tools[1] (calculator): key 'digits' is unknown",
    ),
]

_WORLD = "from agentverl import Environment\nclass World(Environment):\n"
_SIGNATURE = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):"


def _plugin(name: str, word: str, code: str, *messages: str) -> Case:
    return Case(f"plugin: {name}", [word], list(messages), {"mine.py": code})


PLUGINS = [
    _plugin("syntax error", "agent.default_agent_loop=mine.py:Loop", "def (", "does not import: SyntaxError"),
    _plugin(
        "error",
        "agent.default_agent_loop=mine.py:Loop",
        "1 / 0",
        "does not import: ZeroDivisionError: division by zero (mine.py:1)",
    ),
    _plugin(
        "no name in the file", "agent.default_agent_loop=mine.py", "", "say which name in it is meant: mine.py:Name"
    ),
    _plugin("exit", "agent.default_agent_loop=mine.py:Loop", "raise SystemExit(3)", "does not import: SystemExit: 3"),
    _plugin(
        "no loop", "agent.default_agent_loop=mine.py:Loop", "class Loop: pass", "expected a subclass of agentverl.A"
    ),
    _plugin("no environment", "agent.environment=mine.py:World", "World = 3", "expected a subclass of agentverl.Envi"),
    _plugin("environment's settings", "agent.environment_kwargs.lowest=3", "", "'arithmetic': key 'lowest' is unknown"),
    _plugin(
        "environment without tasks",
        "agent.environment=mine.py:World",
        f"{_WORLD}    pass",
        "environment 'mine.py:World' makes no tasks; set data.train_files",
        "or define the class method `tasks`",
    ),
    _plugin(
        "environment whose tasks fail",
        "agent.environment=mine.py:World",
        f"{_WORLD}    @classmethod\n    def tasks(*_): raise OSError('offline')",
        "environment 'mine.py:World': tasks('train', 2, 0) raised OSError: offline (mine.py:",
    ),
    _plugin(
        "environment whose tasks are none",
        "agent.environment=mine.py:World",
        f"{_WORLD}    @classmethod\n    def tasks(*_): return [3]",
        "tasks gave int 3; expected Tasks",
    ),
    _plugin("no reward function", "reward.custom_reward_function.path=mine.py", "", "has no attribute 'compute_score'"),
    _plugin(
        "reward of another form",
        "reward.custom_reward_function.path=mine.py",
        "def compute_score(answer): return 1",
        "lacks the parameter 'data_source'; expected compute_score(data_source, solution_str, ground_truth",
    ),
    _plugin(
        "environment whose tasks need an instance",
        "agent.environment=mine.py:World",
        f"{_WORLD}    def tasks(self, split, size, seed): return []",
        "environment 'mine.py:World': tasks must be a @classmethod",
    ),
    Case(
        "plugin: reward's keywords",
        ["reward.custom_reward_function.path=mine.py", "reward.reward_kwargs.weight=3"],
        ["takes no argument 'weight'"],
        {"mine.py": f"{_SIGNATURE} return 1"},
    ),
    _plugin("no logger", "trainer.logger=mine.py:Log", "class Log: pass", "is no subclass of agentverl.tracking"),
    _plugin("no router", "rollout.router=mine.py:Router", "", "mine.py has no attribute 'Router'"),
    _plugin("no estimator", "algorithm.adv_estimator=mine.py:mean", "", "mine.py has no attribute 'mean'"),
    _plugin("no loss", "actor.policy_loss.loss_mode=mine.py:loss", "", "mine.py has no attribute 'loss'"),
    _plugin(
        "list of loops", "agent.agent_loop_config_path=mine.py", "a: 1", "mine.py holds dict; expected a list such as"
    ),
    _plugin(
        "entry of a loop",
        "agent.agent_loop_config_path=mine.py",
        "[{name: x, _target_: tool_agent, turns: 3}]",
        "ToolAgent: turns: ",
    ),
]


def _model(name: str, change: Callable[[Path], object], *messages: str) -> Case:
    def make(path: Path) -> None:
        shutil.copytree(NANO, path)
        change(path)

    return Case(f"model: {name}", ["model.path=model"], list(messages), {"model": make})


def _without(file: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).unlink()


def _with(file: str, content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / file).write_text(content)


def _config(**changes: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **changes}))

    return change


_TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_NO_END = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}bot: {% endif %}"
)

MODELS = [
    _model("no tokenizer", _without("tokenizer.json"), "model has no tokenizer: expected tokenizer.json"),
    _model("no template", _without("chat_template.jinja"), "has no chat template", "model.custom_chat_template"),
    _model("no weights", _without("model.safetensors"), "model has no weights: expected model.safetensors"),
    _model("no configuration", _without("config.json"), "model has no config.json, so it is no model folder"),
    _model("damaged tokenizer", _with("tokenizer.json", "{"), "does not load: JSONDecodeError"),
    _model("damaged weights", _with("model.safetensors", "x"), "model.safetensors is damaged"),
    _model("weights not fetched", _with("model.safetensors", "version https://git-lfs.x\n"), "is a pointer of Git LFS"),
    _model("damaged configuration of generation", _with("generation_config.json", "{"), "is no valid JSON"),
    _model("unknown architecture", _config(model_type="qwen99"), "config.json cannot be used: ", "qwen99"),
    _model("smaller vocabulary", _config(vocab_size=9), "they do not belong together"),
    _model(
        "template that does not compile", _with("chat_template.jinja", "{% for %}"), "template does not compile: line 1"
    ),
    _model(
        "template that refuses",
        _with("chat_template.jinja", "{{ raise_exception('never') }}"),
        "the chat template refuses messages with roles user, assistant: never",
    ),
    _model(
        "template that cannot be extended",
        _with("chat_template.jinja", "{{ messages | length }}" + _TURNS),
        "the chat template cannot be extended turn by turn: it rewrites earlier messages",
    ),
    _model("template without end of turn", _with("chat_template.jinja", _NO_END), "writes no end-of-turn token after"),
    _model(
        "template that ignores tools", _with("chat_template.jinja", _TURNS), "template does not show tools to the model"
    ),
    Case("model: none there", ["model.path=/nowhere/model"], ["model folder /nowhere/model does not exist"]),
    Case("model: another file", ["model.path=x.bin"], ["x.bin is another kind of file"], {"x.bin": ""}),
    Case("model: no such template", ["model.custom_chat_template=x.jinja"], ["a file that does not exist: x.jinja"]),
    Case("model: no such entry", ["model.override_config.positions=1"], ["qwen2 has no entry 'positions'"]),
    Case(
        "sequences above the model's context",
        ["model.override_config.max_position_embeddings=200"],
        ["is above the model's context of 200 tokens", "or set rollout.max_model_len=200 to end sequences there"],
    ),
    Case(
        "limit above the model's context",
        ["rollout.max_model_len=4000"],
        ["rollout.max_model_len=4000 is above the model's context of 1024 tokens", "set it to 1024"],
    ),
    Case(
        "batch above the tasks",
        ["data.train_batch_size=4", "actor.ppo_mini_batch_size=4"],
        ["data.train_size=2 is below"],
    ),
    Case("micro-batch budget", ["actor.ppo_max_token_len_per_gpu=100"], ["is below the longest sequence, 560 tokens"]),
]

FOLDERS = [
    Case(
        "folder below a file",
        ["trainer.default_local_dir=file/run"],
        ["cannot write to file/run: Not a directory. Set trainer."],
    ),
    Case(
        "folder that is a file",
        ["trainer.default_local_dir=file"],
        ["cannot write to file: there is a file of that name"],
    ),
    Case(
        "samples below a file", ["trainer.rollout_data_dir=file/x"], ["Set trainer.rollout_data_dir to a folder that"]
    ),
    Case("folder that is missing", ["trainer.default_local_dir=/proc/run"], ["cannot write to /proc/run: "]),
]

CASES = [*DATA, *TOOLS, *PLUGINS, *MODELS, *FOLDERS]
