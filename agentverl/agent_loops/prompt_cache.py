"""Encoded prompts of the rows being played, because every sample of a group begins with the same one."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import orjson

from agentverl.agent_loops.protocols import Template
from agentverl.messages import Message


class PromptCache:
    """The last `size` prompts by their messages and tools; those with images are rendered each time."""

    def __init__(self, template: Template, size: int = 256) -> None:
        self._template = template
        self._size = size
        self._ids: OrderedDict[bytes, list[int]] = OrderedDict()

    def ids(self, messages: Sequence[Message], schemas: list[dict[str, Any]] | None) -> list[int]:
        """What `template.prompt` gives, as a list of the caller's own."""
        try:
            key = orjson.dumps((messages, schemas))
        except TypeError:
            return self._template.prompt(messages, schemas)
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = self._template.prompt(messages, schemas)
            if len(self._ids) > self._size:
                self._ids.popitem(last=False)
        else:
            self._ids.move_to_end(key)
        return list(known)
