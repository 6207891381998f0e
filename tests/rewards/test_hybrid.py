"""Several rewards as one: weighted, gated, each under its own name."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agentverl.errors import BoundaryError, InfrastructureError, PluginError, SettingsError
from agentverl.rewards.base import RewardResult
from agentverl.rewards.naive import NaiveRewardManager
from agentverl.settings.reward import RewardSettings
from tests.rewards.conftest import MakeManager, answer_of, sequence_of

MODULE = """
from agentverl.errors import InfrastructureError

asked = []

def fixed(data_source, solution_str, ground_truth, value=1.0):
    asked.append(value)
    return value

def detailed(data_source, solution_str, ground_truth):
    return {"score": 1.0, "acc": 0.5, "pred": "4", "letters": 2}

async def sloppy(data_source, solution_str, ground_truth, **kwargs):
    return {"score": 0.25, "acc": 0.0, "note": "text"}

def lost(data_source, solution_str, ground_truth):
    raise InfrastructureError("gone", "reward")

def reserved(data_source, solution_str, ground_truth):
    return {"score": 1.0, "reward": 2.0}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "parts.py"
    path.write_text(MODULE)
    return str(path)


def rule(name: str, function: str, *, weight: float = 1.0, gate: float | None = None, **settings: Any) -> Any:
    return {"name": name, "weight": weight, "gate": gate, "settings": {"function": function, **settings}}


async def test_the_score_is_the_weighted_sum_and_each_part_is_named(file: str, make_manager: MakeManager) -> None:
    manager = make_manager(
        components=[rule("right", f"{file}:detailed", weight=2.0), rule("style", f"{file}:sloppy", weight=-1.0)]
    )
    result = await manager.score(answer_of())
    assert result.score == 2.0 - 0.25
    assert result.components == {
        "right": 1.0,
        "right/acc": 0.5,
        "right/pred": "4",
        "right/letters": 2,
        "acc": 0.5,
        "pred": "4",
        "style": 0.25,
        "style/acc": 0.0,
        "style/note": "text",
    }


async def test_others_count_only_where_the_gate_is_passed(file: str, make_manager: MakeManager) -> None:
    parts = [rule("costly", f"{file}:fixed", value=5.0), rule("form", f"{file}:fixed", gate=0.5, value=0.4)]
    failed = await make_manager(components=parts).score(answer_of())
    assert failed.score == 0.4
    assert failed.components == {"form": 0.4, "form/passed": 0.0}
    parts[1]["settings"]["value"] = 0.5
    passed = await make_manager(components=parts).score(answer_of())
    assert passed.score == 5.5
    assert passed.components == {"form": 0.5, "form/passed": 1.0, "costly": 5.0}


@settings(max_examples=10)
@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-1, 1), st.none() | st.floats(-1, 1)), min_size=1, max_size=5))
async def test_the_order_of_components_changes_nothing(parts: list[tuple[float, float, float | None]]) -> None:
    entries = [
        rule(f"c{number}", "tests.rewards.test_hybrid:valued", weight=weight, gate=gate, value=value)
        for number, (weight, value, gate) in enumerate(parts)
    ]
    scores = []
    for listed in (entries, entries[::-1]):
        manager = NaiveRewardManager(RewardSettings.model_validate({"components": listed}))
        scores.append((await manager.score(answer_of())).score)
        await manager.close()
    assert scores[0] == pytest.approx(scores[1])


def valued(data_source: str, solution_str: str, ground_truth: Any, value: float) -> float:
    return value


async def test_a_component_without_a_score_fails_the_trajectory_by_its_name(
    file: str, make_manager: MakeManager
) -> None:
    manager = make_manager(components=[rule("a", f"{file}:fixed"), rule("b", f"{file}:lost")])
    with pytest.raises(InfrastructureError, match="component b: gone") as caught:
        await manager.score(answer_of())
    assert caught.value.boundary == "reward"
    reserved = make_manager(components=[rule("c", f"{file}:reserved")])
    with pytest.raises(BoundaryError, match=r"component c: .*reserved key 'reward'"):
        await reserved.score(answer_of())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 1.0", "component odd gave 1.0; expected a RewardResult of a number"),
        ("return RewardResult(score=float('nan'))", "component odd gave .*nan.*; expected a RewardResult of a number"),
        ("return RewardResult(score='1')", "component odd gave .*; expected a RewardResult of a number"),
        ("raise KeyError('x')", "component odd failed: KeyError: 'x' .odd.py:5"),
    ],
)
async def test_a_kind_of_the_users_own_fails_by_its_name_too(
    body: str, said: str, file: str, tmp_path: Path, make_manager: MakeManager
) -> None:
    (tmp_path / "odd.py").write_text(
        "from agentverl.rewards.base import RewardResult\n"
        "from agentverl.rewards.components.base import RewardComponent\n"
        "class Odd(RewardComponent):\n"
        "    async def score(self, judged):\n"
        f"        {body}\n"
    )
    odd = {"name": "odd", "kind": f"{tmp_path / 'odd.py'}:Odd"}
    manager = make_manager(components=[odd, rule("right", f"{file}:fixed")])
    with pytest.raises(BoundaryError, match=said):
        await manager.score(answer_of())


async def test_the_environments_score_is_a_component(make_manager: MakeManager) -> None:
    manager = make_manager(components=[{"name": "world", "kind": "environment", "weight": 0.5}])
    assert manager.asks_environment
    scored = RewardResult(score=1.0, components={"acc": 1.0})
    result = await manager.score(answer_of(environment=scored))
    assert (result.score, result.components) == (0.5, {"world": 1.0, "world/acc": 1.0, "acc": 1.0})
    with pytest.raises(BoundaryError, match="component world: no environment scored"):
        await manager.score(answer_of())


async def test_tool_and_turn_rewards_stay_at_their_turns_or_join_the_score(make_manager: MakeManager) -> None:
    judged = answer_of(trajectory=[sequence_of({"search": 1.0, "turn": 2.0}, {"search": 3.0, "environment": 4.0})])
    tools = {"name": "tools", "kind": "tool", "weight": 0.5}
    left = await make_manager(components=[tools]).score(judged)
    assert (left.score, left.components, left.turn_weights) == (0.0, {"tools": 4.0}, {"search": 0.5})
    joined = await make_manager(components=[{**tools, "settings": {"credit": "trajectory"}}]).score(judged)
    assert (joined.score, joined.turn_weights) == (2.0, {"search": 0.0})
    turns = {"name": "turns", "kind": "turn", "settings": {"names": ["turn", "environment"]}}
    named = await make_manager(components=[turns]).score(judged)
    assert (named.components, named.turn_weights) == ({"turns": 6.0}, {"turn": 1.0, "environment": 1.0})


async def test_weights_of_several_components_for_the_same_turn_reward_add_up(make_manager: MakeManager) -> None:
    judged = answer_of(trajectory=[sequence_of({"search": 2.0, "turn": 1.0})])
    tools = {"name": "tools", "kind": "tool", "weight": 0.5}
    for chosen, score, search in (({}, 0.0, 1.5), ({"credit": "trajectory"}, 1.0, 1.0)):
        parts = [{**tools, "settings": chosen}, {"name": "all", "kind": "turn"}]
        for listed in (parts, parts[::-1]):
            result = await make_manager(components=listed).score(judged)
            assert (result.score, result.turn_weights) == (score, {"search": search, "turn": 1.0})


async def test_a_failed_gate_takes_turn_rewards_away_too(file: str, make_manager: MakeManager) -> None:
    parts = [rule("form", f"{file}:fixed", gate=1.0, value=0.0), {"name": "tools", "kind": "tool"}]
    judged = answer_of(trajectory=[sequence_of({"search": 1.0})])
    assert (await make_manager(components=parts).score(judged)).turn_weights == {"search": 0.0}


@pytest.mark.parametrize(
    ("entry", "error", "said"),
    [
        ({"name": "a", "kind": "ruel"}, PluginError, "no reward_components plugin named 'ruel'; did you mean 'rule'"),
        ({"name": "a", "weight": "much"}, ValidationError, "weight"),
        ({"name": "a", "weight": float("nan")}, ValidationError, "finite"),
        ({"name": "score"}, ValidationError, "score is reserved"),
        ({"name": "a/b"}, ValidationError, "without /"),
        ({"name": "a", "wieght": 1}, ValidationError, "wieght"),
        ({"name": "a", "settings": {"function": "gsm8kk"}}, PluginError, "did you mean 'gsm8k'"),
        ({"name": "a", "settings": {"function": "gsm8k", "metod": 1}}, SettingsError, "nearest: method"),
        ({"name": "a", "settings": {"function": "format"}}, SettingsError, "format: it needs tags or a pattern"),
        ({"name": "a", "settings": {"function": "length", "minimum": 3, "maximum": 2}}, SettingsError, "minimum=3"),
        ({"name": "a", "settings": {"function": "repetition", "ngram_size": 0}}, SettingsError, "ngram_size=0"),
        (
            {"name": "a", "settings": {"function": "agentverl.rewards.length:overlong", "limit": 8}},
            SettingsError,
            "overlong needs the argument 'buffer'",
        ),
        ({"name": "a", "kind": "turn", "settings": {"credits": 1}}, SettingsError, "did you mean 'credit'"),
    ],
)
def test_a_wrong_entry_is_refused(entry: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        NaiveRewardManager(RewardSettings.model_validate({"components": [entry]}))


def test_two_components_of_one_name_and_two_rewards_at_once_are_refused() -> None:
    with pytest.raises(ValidationError, match="a stands twice"):
        RewardSettings.model_validate({"components": [{"name": "a"}, {"name": "a"}]})
    with pytest.raises(ValidationError, match=r"either components .* or custom_reward_function\.path"):
        RewardSettings.model_validate({"components": [{"name": "a"}], "custom_reward_function": {"path": "f.py"}})
