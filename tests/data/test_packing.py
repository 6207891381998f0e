"""Micro-batches hold every sequence once, keep their budgets, and are balanced."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.data.packing import micro_batches
from agentverl.errors import BadInputError

lengths_of = st.lists(st.integers(1, 100), max_size=60)


@given(lengths_of, st.none() | st.integers(100, 400), st.none() | st.integers(1, 9), st.integers(1, 5))
def test_every_index_once_within_both_budgets(
    lengths: list[int], max_tokens: int | None, max_sequences: int | None, count_at_least: int
) -> None:
    batches = micro_batches(lengths, max_tokens=max_tokens, max_sequences=max_sequences, count_at_least=count_at_least)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert len(batches) >= count_at_least
    assert all(sum(lengths[i] for i in batch) <= (max_tokens or 10**9) for batch in batches)
    assert all(len(batch) <= (max_sequences or 10**9) for batch in batches)
    assert all(batch == sorted(batch) for batch in batches)


@given(lengths_of.filter(bool), st.integers(100, 400))
def test_few_and_balanced(lengths: list[int], max_tokens: int) -> None:
    batches = micro_batches(lengths, max_tokens=max_tokens, max_sequences=None)
    totals = [sum(lengths[i] for i in batch) for batch in batches]
    assert totals == sorted(totals, reverse=True)
    assert max(totals) - min(totals) <= max(lengths)
    assert len(batches) <= 2 * sum(lengths) / max_tokens + 1


def test_without_bounds_there_is_one() -> None:
    assert micro_batches([3, 1, 2], max_tokens=None, max_sequences=None) == [[0, 1, 2]]


def test_ranks_in_lockstep_get_empty_ones() -> None:
    assert micro_batches([5], max_tokens=8, max_sequences=None, count_at_least=3) == [[0], [], []]
    assert micro_batches([], max_tokens=8, max_sequences=None) == [[]]


def test_a_sequence_beyond_the_budget_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"sequence of 9 tokens does not fit .* at most 8 tokens"):
        micro_batches([3, 9], max_tokens=8, max_sequences=None)
    with pytest.raises(BadInputError, match="max_sequences is 0"):
        micro_batches([3], max_tokens=None, max_sequences=0)
