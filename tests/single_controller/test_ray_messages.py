"""What keeps a run from reaching Ray is said in one line with the remedy."""

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
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


@pytest.mark.integration
def test_a_ray_of_its_own_asks_for_a_token_without_a_word(tmp_path: Path) -> None:
    code = """
        import os
        from agentverl.single_controller.ray_cluster import RayInit, connect, disconnect
        connect(RayInit(num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20))
        disconnect()
        print(os.environ["RAY_AUTH_MODE"])
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    ended = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        env=environment | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("token\n", "")
