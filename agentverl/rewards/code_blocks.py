"""Code blocks in an answer's markdown."""

import re
from collections.abc import Collection

_BLOCK = re.compile(r"^[ \t]*```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)


def last_block(text: str, languages: Collection[str]) -> str | None:
    """The content of the last block in one of these languages (`""` for one that names none); None without one."""
    found = [content for language, content in _BLOCK.findall(text) if language.lower() in languages]
    return found[-1] if found else None
