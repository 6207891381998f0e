"""Stop strings, found as soon as a token completes one."""

from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, token_ids: Sequence[int], **kwargs: object) -> str: ...


class StopStrings:
    """Looks at the last few tokens of an answer only: a stop string of n bytes spans at most n tokens."""

    _MARGIN = 4  # tokens that hold no text, and a first one that loses its leading space

    def __init__(self, strings: tuple[str, ...], decoder: Decoder) -> None:
        self._strings = strings
        self._decoder = decoder
        self._window = max(len(string.encode()) for string in strings) + self._MARGIN

    @property
    def window(self) -> int:
        """How many of the last tokens `completed_by` needs."""
        return self._window

    def completed_by(self, last_ids: Sequence[int]) -> str | None:
        """The stop string that the last of these ids completed, if any."""
        text = self._decoder.decode(last_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return next((string for string in self._strings if string in text), None)
