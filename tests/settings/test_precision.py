"""What `dtype` means on processors with and without bfloat16."""

import logging
from collections.abc import Iterator

import pytest

from agentverl.settings import precision


@pytest.fixture(params=[frozenset({"avx2"}), frozenset({"avx512_bf16"})], ids=["without", "with"])
def is_native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    monkeypatch.setattr(precision, "cpu_flags", lambda: request.param)
    precision._warn_of_emulation.cache_clear()
    yield "avx512_bf16" in request.param
    precision._warn_of_emulation.cache_clear()


def test_auto_is_bfloat16_only_where_the_device_has_it(is_native: bool) -> None:
    assert precision.resolve("auto", "cuda") == "bfloat16"
    assert precision.resolve("auto", "cpu") == ("bfloat16" if is_native else "float32")
    assert precision.resolve("float32", "cuda") == "float32"


def test_what_is_asked_for_is_done_and_emulation_warned_of_once(
    is_native: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert [precision.resolve("bfloat16", "cpu") for _ in range(2)] == ["bfloat16"] * 2
        assert precision.resolve("bfloat16", "cuda") == "bfloat16"
    assert len(caplog.messages) == (0 if is_native else 1)
    assert all("dtype=auto" in message for message in caplog.messages)
