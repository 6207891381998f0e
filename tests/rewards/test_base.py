"""What a reward sees of a trajectory."""

from agentverl.rewards.base import RewardInput, final_answer
from agentverl.trajectory import AgentLoopOutput

WORDS = ["", "call", "tool:", "says", "42", "answer", "is"]


def decode(ids: list[int]) -> str:
    return " ".join(WORDS[token] for token in ids)


def test_the_solution_holds_only_what_the_policy_wrote() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "answer is"}]
    output = AgentLoopOutput(
        prompt_ids=[1],
        response_ids=[1, 2, 3, 4, 5, 6],
        response_mask=[1, 0, 0, 0, 1, 1],
        num_turns=4,
        messages=messages,
    )
    child = AgentLoopOutput(prompt_ids=[1], response_ids=[4], response_mask=[1], role="searcher")
    row = {"data_source": "d", "reward_model": {"ground_truth": "42"}, "extra_info": {"index": 3}}
    judged = RewardInput.of(row, [child, output], decode)
    assert judged.solution_str == "call\nanswer is"
    assert judged.full_text == "call tool: says 42 answer is"
    assert judged.final_message == "answer is"
    assert (judged.data_source, judged.ground_truth, judged.extra_info) == ("d", "42", {"index": 3})
    assert judged.trajectory == [child, output]


def test_an_episode_that_ends_on_a_call_has_no_final_answer() -> None:
    assert final_answer([{"role": "assistant", "content": "42", "tool_calls": [{}]}]) == ""
    assert final_answer([{"role": "tool", "content": "42"}]) == ""
    assert final_answer([]) == ""
    assert final_answer([{"role": "assistant", "content": [{"type": "text", "text": "42"}]}]) == "42"
