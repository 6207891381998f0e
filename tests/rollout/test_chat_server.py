"""A rollout server behind chat completions answers OpenAI's own client, and refuses what it does not do."""

from collections.abc import AsyncIterator
from typing import Any, cast

import openai
import pytest
from aiohttp import web

from agentverl.data.chat_template import ChatTemplate
from agentverl.rollout.chat_server import ChatServer
from agentverl.rollout.replica import RolloutReplica
from tests.rollout.fake_replica import FakeReplica


@pytest.fixture
def replica(template: ChatTemplate) -> FakeReplica:
    return FakeReplica(template, lambda turn, chance: "Fine.")


@pytest.fixture
async def client(template: ChatTemplate, replica: FakeReplica) -> AsyncIterator[openai.AsyncOpenAI]:
    runner = web.AppRunner(ChatServer(cast(RolloutReplica, replica), template, "judge").app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as made:
        yield made
    await runner.cleanup()


ASKED: Any = [{"role": "user", "content": "How are you?"}]


async def test_it_answers_with_text_and_counts(
    client: openai.AsyncOpenAI, replica: FakeReplica, template: ChatTemplate
) -> None:
    answer = await client.chat.completions.create(
        model="judge", messages=ASKED, temperature=0.5, max_tokens=20, stop="x", seed=3, logprobs=False
    )
    assert answer.choices[0].message.content == "Fine."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(template.prompt(ASKED))
    params = replica.params[0]
    assert (params["temperature"], params["max_tokens"], params["stop"], params["seed"]) == (0.5, 20, ["x"], 3)
    assert replica.opened == replica.closed
    assert [model.id async for model in client.models.list()] == ["judge"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"messages": []}, "expected a list of messages"),
        ({"stream": True}, "stream is not served here; known are .*, temperature"),
        ({"n": 2}, "n above 1 is not served here"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools is not served here"),
        ({"logprobs": True}, "logprobs is not served here"),
        ({"response_format": {"type": "json_object"}}, "response_format is not served here"),
        ({"messages": [{"content": "no role"}]}, "role"),
    ],
)
async def test_what_it_does_not_do_is_refused(client: openai.AsyncOpenAI, more: Any, said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        await client.chat.completions.create(**{"model": "judge", "messages": ASKED, **more})


async def test_a_lost_server_is_an_error_to_try_again(client: openai.AsyncOpenAI, replica: FakeReplica) -> None:
    replica.fails = lambda request_id, turn: ConnectionError("gone")
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model="judge", messages=ASKED, temperature=1)
