"""What is sent to other processes has to pickle; what does not is named."""

import pickle
from typing import Any

from agentverl.errors import PluginError
from agentverl.single_controller.worker import WorkerClass


def pickled(roles: dict[str, WorkerClass]) -> bytes:
    """Worker classes and their arguments.

    Raises:
        PluginError: something in them does not pickle; names it.
    """
    try:
        return _dumps(roles)
    except Exception as error:
        raise PluginError(
            f"{_culprit(roles)} cannot be sent to another process: {type(error).__name__}: {error}. Keep locks, files, "
            "connections and models out of what workers are made with, and open them in the worker"
        ) from error


def _dumps(value: Any) -> bytes:
    from ray import cloudpickle  # takes classes of scripts and notebooks too

    data: bytes = cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return data


def _culprit(roles: dict[str, WorkerClass]) -> str:
    for worker_class in roles.values():
        name = getattr(worker_class.cls, "__qualname__", repr(worker_class.cls))
        arguments = {str(number): value for number, value in enumerate(worker_class.args)} | worker_class.kwargs
        for argument, value in arguments.items():
            if (part := _part(value)) is not None:
                return f"{name}: argument {argument}{part}"
        if _part(worker_class.cls) is not None:
            return f"worker class {name}"
    return "a worker class"


def _part(value: Any, depth: int = 4) -> str | None:
    """Where in a value that does not pickle the reason is, as `.attribute[key] (Class)`; None where it pickles."""
    try:
        _dumps(value)
    except Exception:
        inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        for name, held in list(inner.items()) if depth else []:
            part = _part(held, depth - 1)
            if part is not None:
                return f"[{name!r}]{part}" if isinstance(value, dict) else f".{name}{part}"
        return f" ({type(value).__module__}.{type(value).__qualname__})"
    return None
