"""What servers sampled, kept without saying any token twice."""

from hypothesis import given
from hypothesis import strategies as st

from agentverl.rollout.record import Record
from agentverl.trajectory import TokenOutput

IDS = st.lists(st.integers(0, 2), max_size=4)


@given(st.lists(st.tuples(st.booleans(), IDS, IDS), min_size=1, max_size=6))
def test_each_answer_knows_its_own_prompt_and_no_other(turns: list[tuple[bool, list[int], list[int]]]) -> None:
    record, prompts, ids = Record(), [], [1]
    for begins_anew, between, answer in turns:
        ids = [*between] if begins_anew else [*ids, *between]
        prompts.append(list(ids))
        record.add("a", ids, TokenOutput(answer), 1.0)
        ids = [*ids, *answer]
    assert [sampled.prompt_ids for sampled in record] == prompts
    for sampled in record:
        for prompt in prompts:
            assert sampled.stands_at([*prompt, 0, 1], len(prompt)) == (prompt == sampled.prompt_ids)


def test_what_was_checked_before_is_not_looked_at_again() -> None:
    record = Record()
    record.add("a", [1, 2], TokenOutput([3]), 1.0)
    record.add("a", [1, 2, 3, 4], TokenOutput([5]), 1.0)
    first, second = record
    assert second.stands_at([9, 9, 9, 4], 4, (first, 3))
    assert not second.stands_at([9, 9, 9, 4], 4, (first, 2))
    assert not second.stands_at([9, 9, 9, 4], 4)


def test_a_long_trajectory_holds_each_token_once() -> None:
    record, ids = Record(), [0] * 10
    for _ in range(2000):
        record.add("a", ids, TokenOutput([1]), 1.0)
        ids = [*ids, 1, 2]
    assert sum(len(sampled.between) + len(sampled.token_ids) for sampled in record) == len(ids) - 1
    assert record[-1].prompt_ids == ids[:-2]


def test_two_agents_that_speak_by_turns_go_on_from_their_own_answers() -> None:
    record = Record()
    for agent, ids in (("a", [1]), ("b", [2]), ("a", [1, 7, 3]), ("b", [2, 7, 4])):
        record.add(agent, ids, TokenOutput([7]), 1.0)
    assert [sampled.between for sampled in record] == [[1], [2], [3], [4]]


def test_what_a_loop_does_to_its_lists_changes_nothing() -> None:
    record, prompt, answer = Record(), [1, 2], TokenOutput([3], [-0.5])
    record.add("a", prompt, answer, 1.0)
    prompt.append(9)
    answer.token_ids.append(9)
    assert answer.log_probs is not None
    answer.log_probs.append(0.0)
    assert (record[0].prompt_ids, record[0].token_ids, record[0].log_probs) == ([1, 2], [3], [-0.5])
