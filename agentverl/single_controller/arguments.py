"""Arguments as a worker sees them: what was left for it to fetch is fetched."""

from typing import Any

from agentverl.protocol import column_store
from agentverl.protocol.data_proto import DataProto
from agentverl.single_controller.splitting import Arguments, Deferred


def needs_resolving(arguments: Arguments) -> bool:
    """Whether an argument is not there yet."""
    return any(isinstance(value, Deferred | DataProto) for value in (*arguments[0], *arguments[1].values()))


def resolved(arguments: Arguments) -> Arguments:
    """The arguments with values in place of what was deferred or referred to; may wait for other workers."""
    args, kwargs = arguments
    return tuple(_value(value) for value in args), {name: _value(value) for name, value in kwargs.items()}


def _value(value: Any) -> Any:
    found = value.resolve() if isinstance(value, Deferred) else value
    return column_store.resolve(found) if isinstance(found, DataProto) else found
