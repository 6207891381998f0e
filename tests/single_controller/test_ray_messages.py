"""What keeps a run from reaching Ray is said in one line with the remedy."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
import ray

from agentverl.single_controller.ray_cluster import RayInit, connect
from agentverl.single_controller.worker_errors import ResourceError


@pytest.mark.parametrize(
    ("raised", "address", "message"),
    [
        (
            RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.11.7"),
            "auto",
            "Ray at auto is of another version than this process: Version mismatch: .* Ray: 2.9.0 Python: 3.11.7",
        ),
        (
            ConnectionError("nobody answers"),
            "auto",
            "Ray is not running at auto: nobody .* `ray start --head`",
        ),
        (
            RuntimeError("Unauthenticated: RPC error: InvalidAuthToken: Authentication token is missing or incorrect"),
            "auto",
            "Ray at auto does not take this process's token: .*Set RAY_AUTH_MODE and RAY_AUTH_TOKEN",
        ),
        (Exception("timed out"), None, "Ray does not start on this machine: timed out"),
    ],
)
def test_errors_of_ray_are_explained(
    raised: Exception, address: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: Any) -> None:
        raise raised

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ResourceError, match=message):
        connect(RayInit(address=address))


def test_an_address_at_which_nobody_listens_is_said_at_once() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ResourceError, match=f"Ray is not running at {address}: .*Connection refused.* `ray start"):
            connect(RayInit(address=address))


def test_something_at_the_address_that_is_no_ray_is_said_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentverl.single_controller.ray_cluster._CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        expect_no_ray(silent.getsockname()[1])
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        expect_no_ray(port)
        server.stop(None).wait()


def expect_no_ray(port: int) -> None:
    began = time.monotonic()
    with pytest.raises(
        ResourceError, match=f"Ray is not running at 127.0.0.1:{port}: what listens there does not answer"
    ):
        connect(RayInit(address=f"127.0.0.1:{port}"))
    assert time.monotonic() - began < 10
