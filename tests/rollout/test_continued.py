"""Answers of several pieces: what is asked for next, and what they are together."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.errors import InfrastructureError
from agentverl.rollout.continued import Continued
from agentverl.trajectory import TokenOutput

EOS = 9


def piece(ids: list[int], stop_reason: str = "length", version: int = 0) -> TokenOutput:
    return TokenOutput(ids, [-float(token) for token in ids], stop_reason, [(len(ids), version)])


def serve(answer: Continued, text: list[int], kept: int | None = None) -> TokenOutput:
    """What a server gives that writes `text` behind the prompt; `kept` tokens of it where it leaves."""
    done = len(answer.prompt_ids) - 1
    ids = text[done : done + answer.sampling_params["max_tokens"]]
    if kept is not None and kept < len(ids):
        return piece(ids[:kept], "aborted")
    return piece(ids, "completed" if ids and ids[-1] == EOS else "length")


@given(
    text=st.lists(st.integers(0, EOS), min_size=1, max_size=40),
    max_tokens=st.integers(1, 40),
    most_tokens=st.none() | st.integers(1, 12),
    leaves=st.lists(st.none() | st.integers(1, 12), max_size=40),
)
def test_pieces_are_together_what_one_answer_would_be(
    text: list[int], max_tokens: int, most_tokens: int | None, leaves: list[int | None]
) -> None:
    text = [*text[: text.index(EOS)], EOS] if EOS in text else [*text, *[0] * max_tokens]
    answer = Continued([1], {"max_tokens": max_tokens, "seed": 5}, most_tokens)
    seeds = []
    for kept in [*leaves, *[None] * 41]:
        assert answer.sampling_params["max_tokens"] <= min(max_tokens, most_tokens or max_tokens)
        seeds.append(answer.sampling_params["seed"])
        if answer.takes(serve(answer, text, kept)):
            break
    whole = serve(Continued([1], {"max_tokens": max_tokens}), text)
    assert answer.output.token_ids == whole.token_ids
    assert answer.output.log_probs == whole.log_probs
    assert answer.output.stop_reason == whole.stop_reason
    assert answer.output.weight_versions[-1][0] == len(whole.token_ids)
    assert len(set(seeds)) == len(seeds)


def test_only_servers_that_left_count_as_preemptions() -> None:
    answer = Continued([1], {"max_tokens": 9}, most_tokens=3)
    for part in (piece([2, 3, 4]), piece([5], "aborted"), piece([6, 7, 8])):
        assert not answer.takes(part)
    assert answer.prompt_ids == [1, *range(2, 9)]
    assert answer.sampling_params == {"max_tokens": 2}
    assert answer.takes(piece([EOS], "completed"))
    assert answer.output.num_preempted == 1


def test_a_server_that_ends_before_the_bound_of_a_piece_has_ended_the_answer() -> None:
    answer = Continued([1], {"max_new_tokens": 9}, most_tokens=5)
    assert answer.sampling_params == {"max_new_tokens": 5}
    assert answer.takes(piece([2, 3]))


@pytest.mark.parametrize("params", [{"max_tokens": 9, "stop": ["</answer>"]}, {"temperature": 1.0}])
def test_answers_are_asked_for_whole_where_a_cut_could_change_their_end(params: dict[str, Any]) -> None:
    answer = Continued([1], params, most_tokens=2)
    assert answer.sampling_params == params
    assert answer.takes(piece([2, 3]))


def test_servers_that_give_nothing_back_again_and_again_are_an_error() -> None:
    answer = Continued([1], {"max_tokens": 9})
    for _ in range(7):
        assert not answer.takes(piece([], "aborted"))
    with pytest.raises(InfrastructureError, match="aborted a request 8 times without a token"):
        answer.takes(piece([], "aborted"))
