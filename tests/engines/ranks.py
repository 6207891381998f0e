"""Ranks for tests: processes that run functions together, in the environment that a launcher gives them."""

import atexit
import multiprocessing
import os
import pickle
import socket
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["agentverl.engines.fsdp.engine", "tests.engines.tiny_models"])
TIMEOUT_SECONDS = 200


class World:
    """Some ranks, which live until `end`; processes are started once, as that takes longer than most tests."""

    def __init__(self, size: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pipes = [_CONTEXT.Pipe() for _ in range(size)]
        self.pipes: list[Connection] = [pipe for pipe, _ in pipes]
        self.processes = [
            _CONTEXT.Process(target=_serve, args=(pipes[rank][1], _environment(rank, size, port)), daemon=True)
            for rank in range(size)
        ]
        for process, (_, theirs) in zip(self.processes, pipes, strict=True):
            process.start()
            theirs.close()

    def start(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Let every rank call `function(*arguments)`, which must be importable."""
        for pipe in self.pipes:
            # Pickled here, because pipes of torch's would share the memory of tensors, which ends with its process.
            pipe.send_bytes(pickle.dumps((function, arguments)))

    def results(self) -> list[Any]:
        """What each rank returned; the first that fails ends the waiting for the others.

        Raises:
            AssertionError: a rank raised or died; says which, with its traceback.
        """
        results: dict[int, Any] = {}
        while len(results) < len(self.pipes):
            ready = wait([pipe for rank, pipe in enumerate(self.pipes) if rank not in results], TIMEOUT_SECONDS)
            assert ready, f"of {len(self.pipes)} ranks only {sorted(results)} answered in {TIMEOUT_SECONDS} seconds"
            for rank in [rank for rank, pipe in enumerate(self.pipes) if pipe in ready]:
                try:
                    results[rank], problem = pickle.loads(self.pipes[rank].recv_bytes())
                except (EOFError, ConnectionResetError):
                    raise AssertionError(f"rank {rank} died") from None
                assert problem is None, f"rank {rank} raised:\n{problem}"
        return [results[rank] for rank in range(len(self.pipes))]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self.pipes:
            pipe.close()


_worlds: dict[int, World] = {}


def on_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(*arguments)`, which must be importable, returns on each of `size` ranks."""
    if size not in _worlds:
        _worlds[size] = World(size)
    world = _worlds[size]
    try:
        world.start(function, *arguments)
        return world.results()
    except BaseException:
        _worlds.pop(size).end()
        raise


@atexit.register
def _end_all() -> None:
    while _worlds:
        _worlds.popitem()[1].end()


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in names.items()}


def _serve(pipe: Connection, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    warnings.simplefilter("error")
    while True:
        try:
            function, arguments = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            answer = pickle.dumps((function(*arguments), None))
        except BaseException:
            answer = pickle.dumps((None, traceback.format_exc()))
        pipe.send_bytes(answer)
