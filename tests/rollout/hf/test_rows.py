"""The table of running requests stays whole while rows come, move and go."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentverl.rollout.hf.planning import runs
from agentverl.rollout.hf.requests import Request
from agentverl.rollout.hf.rows import Rows
from agentverl.rollout.replica import SamplingParams


def request(number: int, length: int) -> Request:
    return Request(
        request_id=str(number),
        params=SamplingParams(),
        priority=0,
        order=number,
        ids=np.full(length, number),
        prompt_length=length,
        limit=100,
        ends=(),
        stop=None,
        random=np.random.default_rng(number),
        settle=lambda request, answer: None,
    )


@given(
    run_lengths=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    prefilling=st.integers(0, 3),
    data=st.data(),
)
def test_taking_rows_out_keeps_runs_whole(run_lengths: list[int], prefilling: int, data: st.DataObject) -> None:
    rows = Rows()
    decoding = sum(run_lengths)
    rows.reserve(decoding + prefilling, 20)
    run_of = {}
    for run, count in enumerate([*run_lengths, prefilling]):
        for _ in range(count):
            row = rows.add(request(len(rows), run + 1))
            run_of[str(row)] = run
    rows.decoding = decoding
    pool = [int(first_id) for first_id in rows.ids[: len(rows), 0]]
    ends = [*np.cumsum(run_lengths).tolist(), decoding, decoding + prefilling]
    while len(rows):
        row = data.draw(st.integers(0, len(rows) - 1))
        gone = rows.requests[row]
        for source, target in rows.remove(row, ends):
            pool[target] = pool[source]
        assert gone not in rows.requests
        order = [run_of[other.request_id] for other in rows.requests]
        assert order == sorted(order)
        assert sum(run < len(run_lengths) for run in order) == rows.decoding
        for number, other in enumerate(rows.requests):
            assert pool[number] == other.order == rows.ids[number, 0]
            assert rows.length[number] == len(other.ids)
        assert ends[-1] == len(rows)
        assert ends[-2] == rows.decoding


@given(lengths=st.lists(st.integers(1, 300), max_size=80), allowance=st.integers(0, 500))
def test_runs_cover_all_rows_and_waste_at_most_the_allowance(lengths: list[int], allowance: int) -> None:
    ends = runs(lengths, allowance)
    assert ends == sorted(set(ends))
    assert (ends[-1] if ends else 0) == len(lengths)
    for start, end in zip([0, *ends], ends, strict=False):
        run = lengths[start:end]
        assert len(run) * max(run) - sum(run) <= allowance
