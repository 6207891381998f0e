"""Ports at which processes find each other."""

import socket

from agentverl.single_controller.worker_errors import ResourceError


def free_port(ports: tuple[int, int] | None) -> int | None:
    """A free port of this machine, in a range (both ends included) or anywhere; None where there is none."""
    for port in [0] if ports is None else range(ports[0], ports[1] + 1):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
            try:
                bound.bind(("", port))
            except OSError:
                continue
            return int(bound.getsockname()[1])
    return None


def address_here(ports: tuple[int, int] | None) -> tuple[str, int | None]:
    """The address of a process of Ray, and a port that is free there; None where all of the range are taken."""
    import ray  # only a process of Ray gets here

    return ray.util.get_node_ip_address(), free_port(ports)


def taken(ports: tuple[int, int] | None, address: str) -> ResourceError:
    """The error of a range without a free port."""
    return ResourceError(
        f"trainer.master_port_range={list(ports or ())}: every port of it is taken on {address}; name another range"
    )
