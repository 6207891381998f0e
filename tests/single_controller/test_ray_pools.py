"""Where the places of a pool are."""

import pytest

from agentverl.single_controller.ray_pools import RayResourcePool

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cluster")]


def test_nodes_that_share_a_machine_are_told(caplog: pytest.LogCaptureFixture) -> None:
    for places in ([2], [1, 1]):
        pool = RayResourcePool(places, name_prefix="ranks")
        assert [slot.local_rank for slot in pool.slots()] == [rank for size in places for rank in range(size)]
        pool.release()
    (record,) = caplog.records
    assert record.getMessage().startswith("resource pool 'ranks': its 2 nodes stand on 1 machine(s)")
