"""Ports at which processes find each other."""

import socket


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
