"""Prompts as rows, in verl's columns, from files or from an environment's tasks."""

import random
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from agentverl.data.files import Row, from_column, read_rows
from agentverl.errors import DatasetError
from agentverl.messages import Message
from agentverl.settings.seeds import derive_seed

_KINDS = {"agent_name": str, "environment": str, "reward_model": dict, "extra_info": dict}
"""Columns of one type each."""


class RowDataset(Sequence[Row]):
    """Rows by position. A row has `raw_prompt` (messages), `data_source`, `reward_model`, `extra_info`, `index`,
    `tools_kwargs`, and whatever other columns its source has.

    `positions` picks some of the rows, in that order; `replaced` holds other rows for some of these positions.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        positions: Sequence[int] | None = None,
        replaced: Mapping[int, Row] | None = None,
    ) -> None:
        self._rows = rows
        self._positions = range(len(rows)) if positions is None else positions
        self._replaced = replaced or {}

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = self._positions[index]
        return self._replaced[position] if position in self._replaced else self._rows[position]


class _FileRows(Sequence[Row]):
    """Rows of several files under one numbering, normalised when they are asked for."""

    def __init__(self, files: Sequence[Sequence[Row]], prompt_key: str, reward_fn_key: str) -> None:
        self._files = files
        self._starts = list(accumulate((len(rows) for rows in files), initial=0))
        self._prompt_key = prompt_key
        self._reward_fn_key = reward_fn_key

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        file = bisect_right(self._starts, index) - 1
        row = self._files[file][index - self._starts[file]]
        return _normalised(row, index, self._prompt_key, self._reward_fn_key)


def load_rows(
    files: str | Path | Iterable[str | Path],
    *,
    prompt_key: str = "prompt",
    reward_fn_key: str = "data_source",
    max_samples: int = -1,
    shuffle: bool = False,
    seed: int = 0,
) -> RowDataset:
    """Rows of parquet, JSON or JSONL files in verl's columns.

    `max_samples` keeps that many rows, a random choice where `shuffle`; -1 keeps all.

    Raises:
        DatasetError: a file or column is missing or empty, or a prompt is not a list of messages; says which.
    """
    found = read_rows(files)
    for rows in found:
        _need_column(rows[0], prompt_key, "data.messages_key" if prompt_key == "messages" else "data.prompt_key")
        if reward_fn_key != "data_source":
            _need_column(rows[0], reward_fn_key, "data.reward_fn_key")
    every = _FileRows(found, prompt_key, reward_fn_key)
    positions: Sequence[int] = range(len(every))
    if 0 <= max_samples < len(every):
        if shuffle:
            positions = sorted(random.Random(derive_seed(seed, "samples")).sample(positions, max_samples))
        positions = positions[:max_samples]
    if not positions:
        raise DatasetError("the dataset is empty: max_samples is 0")
    chosen = RowDataset(every, positions)
    chosen[0]  # what is wrong with every row shows at once
    return chosen


def _need_column(row: Row, column: str, key: str) -> None:
    if column not in row:
        raise DatasetError(f"the data have no column {column!r} ({key}); they have {', '.join(sorted(row))}")


def _normalised(row: Row, index: int, prompt_key: str, reward_fn_key: str) -> Row:
    for column, kind in [(reward_fn_key, str), *_KINDS.items()]:
        value = row.get(column)
        if value is not None and not isinstance(value, kind):
            expected = "text" if kind is str else "a mapping"
            raise DatasetError(f"row {index}: {column} is {_shown(value)}; expected {expected}")
    extra = row.get("extra_info") or {}
    normal = {key: value for key, value in row.items() if key != prompt_key and value is not None}
    normal["raw_prompt"] = messages_of(row.get(prompt_key), index, prompt_key)
    normal["data_source"] = row.get(reward_fn_key) or "unknown"
    normal["reward_model"] = row.get("reward_model") or {}
    normal["extra_info"] = extra
    normal["tools_kwargs"] = from_column(row.get("tools_kwargs") or extra.get("tools_kwargs") or {})
    if "environment_kwargs" in normal:
        normal["environment_kwargs"] = from_column(normal["environment_kwargs"])
    for column in ("tools_kwargs", "environment_kwargs"):
        if not isinstance(normal.get(column, {}), dict):
            raise DatasetError(f"row {index}: {column} is {_shown(normal[column])}; expected a mapping")
    normal["index"] = extra.get("index", index)
    return normal


def messages_of(value: Any, index: int, column: str) -> list[Message]:
    """The messages in a column: a list of them, such a list as JSON text, or the text of one user message.

    Raises:
        DatasetError: it is none of these; says which row.
    """
    messages = from_column(value)
    if isinstance(value, str) and value and not _are_messages(messages):
        return [{"role": "user", "content": value}]
    if not isinstance(messages, list) or not messages:
        raise DatasetError(f"row {index}: {column} is {_shown(value)}; expected a list of messages")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DatasetError(
                f"row {index}: {column} holds {_shown(message)}; expected messages with role and content"
            )
        if not isinstance(message.get("content"), str | list) and message["role"] != "assistant":
            raise DatasetError(
                f"row {index}: {column} holds {_shown(message)}; expected content that is text or a list of parts"
            )
    return messages


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and "role" in item for item in value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
