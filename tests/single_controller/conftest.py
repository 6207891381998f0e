"""One small Ray for all tests that need real actors."""

from collections.abc import Iterator

import pytest

from agentverl.single_controller import ray_cluster
from agentverl.single_controller.ray_cluster import RayInit
from agentverl.single_controller.ray_pools import RayResourcePool


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray_cluster.connect(RayInit(num_cpus=4, include_dashboard=False, object_store_memory=200 * 2**20))
    yield
    ray_cluster.disconnect()


@pytest.fixture(scope="module")
def pool(cluster: None) -> Iterator[RayResourcePool]:
    pool = RayResourcePool([2], name_prefix="pair")
    yield pool
    pool.release()
