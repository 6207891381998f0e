"""Append-only files of JSON lines that survive a kill: a line cut short costs itself and no other."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel

logger = logging.getLogger(__name__)

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE


class JsonLines:
    """Writes one file, a system call a record, so that what is written survives the process.

    Raises:
        OSError: the file cannot be opened; later, from `append`, that it cannot be written.
    """

    def __init__(self, path: Path, default: Callable[[Any], Any] | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._default = default
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._torn = not _ends_with_newline(path)

    def append(self, record: Any) -> int:
        """Write one record, and say at which byte it begins; after a write that was cut short it has its own line."""
        line = dumped(record, self._default)
        rest = memoryview(b"\n" + line if self._torn else line)
        self._torn = True
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self._torn = False
        # Where a write ended is known without a question to the file system, which can take as long as the write.
        return os.lseek(self._file, 0, os.SEEK_CUR) - len(line)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def dumped(record: Any, default: Callable[[Any], Any] | None = None) -> bytes:
    """A record as one line; NaN becomes null, `default` (or `plain`) turns what JSON does not know.

    Raises:
        TypeError: it holds what neither JSON nor `default` knows.
    """
    default = default or plain
    try:
        return orjson.dumps(record, default=default, option=_OPTIONS)
    except TypeError:  # text that no file can hold: a model may write "\\ud800", half a character, into its JSON
        return orjson.dumps(_encodable(record, default), default=default, option=_OPTIONS)


def _encodable(value: Any, default: Callable[[Any], Any]) -> Any:
    """A value with replacement characters for halves of characters."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_encodable(key, default): _encodable(item, default) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item, default) for item in value]
    if value is None or isinstance(value, int | float | np.ndarray | np.generic):
        return value
    return _encodable(default(value), default)


def read_json_lines(path: Path, prefixes: tuple[bytes, ...] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, record) of each whole line, and only of those that begin with one of `prefixes` where given."""
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if prefixes and not line.startswith(prefixes):
                continue
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:  # cut short by a kill or a full disk, or still being written
                if line.endswith(b"\n"):
                    logger.warning("%s: line %d cannot be read and is left out", path, number + 1)
                continue
            if isinstance(record, dict):
                yield number, record


def plain(value: Any) -> Any:
    """What JSON can hold of a value that it does not know."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return repr(value)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
