"""What was encoded lately is not encoded again, and nothing else is taken for it."""

from datetime import date

from agentverl.data.recent_ids import RecentIds


class Encoder:
    def __init__(self, ids: list[int]) -> None:
        self.ids, self.calls = ids, 0

    def __call__(self) -> list[int]:
        self.calls += 1
        return list(self.ids)


def test_the_same_is_encoded_once_and_each_caller_has_a_list_of_its_own() -> None:
    recent, encode = RecentIds(), Encoder([5, 6, 151_643])
    first = recent.of([{"role": "tool", "content": "5"}], encode)
    first.append(0)
    second = recent.of([{"role": "tool", "content": "5"}], encode)
    second.append(1)
    assert recent.of([{"role": "tool", "content": "5"}], encode) == [5, 6, 151_643]
    assert encode.calls == 1
    recent.of([{"role": "tool", "content": 5}], encode)
    assert encode.calls == 2


def test_only_the_latest_are_kept() -> None:
    recent, encode = RecentIds(size=2), Encoder([1])
    for said in ("a", "b", "a", "c", "a"):
        recent.of(said, encode)
    assert encode.calls == 3
    recent.of("b", encode)
    assert encode.calls == 4


def test_what_is_no_json_or_is_long_is_encoded_each_time() -> None:
    recent, encode, long = RecentIds(), Encoder([1]), Encoder([7] * 10_000)
    for said in (object(), date(2020, 1, 1), "lone \udc80"):
        recent.of(said, encode)
        recent.of(said, encode)
    assert encode.calls == 6
    assert recent.of("long", long) == recent.of("long", long) == [7] * 10_000
    assert long.calls == 2
