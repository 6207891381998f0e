"""Advantages a turn: what one answer to one observation was worth, however many tokens it has."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.algorithms.group_advantages import compute_grpo_outcome_advantage
from agentverl.algorithms.return_advantages import generalised_advantages
from agentverl.algorithms.turn_advantages import (
    compute_gigpo_advantage,
    compute_turn_gae_advantage_return,
    compute_turn_grpo_advantage,
)
from agentverl.algorithms.turns import Turns

MASK = torch.tensor([[1, 1, 0, 0, 1, 0, 1, 1], [0, 1, 0, 1, 1, 1, 0, 0]])
NUMBER = [[0, 0, 0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1, 1, 1]]
TOKENS = [[2, 1, 2], [1, 3, 0]]
seeds = st.integers(0, 2**32 - 1)


def test_turns_are_runs_of_the_policys_tokens() -> None:
    turns = Turns.of(MASK)
    assert turns.number.tolist() == NUMBER
    assert turns.tokens.tolist() == TOKENS
    values = torch.arange(16.0).view(2, 8)
    assert turns.first(values).tolist() == [[0, 4, 6], [9, 11, 0]]
    assert turns.rewards(torch.ones(2, 8)).tolist() == [[4, 2, 2], [3, 5, 0]]
    assert turns.spread(torch.tensor([[1.0, 2, 3], [4, 5, 6]]), values).tolist() == [
        [1, 1, 0, 0, 2, 0, 3, 3],
        [0, 4, 0, 5, 5, 5, 0, 0],
    ]


def test_turns_may_be_numbered_where_nothing_masked_lies_between_them() -> None:
    index = torch.tensor([[0, 0, -1, -1, 1, -1, 2, 3], [9, 1, 9, 2, 2, 2, 9, 9]])
    turns = Turns.of(MASK, index)
    assert turns.tokens.tolist() == [[2, 1, 1, 1], [0, 1, 3, 0]]
    assert turns.number.tolist() == [[0, 0, 0, 0, 1, 1, 2, 3], [0, 1, 1, 2, 2, 2, 2, 2]]
    assert turns.first(torch.arange(16.0).view(2, 8)).tolist() == [[0, 4, 6, 7], [0, 9, 11, 0]]


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ([[1, 1, 0]], "it falls, or is below 0: 0 at token 2 of row 0"),
        ([[-1, 0, 0]], "it falls, or is below 0: -1 at token 0 of row 0"),
        ([[0, 0]], r"turn_index has the shape \(1, 2\), the mask \(1, 3\)"),
    ],
)
def test_turns_count_up_from_zero(index: list[list[int]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Turns.of(torch.ones(1, 3), torch.tensor(index))


def test_worked_numbers_of_gae_by_turns() -> None:
    rewards = torch.zeros(2, 8)
    rewards[0, 7], rewards[1, 5], rewards[0, 1] = 1.0, 1.0, 0.5
    values = torch.full((2, 8), 9.0)  # looked at where a turn begins only
    values[0, 0], values[0, 4], values[0, 6], values[1, 1], values[1, 3] = 0.1, 0.2, 0.4, 0.3, 0.6
    advantages, returns = compute_turn_gae_advantage_return(rewards, values, MASK, gamma=0.9, lam=0.5)
    last = 1 - 0.4
    middle = 0.9 * 0.4 - 0.2 + 0.45 * last
    first = 0.5 + 0.9 * 0.2 - 0.1 + 0.45 * middle
    second_last = 1 - 0.6
    second_first = 0.9 * 0.6 - 0.3 + 0.45 * second_last
    assert returns[0].tolist() == pytest.approx([first + 0.1] * 2 + [0, 0, middle + 0.2, 0] + [last + 0.4] * 2)
    assert returns[1].tolist() == pytest.approx([0, second_first + 0.3, 0, *[second_last + 0.6] * 3, 0, 0])
    raw = torch.tensor([first, first, middle, last, last, second_first, *[second_last] * 3])
    torch.testing.assert_close(advantages[MASK != 0], (raw - raw.mean()) / raw.std())


@given(seeds)
def test_with_turns_of_one_token_gae_by_turns_is_that_by_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, 3, 9, generator=generator, dtype=torch.float64)
    mask = (torch.arange(9) % 2 == 0).long().repeat(3, 1)
    rewards = rewards * mask
    _, returns = compute_turn_gae_advantage_return(rewards, values, mask, gamma=0.9, lam=0.8)
    _, by_tokens = generalised_advantages(rewards, values, mask, 0.9, 0.8)
    torch.testing.assert_close(returns[mask != 0], by_tokens[mask != 0])


@given(seeds, st.integers(1, 9), st.integers(1, 9))
def test_the_length_of_answers_and_observations_delays_nothing(seed: int, answer: int, observation: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    earned, worth = torch.randn(2, 3, generator=generator)
    short = torch.tensor([[1, 0, 1, 0, 1]])
    lengths = torch.tensor([answer, observation] * 2 + [answer])
    long = short.repeat_interleave(lengths, dim=1)
    rewards, values = torch.zeros(1, 5), torch.zeros(1, 5)
    rewards[0, ::2], values[0, ::2] = earned, worth
    ends = lengths.cumsum(0) - 1
    long_rewards = torch.zeros(1, long.shape[1])
    long_rewards[0, ends[::2]] = earned
    long_values = values.repeat_interleave(lengths, dim=1)
    _, returns = compute_turn_gae_advantage_return(rewards, values, short, 0.9, 0.8)
    _, long_returns = compute_turn_gae_advantage_return(long_rewards, long_values, long, 0.9, 0.8)
    torch.testing.assert_close(long_returns[0, ends[::2]], returns[0, ::2])


def test_a_reward_counts_for_the_turn_that_earned_it_and_those_before() -> None:
    mask = torch.tensor([[1, 0, 1, 0, 1]] * 2)
    rewards = torch.zeros(2, 5)
    rewards[0, 2] = 1.0
    advantages, _ = compute_turn_grpo_advantage(rewards, mask, ["a", "a"], norm_adv_by_std_in_grpo=False, gamma=0.5)
    assert advantages.tolist() == [[0.25, 0, 0.5, 0, 0], [-0.25, 0, -0.5, 0, 0]]


def test_turns_that_no_other_sample_came_to_get_nothing() -> None:
    mask = torch.tensor([[1, 0, 1, 0, 1], [1, 0, 1, 0, 0]])
    rewards = torch.tensor([[0.0, 0, 0, 0, 1], [0, 0, 0, 0, 0]])
    advantages, _ = compute_turn_grpo_advantage(rewards, mask, ["a", "a"], norm_adv_by_std_in_grpo=False)
    assert advantages.tolist() == [[0.5, 0, 0.5, 0, 0], [-0.5, 0, -0.5, 0, 0]]
    raw, _ = compute_turn_grpo_advantage(rewards, mask, ["a", "a"], norm_adv_by_std_in_grpo=False, singleton="raw")
    assert raw[0, 4] == 1


def test_gigpo_compares_turns_of_the_same_state() -> None:
    mask = torch.tensor([[1, 0, 1], [1, 0, 1], [1, 0, 1]])
    rewards = torch.tensor([[0.0, 0, 1], [0, 0, 0], [0, 0, 1]])
    states = [["start", "left"], ["start", "right"], ["start", "right"]]
    options = {"norm_adv_by_std_in_grpo": False, "gamma": 0.5}
    advantages, _ = compute_gigpo_advantage(rewards, mask, ["a"] * 3, states, **options)  # type: ignore[arg-type]
    whole = torch.tensor([1 / 3, -2 / 3, 1 / 3])
    torch.testing.assert_close(advantages[:, 0], whole + whole * 0.5)
    torch.testing.assert_close(advantages[:, 2], whole + torch.tensor([0.0, -0.5, 0.5]))
    halved, _ = compute_gigpo_advantage(rewards, mask, ["a"] * 3, states, step_advantage_weight=0.5, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(halved[:, 2], whole + torch.tensor([0.0, -0.25, 0.25]))


def test_gigpo_without_states_is_grpo() -> None:
    mask, rewards = torch.tensor([[1, 0, 1], [1, 0, 1]]), torch.tensor([[0.0, 0, 1], [0, 0, 0]])
    unknown = [[None, None], [None, None]]
    advantages, _ = compute_gigpo_advantage(rewards, mask, ["a", "a"], unknown)
    torch.testing.assert_close(advantages, compute_grpo_outcome_advantage(rewards, mask, ["a", "a"])[0])
    elsewhere = [["s", "t"], ["s", "t"]]
    apart, _ = compute_gigpo_advantage(rewards, mask, ["a", "b"], elsewhere)
    assert not apart.any()


@pytest.mark.parametrize(
    ("states", "problem"),
    [([["s", "t"]], "state_keys has 1 rows, the batch 2"), ([["s"], ["s", "t"]], "1 keys for turn 1 of row 0")],
)
def test_each_turn_needs_a_state(states: list[list[str]], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        compute_gigpo_advantage(torch.zeros(2, 3), torch.tensor([[1, 0, 1]] * 2), ["a", "a"], states)
