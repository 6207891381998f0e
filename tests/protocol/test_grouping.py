"""Rows of a batch that belong together."""

from hypothesis import given
from hypothesis import strategies as st

from agentverl.protocol.grouping import rows_by


@given(st.lists(st.text(max_size=2)))
def test_each_row_is_in_the_group_of_its_key_and_order_is_kept(keys: list[str]) -> None:
    groups = rows_by(keys)
    assert list(groups) == list(dict.fromkeys(keys))
    assert sorted(row for rows in groups.values() for row in rows) == list(range(len(keys)))
    assert all(keys[row] == key and rows == sorted(rows) for key, rows in groups.items() for row in rows)
