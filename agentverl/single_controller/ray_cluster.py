"""The connection to Ray, and what is asked of it before anything starts."""

import logging
import os
import socket
from dataclasses import dataclass, field
from typing import Any

from agentverl.daemon_threads import end_before_others
from agentverl.single_controller.worker_errors import ResourceError

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0

Need = dict[str, float]
"""Amounts by resource, as Ray counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayInit:
    """How Ray is reached; without an address and without RAY_ADDRESS it is started on this machine."""

    address: str | None = None
    num_cpus: int | None = None
    include_dashboard: bool | None = None
    object_store_memory: int | None = None
    runtime_env: dict[str, Any] = field(default_factory=dict)


def connect(init: RayInit) -> bool:
    """Connect to Ray, unless this process is connected; returns whether it was not.

    Raises:
        ResourceError: Ray is not installed, not running at the address, or of another version there.
    """
    # Under `uv run`, Ray would copy the working folder to every process and build their environments anew.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    # What Ray 2.60 does later anyway; without it Ray warns that it will.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise ResourceError("trainer.launcher=ray needs Ray: pip install 'agentverl[ray]'") from error
    if ray.is_initialized():
        end_before_others()
        return False
    # It warns that Ray asks for a token, which is the safe way and its default.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    address = init.address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"address": address or "local", "log_to_driver": True, "logging_level": logging.WARNING}
    if init.runtime_env:
        options["runtime_env"] = init.runtime_env
    if address is None:
        own = {
            "num_cpus": init.num_cpus,
            "include_dashboard": init.include_dashboard,
            "object_store_memory": init.object_store_memory,
        }
        options |= {name: value for name, value in own.items() if value is not None}
    try:
        if address is not None:
            _require_answer(address)
        ray.init(**options)
    except Exception as error:
        raise _explained(error, address) from error
    end_before_others()  # whoever uses Ray in them would meet its end
    return True


def disconnect() -> None:
    """End the connection, and Ray itself where `connect` started it."""
    import ray

    ray.shutdown()


def _require_answer(address: str) -> None:
    """Ray itself would try for minutes to reach an address at which nobody listens, or something that is no Ray."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():  # `auto`, `local`
        return
    socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    is_encrypted = os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")
    if not is_encrypted and not address.startswith("ray://"):
        _require_ray(address)


def _require_ray(address: str) -> None:
    import grpc

    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=_CONNECT_SECONDS)
        except grpc.RpcError as error:
            codes = grpc.StatusCode
            if error.code() in (codes.UNAVAILABLE, codes.DEADLINE_EXCEEDED, codes.UNIMPLEMENTED):
                raise ConnectionError(f"what listens there does not answer as Ray does ({error.details()})") from error


def _explained(error: Exception, address: str | None) -> ResourceError:
    text = " ".join(str(error).split())
    if "ersion mismatch" in text:
        return ResourceError(f"Ray at {address} is of another version than this process: {text}")
    if address is None:
        return ResourceError(f"Ray does not start on this machine: {text}")
    if "AuthToken" in text or "Unauthenticated" in text:
        return ResourceError(
            f"Ray at {address} does not take this process's token: {text}. Set RAY_AUTH_MODE and RAY_AUTH_TOKEN (or "
            "RAY_AUTH_TOKEN_PATH) here as they were where it was started"
        )
    return ResourceError(
        f"Ray is not running at {address}: {text}. Start it with `ray start --head`, give its address with "
        "ray_kwargs.ray_init.address (or RAY_ADDRESS), or give none to start Ray for this run alone"
    )


def has_gpus() -> bool:
    """Whether any machine of the cluster has a GPU."""
    import ray

    return bool(ray.cluster_resources().get("GPU", 0))


def cores() -> int:
    """Cores of all machines of the cluster."""
    import ray

    return int(ray.cluster_resources().get("CPU", 1))


def require(what: str, nodes: list[tuple[int, Need]]) -> None:
    """Check that the cluster could hold what is asked for, were it otherwise idle.

    Args:
        what: who asks, for the message.
        nodes: for each node that is asked for, how many places, and what each place takes.

    Raises:
        ResourceError: it could not; says what each machine has.
    """
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for places, need in nodes:
        for name, amount in need.items():
            wanted = places * amount
            if not any(machine.get(name, 0) >= wanted for machine in machines):
                raise ResourceError(f"{_asked(what, nodes)}; no machine has {wanted:g} {name}s: {inventory()}")
    for name in {name for _, need in nodes for name in need}:
        wanted = sum(places * need.get(name, 0) for places, need in nodes)
        total = sum(machine.get(name, 0) for machine in machines)
        if total < wanted:
            raise ResourceError(
                f"{_asked(what, nodes)}; the cluster has {total:g} of {wanted:g} {name}s: {inventory()}"
            )


def inventory() -> str:
    """What the machines of the cluster have, and how much of it is free; with the remedies."""
    import ray

    available = ray.available_resources()
    machines = []
    for node in ray.nodes():
        if node["Alive"]:
            resources = node["Resources"]
            amounts = [f"{resources[name]:g} {name}" for name in ("CPU", "GPU") if name in resources]
            machines.append(f"{node['NodeManagerAddress']} ({', '.join(amounts) or 'nothing'})")
    free = ", ".join(f"{available.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
    return (
        f"machines: {'; '.join(machines) or 'none'}; free now: {free}. Lower trainer.n_gpus_per_node or "
        "trainer.nnodes, add machines with `ray start --address=...`, or let ranks share cores: "
        "ray_kwargs.ray_init.num_cpus"
    )


def _asked(what: str, nodes: list[tuple[int, Need]]) -> str:
    amounts = [f"{places} x ({', '.join(f'{a:g} {n}' for n, a in need.items())})" for places, need in nodes]
    return f"{what} asks for {len(nodes)} node(s) of {', '.join(dict.fromkeys(amounts))}"
