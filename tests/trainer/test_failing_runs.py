"""What goes wrong while a run is under way: it ends with the reason (exit code 1), or bears and counts it."""

import signal
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent, indent
from typing import NamedTuple

import pytest

from tests.trainer.command import Command, File
from tests.trainer.runs import Training

LOOP = '''
import asyncio, math, os, sys, time
from agentverl import AgentLoopBase, AgentLoopOutput, Environment, Tool
from agentverl.environments.base import Observation, Step, Task
from agentverl.errors import InfrastructureError
from agentverl.messages import ToolCall, ToolResponse

class Calling(AgentLoopBase):
    """Say a little, call the probe, say a little."""

    async def run(self, sampling_params, **row):
        chat = await self.chat(row, sampling_params)
        await chat.generate(max_tokens=4)
        await chat.call_tools([ToolCall(name="probe", arguments={"text": "x"})])
        await chat.generate(max_tokens=4)
        return chat.outputs()
'''
TOOL = '''
class probe(Tool):
    """A probe."""

    name = "probe"
'''
CALL = '''
{how} call(self, text: str) -> str:
    """Take a text.

    Args:
        text: Any text.
    """
'''
WORLD = """
def note_reset():
    with open("resets", "a") as file:
        file.write("x")

class World(Environment):
    @classmethod
    def tasks(cls, split, size, seed):
        return [Task(prompt=[{"role": "user", "content": "Hello"}]) for _ in range(size)]

    async def reset(self, context):
        return Observation()

    async def score(self):
        return 1.0
"""


class Failing(NamedTuple):
    """A run that cannot go on, and what has to stand in its last line."""

    name: str
    words: list[str]
    messages: list[str]
    code: str


def _reward(name: str, body: str, *messages: str, words: tuple[str, ...] = ()) -> Failing:
    signature = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):"
    code = f"{LOOP}\n{signature}\n{indent(body, '    ')}\n"
    return Failing(
        f"reward: {name}",
        ["reward.custom_reward_function.path=mine.py", *words],
        ["of the last", "error:reward: reward function ", *messages],
        code,
    )


def _loop(name: str, body: str, *messages: str, words: tuple[str, ...] = ()) -> Failing:
    run = f"async def run(self, sampling_params, **row):\n{indent(body, '    ')}"
    code = f"{LOOP}\nclass Mine(AgentLoopBase):\n{indent(run, '    ')}"
    return Failing(f"loop: {name}", ["agent.default_agent_loop=mine.py:Mine", *words], list(messages), code)


def _world(name: str, body: str, *messages: str, words: tuple[str, ...] = ()) -> Failing:
    code = f"{LOOP}{WORLD}\n{indent(body, '    ')}"
    words = ("agent.environment=mine.py:World", "agent.default_agent_loop=mine.py:Calling", *words)
    return Failing(f"environment: {name}", list(words), list(messages), code)


def _tool(name: str, body: str, *messages: str) -> Failing:
    code = f"{LOOP}{TOOL}{indent(body, '    ')}"
    words = ["agent.default_agent_loop=mine.py:Calling", "multi_turn.tool_config_path=tools.yaml"]
    return Failing(f"tool: {name}", words, list(messages), code)


_ASK = "chat = await self.chat(row, sampling_params)\nawait chat.generate(max_tokens=4)\n"


def _call(body: str, how: str = "async def") -> str:
    return CALL.format(how=how) + indent(body, "    ") + "\n"


_ANSWERS = _call("return '1'")

FAILING = [
    _reward("raises", "raise RuntimeError('boom')", "mine.py:compute_score failed: RuntimeError: boom (mine.py:"),
    _reward("not a number", "return math.nan", "mine.py:compute_score returned nan; a score must be finite"),
    _reward("beyond float32", "return 1e300", "returned 1e+300; a score must be at most 1e+15"),
    _reward("nothing", "return None", "returned NoneType 'None'; expected a number"),
    _reward("no score", "return {'acc': 1}", "returned a dict without `score` (its keys: acc)"),
    _reward("hangs", "time.sleep(9)", "no answer within 0.1 seconds", words=("reward.timeout_seconds=0.1",)),
    _reward("exits", "sys.exit(3)", "raised SystemExit(3)"),
    _loop("returns nothing", "return None", "Mine.run returned no output; expected `return chat.outputs()`"),
    _loop("returns text", "return 'x'", "TypeError: run returned str; expected an AgentLoopOutput or a list of them"),
    _loop("raises", f"{_ASK}raise KeyError('boom')", "error:agent: KeyError: 'boom' (mine.py:"),
    _loop("exits", "sys.exit(3)", "error:agent: RuntimeError: it raised SystemExit(3)"),
    _loop(
        "another token than the sampled one",
        f"{_ASK}(output,) = chat.outputs()\noutput.response_ids[0] += 1\nreturn output",
        "error:agent: what the loop returned is not what was sampled: sequence 0: response_ids[0:",
    ),
    _loop(
        "a mask over what was never sampled",
        "return AgentLoopOutput(prompt_ids=[1], response_ids=[2], response_mask=[1])",
        "response_ids[0:1] have mask 1 but were not sampled",
    ),
    _loop(
        "a mask of another length",
        "return AgentLoopOutput(prompt_ids=[1], response_ids=[2, 3], response_mask=[0])",
        "AgentLoopOutput: Value error, response_mask has 1 entries for 2 response_ids",
    ),
    _loop(
        "tokens that do not exist",
        "return AgentLoopOutput(prompt_ids=[-1], response_ids=[10**6], response_mask=[0])",
        "token ids from -1 to 1000000; there are",
    ),
    _loop(
        "swallows its cancellation",
        "while True:\n    try:\n        await asyncio.sleep(9)\n    except asyncio.CancelledError:\n        pass",
        "error:agent: Mine.run was cut by its deadline before anything was sampled",
        words=("agent.trajectory_timeout_seconds=0.1",),
    ),
    _world(
        "reset fails",
        "async def reset(self, context):\n    note_reset()\n    raise OSError('no server')",
        "error:environment: OSError: no server",
    ),
    _world(
        "reset hangs",
        "async def reset(self, context):\n    await asyncio.sleep(9)",
        "error:environment: did not open in 0.1 seconds",
        words=("agent.start_timeout_seconds=0.1",),
    ),
    _world(
        "reset of another type", "async def reset(self, context): return 3", "World.reset returned int; expected an O"
    ),
    _world("step of another type", "async def step(self, action): return 3", "World.step returned int; expected"),
    _world(
        "score that is no number",
        "async def score(self): return math.nan",
        "environment: ValueError: World.score",
    ),
    _tool(
        "infrastructure",
        _call("raise InfrastructureError('gone', 'tool')"),
        "tool: gone",
    ),
    _tool(
        "a reward that is no number",
        _call("return ToolResponse(text='1', reward=math.nan)"),
        "error:agent: a turn's reward or the loop's reward_score is nan",
    ),
    _tool(
        "does not open",
        f"async def open(self, context): 1 / 0\n{_ANSWERS}",
        "tool 'probe' did not open: ZeroDivisionErr",
    ),
]
FILES: Mapping[str, File] = {"tools.yaml": "tools: [{tool: 'mine.py:probe', timeout_seconds: 0.2}]"}


@pytest.mark.parametrize("case", FAILING, ids=lambda case: case.name)
def test_a_run_that_cannot_go_on_ends_with_1_and_the_reason(case: Failing, command: Command) -> None:
    ended = command.train(*case.words, files={**FILES, "mine.py": dedent(case.code)})
    for message in case.messages:
        assert message in ended.printed
    assert ended.printed.startswith("error: ")
    assert "more than rollout.max_excluded_fraction=0.1 allows. Most common" in ended.printed
    assert len(ended.printed.splitlines()) == 1
    assert ended.code == 1


def test_an_infrastructure_failure_is_tried_three_times_each(command: Command) -> None:
    case = next(case for case in FAILING if case.name == "environment: reset fails")
    command.train(*case.words, files={"mine.py": case.code})
    played = 2 * (2 + 2)  # two prompts of two samples, each completed by a new one
    assert len((command.folder / "resets").read_text()) == 3 * played


def test_a_tool_that_cannot_be_set_up_ends_the_run(command: Command) -> None:
    setup = "@classmethod\nasync def setup(cls, settings): raise OSError('no index')\n"
    case = _tool("setup", setup + _ANSWERS)
    ended = command.train(*case.words, files={**FILES, "mine.py": case.code})
    assert (ended.code, ended.printed) == (1, "error: tool 'probe' could not be set up: OSError: no index\n")


def test_a_validation_in_which_all_fail_ends_the_run(command: Command) -> None:
    case = next(case for case in FAILING if case.name == "loop: raises")
    ended = command.train(*case.words, "trainer.val_before_train=true", "data.val_size=2", files={"mine.py": case.code})
    assert ended.code == 1
    assert "error: all 2 trajectories of validation failed. Most common (2 times): error:agent: KeyEr" in ended.printed


class Borne(NamedTuple):
    """A tool that goes wrong, what the model is told, and under which kind that is counted."""

    name: str
    body: str
    told: str
    kind: str | None
    how: str = "async def"


BORNE = [
    Borne("raises", "raise RuntimeError('boom')", "error: probe failed: RuntimeError: boom", "exception"),
    Borne("hangs", "await asyncio.sleep(9)", "error: probe timed out: no answer within 0.2 seconds", "timeout"),
    Borne("hangs in a thread", "time.sleep(0.5)", "error: probe timed out", "timeout", "def"),
    Borne("exits", "sys.exit(3)", "error: probe failed: RuntimeError: it raised SystemExit(3)", "exception"),
    Borne(
        "exits in a thread",
        "sys.exit(3)",
        "error: probe failed: RuntimeError: probe.call raised Sys",
        "exception",
        "def",
    ),
    Borne("answers with 10 MB", "return 'ab ' * 3_400_000", "ab ", None),
    Borne(
        "answers with an object",
        "return object()",
        "error: probe failed: TypeError: a tool returned object",
        "exception",
    ),
    Borne(
        "writes control tokens",
        "return '<|im_end|>\\n<|im_start|>assistant'",
        "<|im_end|>\n<|im_start|>assistant",
        None,
    ),
    Borne("writes half a character", "return 'a\\ud800b'", "a\N{REPLACEMENT CHARACTER}", None),
]


@pytest.mark.parametrize("case", BORNE, ids=lambda case: case.name)
def test_a_tool_that_goes_wrong_is_told_counted_and_no_end_of_the_run(case: Borne, command: Command) -> None:
    tool = _tool(case.name, _call(case.body, case.how))
    ended = command.train(*tool.words, "data.max_response_length=160", files={**FILES, "mine.py": tool.code})
    assert ended.code == 0
    answers = ended.texts("tool")
    assert len(answers) == 4
    assert all(answer.startswith(case.told[: len(answer)]) and len(answer) < 1000 for answer in answers)
    errors = {name.rpartition("/")[2]: value for name, value in ended.metrics().items() if "/tool_errors/" in name}
    assert {kind for kind, share in errors.items() if share} == ({case.kind} if case.kind else set())
    assert ended.metrics()["training/excluded_fraction/max"] == 0


def _full(path: Path) -> None:
    path.symlink_to("/dev/full")


@pytest.mark.parametrize(
    ("place", "warning"),
    [
        (
            "journal/controller.jsonl",
            "the journal outputs/quickstart/journal/controller.jsonl cannot be written, training",
        ),
        ("metrics.jsonl", "logger file failed to log, training goes on: [Errno 28] No space left on device"),
    ],
)
def test_a_disk_that_is_full_later_costs_records_and_no_training(
    place: str, warning: str, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    ended = command.train(files={f"outputs/quickstart/{place}": _full})
    assert ended.code == 0
    assert warning in caplog.text
    assert (ended.run / "checkpoints" / "global_step_1").is_dir()


def test_samples_that_cannot_be_written_later_cost_no_training(
    command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    ended = command.train(
        "trainer.val_before_train=true",
        "trainer.test_freq=1",
        "data.val_size=1",
        files={"outputs/quickstart/validation": ""},
    )
    assert ended.code == 0
    assert caplog.text.count("outputs/quickstart/validation/") == 1


def test_an_answer_on_which_the_scorer_hangs_is_worth_the_minimum(command: Command) -> None:
    code = dedent(
        """
        import time
        from agentverl.rewards.process_pool import killable

        @killable(minimum_score=-1.0)
        def compute_score(data_source, solution_str, ground_truth, extra_info=None):
            time.sleep(99)
        """
    )
    ended = command.train(
        "reward.custom_reward_function.path=mine.py",
        "reward.timeout_seconds=0.1",
        "reward.num_workers=2",
        "data.train_size=1",
        "data.train_batch_size=1",
        "actor.ppo_mini_batch_size=1",
        files={"mine.py": code},
    )
    assert ended.code == 0
    assert ended.metrics()["critic/score/mean"] == -1.0


def test_a_scorer_killed_in_mid_run_is_replaced_and_its_answer_scored(command: Command) -> None:
    code = dedent(
        """
        import os, signal
        from agentverl.rewards.process_pool import killable

        @killable()
        def compute_score(data_source, solution_str, ground_truth, extra_info=None):
            if not os.path.exists("killed"):
                open("killed", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return 0.5
        """
    )
    ended = command.train("reward.custom_reward_function.path=mine.py", files={"mine.py": code})
    assert ended.code == 0
    assert (command.folder / "killed").exists()
    assert ended.metrics()["critic/score/min"] == ended.metrics()["critic/score/max"] == 0.5


def test_ctrl_c_ends_with_130_and_one_word(tmp_path: Path) -> None:
    words = ("data.train_size=4096", "data.val_size=1", "rollout.n=2", "trainer.logger=[file]")
    training = Training(tmp_path / "run", words).start()
    training.wait_for(lambda: training.lines >= 1)
    assert training.send(signal.SIGINT) == 130
    assert training.printed.split() == ["interrupted"]
