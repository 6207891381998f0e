"""The sandbox that tests run commands in; where bubblewrap is missing they say so and skip."""

from collections.abc import AsyncIterator

import pytest

from agentverl.sandboxes.bubblewrap import BubblewrapSandbox, reason_unavailable


@pytest.fixture
async def sandbox() -> AsyncIterator[BubblewrapSandbox]:
    if reason := reason_unavailable():
        pytest.skip(reason)
    made = BubblewrapSandbox(memory_bytes=256 << 20, file_bytes=1 << 20, output_bytes=1000)
    yield made
    await made.close()
