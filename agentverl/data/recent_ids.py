"""Ids of what was encoded before: samples of one prompt begin alike, make the same calls, and get the same answers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

_MOST_TOKENS = 2**13
"""Of what is kept: longer texts seldom come again."""
_AS_JSON_ONLY = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class RecentIds:
    """The last `size` encodings by what was encoded; what is no JSON, such as images, is encoded each time."""

    def __init__(self, size: int = 1024) -> None:
        self._size = size
        self._known: dict[bytes, npt.NDArray[np.int32]] = {}

    def of(self, said: Any, encode: Callable[[], list[int]]) -> list[int]:
        """What `encode` gives for `said`, as a list of the caller's own."""
        try:
            key = orjson.dumps(said, option=_AS_JSON_ONLY)
        except TypeError:
            return encode()
        known = self._known.pop(key, None)
        if known is not None:
            self._known[key] = known  # as the latest
            ids: list[int] = known.tolist()
            return ids
        ids = encode()
        if len(ids) <= _MOST_TOKENS:
            self._known[key] = np.array(ids, np.int32)
            if len(self._known) > self._size:
                self._known.pop(next(iter(self._known)), None)
        return ids
