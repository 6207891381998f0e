"""Encode rendered chats so that only the template writes control tokens; inside contents they are plain text."""

import re
from collections.abc import Iterable
from typing import Any

from tokenizers import AddedToken, Tokenizer

from agentverl.errors import ModelFolderError

# Characters of a private-use plane stand for control strings while the template renders, so that neither the template
# nor the tokenizer can take them for its own. 65 000 of them are more than any text has distinct control strings.
_FIRST, _LAST = 0xF0000, 0xFFFFD
_STAND_INS = f"{chr(_FIRST)}-{chr(_LAST)}"
_stand_in = re.compile(f"[{_STAND_INS}]")
_ANCHOR = chr(0x10FFFD)
_BLANK = " \t\r\n\u2581"


class Disguise:
    """The stand-ins used in one rendering; `hide` and `reveal` are inverse to each other."""

    def __init__(self) -> None:
        self._originals: list[str] = []
        self._known: dict[str, str] = {}

    def __bool__(self) -> bool:
        return bool(self._originals)

    def hide(self, text: str, pattern: re.Pattern[str]) -> str:
        """`text` with what `pattern` matches replaced by stand-ins."""
        return pattern.sub(self._replace, text)

    def reveal(self, text: str) -> str:
        """`text` with the stand-ins of this rendering replaced by what they stand for."""
        return _stand_in.sub(lambda match: self._original(match.group()), text)

    def _original(self, character: str) -> str:
        index = ord(character) - _FIRST
        return self._originals[index] if index < len(self._originals) else character

    def _replace(self, match: re.Match[str]) -> str:
        original = match.group()
        if original not in self._known:
            self._known[original] = chr(_FIRST + len(self._originals))
            self._originals.append(original)
        return self._known[original]


class ControlText:
    """A private copy of a tokenizer that can also encode text in which no control token is recognised.

    A control token is any added token, special or not, that is more than white space.
    """

    def __init__(self, tokenizer: Any) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelFolderError(
                f"{type(tokenizer).__name__} has no fast tokenizer behind it; a folder with tokenizer.json is needed"
            )
        # A copy, because whoever else uses the tokenizer may switch truncation or padding on.
        self._full = Tokenizer.from_str(backend.to_str())
        self._full.no_truncation()
        self._full.no_padding()
        added = self._full.get_added_tokens_decoder()
        self.control_ids: dict[int, str] = {i: t.content for i, t in added.items() if t.content.strip(_BLANK)}
        self.pattern = _pattern(self.control_ids.values())
        self.special_pattern = _pattern(t.content for i, t in added.items() if t.special and i in self.control_ids)
        # A normalizer may turn other text into an added token's string, which no search in the text finds.
        normalized = any(added[i].normalized for i in self.control_ids)
        self._always_verify = normalized and self._full.normalizer is not None
        self._kept = [t for i, t in added.items() if i not in self.control_ids]
        self._plain: Tokenizer | None = None
        self._ids_of_kept: dict[int, int] = {}

    def encode(self, text: str, disguise: Disguise | None = None) -> list[int]:
        """Ids of a rendered text: stand-ins as plain text, everything else as the tokenizer itself encodes it."""
        if not disguise and not self._always_verify:
            ids: list[int] = self._full.encode(text, add_special_tokens=False).ids
            return ids
        disguise = disguise or Disguise()
        encoding = self._full.encode(text, add_special_tokens=False)
        result: list[int] = []
        gap_start, gap_ids, forged = 0, [], False
        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token not in self.control_ids:
                gap_ids.append(token)
            elif text[start:stop].strip() != self.control_ids[token]:
                gap_ids, forged = [*gap_ids, token], True
            else:
                result += self._gap(text[gap_start:start], gap_ids, forged, disguise)
                result.append(token)
                gap_start, gap_ids, forged = stop, [], False
        return result + self._gap(text[gap_start:], gap_ids, forged, disguise)

    def encode_plain(self, text: str) -> list[int]:
        """Ids of a text in which nothing is a control token, as it is encoded after one (no prefix space is added)."""
        ids = self._without_control(text)
        if self.control_ids.keys().isdisjoint(ids):
            return ids
        # The model's own vocabulary holds a control string: single characters cannot form it.
        ids = [token for character in text for token in self._without_control(character)]
        if self.control_ids.keys().isdisjoint(ids):
            return ids
        forged = next(self.control_ids[i] for i in ids if i in self.control_ids)
        raise ModelFolderError(f"the tokenizer makes the control token {forged!r} from plain text; it cannot be used")

    def _gap(self, text: str, ids: list[int], forged: bool, disguise: Disguise) -> list[int]:
        if not forged and _stand_in.search(text) is None:
            return ids
        return self.encode_plain(disguise.reveal(text))

    def _without_control(self, text: str) -> list[int]:
        plain = self._plain or self._make_plain()
        ids: list[int] = plain.encode(_ANCHOR + text, add_special_tokens=False).ids[1:]
        return [self._ids_of_kept.get(i, i) for i in ids] if self._ids_of_kept else ids

    def _make_plain(self) -> Tokenizer:
        plain = Tokenizer(self._full.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(self._full, part) is not None:
                setattr(plain, part, getattr(self._full, part))
        plain.add_tokens(self._kept)
        for token in self._kept:
            new, old = plain.token_to_id(token.content), self._full.token_to_id(token.content)
            if new is not None and old is not None and new != old:
                self._ids_of_kept[new] = old
        plain.add_special_tokens([AddedToken(_ANCHOR, special=True, normalized=False)])
        self._plain = plain
        return plain


def _pattern(control_strings: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(set(control_strings), key=len, reverse=True)
    firsts = "".join(re.escape(first) for first in sorted({string[0] for string in longest_first}))
    # Most characters begin none of them: seeing that at once makes long texts four times as fast.
    return re.compile(f"(?=[{firsts}{_STAND_INS}])(?:{'|'.join([*map(re.escape, longest_first), f'[{_STAND_INS}]'])})")
