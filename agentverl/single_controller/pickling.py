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
    for role, worker_class in roles.items():
        name = getattr(worker_class.cls, "__qualname__", repr(worker_class.cls))
        arguments = {str(number): value for number, value in enumerate(worker_class.args)} | worker_class.kwargs
        for argument, value in arguments.items():
            dumps(value, f"{name}: argument {argument}")
        dumps(worker_class.cls, f"{role} worker class {name}".lstrip())
    return _dumps(roles)


def dumps(value: Any, name: str) -> bytes:
    """A value for another process.

    Raises:
        PluginError: it does not pickle; says which part of it, after its name.
    """
    try:
        return _dumps(value)
    except Exception as error:
        raise PluginError(
            f"{name}{_part(value)} cannot be sent to another process: {type(error).__name__}: {error}. Keep locks, "
            "files, connections and models out of it, and open them where they are used"
        ) from error


def _dumps(value: Any) -> bytes:
    from ray import cloudpickle  # takes classes of scripts and notebooks too

    data: bytes = cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return data


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
