"""Read rows from parquet, JSON and JSONL files."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from agentverl.errors import DatasetError

Row = dict[str, Any]
_READ = "a .parquet, .json or .jsonl file"


def read_rows(files: str | Path | Iterable[str | Path]) -> list[Sequence[Row]]:
    """The rows of each file, in the order given; those of parquet files become objects when they are asked for.

    Raises:
        DatasetError: a file is missing, empty, of another kind, or damaged; says which and where.
    """
    named = [files] if isinstance(files, (str, Path)) else list(files)
    if not named:
        raise DatasetError(f"no data files are named; give {_READ}")
    return [_read(Path(name).expanduser()) for name in named]


def _read(file: Path) -> Sequence[Row]:
    if not file.is_file():
        raise DatasetError(f"data file {file} does not exist")
    readers = {".parquet": _read_parquet, ".json": _read_json, ".jsonl": _read_jsonl}
    reader = readers.get(file.suffix)
    if reader is None:
        raise DatasetError(f"data file {file} has the ending {file.suffix!r}; expected {_READ}")
    rows = reader(file)
    if not rows:
        raise DatasetError(f"data file {file} has no rows")
    return rows


class _TableRows(Sequence[Row]):
    """The rows of a parquet table, made one at a time, so that a large file does not become a million objects."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self._table.slice(position, 1).to_pylist()[0]

    def __iter__(self) -> Iterator[Row]:
        for batch in self._table.to_batches(max_chunksize=1024):
            yield from batch.to_pylist()


def _read_parquet(file: Path) -> Sequence[Row]:
    try:
        return _TableRows(pq.read_table(file))
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"{file} is no readable parquet file: {error}") from error


def _read_json(file: Path) -> Sequence[Row]:
    """A list of objects, or one object that holds such a list."""
    try:
        content = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        hint = "; one object a line is a .jsonl file" if file.read_bytes().count(b"\n{") else ""
        raise DatasetError(f"{file} is no valid JSON: {error}{hint}") from error
    if isinstance(content, dict):
        lists = [value for value in content.values() if isinstance(value, list)]
        content = lists[0] if len(lists) == 1 else content
    if not isinstance(content, list):
        raise DatasetError(f"{file} holds a {type(content).__name__}; expected a list of rows")
    return _objects(content, file)


def _read_jsonl(file: Path) -> Sequence[Row]:
    rows = []
    with file.open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                try:
                    rows.append(orjson.loads(line))
                except orjson.JSONDecodeError as error:
                    raise DatasetError(f"{file}, line {number}, is no valid JSON: {error}") from error
    return _objects(rows, file)


def _objects(rows: list[Any], file: Path) -> list[Row]:
    wrong = next((i for i, row in enumerate(rows) if not isinstance(row, dict)), None)
    if wrong is not None:
        raise DatasetError(f"{file}, row {wrong}, is a {type(rows[wrong]).__name__}; expected an object")
    return rows


def from_column(value: Any) -> Any:
    """A nested value as it was before a columnar file stored it.

    Such a file gives every struct the fields of all rows, None where a row has none; and often nested values are kept
    as JSON text.
    """
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return _without_none(value)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value
