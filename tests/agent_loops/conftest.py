"""The template of a byte-level tokenizer, and scenes in front of a server that plays a script."""

from collections.abc import Callable
from functools import partial

import pytest

from agentverl.agent_loops.cutting import TokenCutter
from agentverl.data.chat_template import ChatTemplate
from tests.agent_loops.scripted import Scene, byte_tokenizer, make_scene

MakeScene = Callable[..., Scene]


@pytest.fixture(scope="session")
def template() -> ChatTemplate:
    return ChatTemplate(byte_tokenizer())


@pytest.fixture(scope="session")
def cutter(template: ChatTemplate) -> TokenCutter:
    return TokenCutter(template.tokenizer)


@pytest.fixture
def scene(template: ChatTemplate, cutter: TokenCutter) -> MakeScene:
    return partial(make_scene, template, cutter)
