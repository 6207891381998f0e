"""A judge over HTTP: its verdicts, what it costs, and what happens when it does not answer."""

import asyncio
import logging
import socket
import time
from typing import Any

import pytest
from aiohttp import web

from agentverl.errors import BoundaryError, InfrastructureError, SettingsError
from agentverl.rewards.naive import NaiveRewardManager
from agentverl.rewards.verdicts import DEFAULT_VERDICT, VerdictScale
from agentverl.settings.reward import RewardSettings
from tests.rewards.conftest import MakeManager, answer_of
from tests.rewards.services import chats, serving


def judge(url: str, **settings: Any) -> list[dict[str, Any]]:
    return [{"name": "judge", "kind": "judge", "settings": {"base_url": url, "model": "m", **settings}}]


async def test_the_verdict_is_the_score_and_costs_are_reported(make_manager: MakeManager) -> None:
    async with chats(reply=lambda prompt: "Good.\n<verdict> 7 </verdict>\n") as server:
        settings = {"rubric": "Be brief.", "price_per_million_prompt_tokens": 2.0, "system": "You judge."}
        manager = make_manager(components=judge(server.url, **settings))
        result = await manager.score(answer_of("four"))
        assert result.score == 0.7
        assert result.components == {
            "judge": 0.7,
            "judge/prompt_tokens": 100,
            "judge/completion_tokens": 10,
            "judge/cost": 0.0002,
            "judge/cached": 0.0,
            "judge/replies": 1,
        }
        assert "Be brief." in server.prompts[0]
        assert "What is 2 + 2?" in server.prompts[0]
        assert "<answer>\nfour\n</answer>" in server.prompts[0]
        assert server.bodies[0]["messages"][0] == {"role": "system", "content": "You judge."}


async def test_the_same_answer_is_judged_once_also_at_the_same_time(make_manager: MakeManager) -> None:
    async with chats() as server:
        manager = make_manager(components=judge(server.url))
        results = await asyncio.gather(*(manager.score(answer_of("four")) for _ in range(5)))
        assert [result.score for result in results] == [1.0] * 5
        assert sorted(result.components["judge/cached"] for result in results) == [0.0, 1.0, 1.0, 1.0, 1.0]
        await manager.score(answer_of("five"))
        assert len(server.prompts) == 2


async def test_a_refused_request_is_sent_again(make_manager: MakeManager) -> None:
    async with chats(failures=[429, 503]) as server:
        manager = make_manager(components=judge(server.url, retry_backoff_seconds=0.01))
        assert (await manager.score(answer_of())).score == 1.0


async def test_a_refused_request_waits_as_long_as_the_service_asks(make_manager: MakeManager) -> None:
    async with chats(failures=[429], retry_after="0.4") as server:
        manager = make_manager(components=judge(server.url, retry_backoff_seconds=0.001))
        started = time.monotonic()
        assert (await manager.score(answer_of())).score == 1.0
        assert time.monotonic() - started > 0.35


async def test_a_service_that_wants_to_be_left_alone_for_hours_does_not_answer(make_manager: MakeManager) -> None:
    async with chats(failures=[429], retry_after="20000") as server:
        manager = make_manager(components=judge(server.url))
        with pytest.raises(InfrastructureError, match=r"status 429: .*; it asks to wait 20000 seconds"):
            await asyncio.wait_for(manager.score(answer_of()), 10)
        assert (await asyncio.wait_for(manager.score(answer_of()), 10)).score == 1.0


async def test_a_request_that_cannot_succeed_is_sent_once(make_manager: MakeManager) -> None:
    async with chats(failures=[401] * 5) as server:
        manager = make_manager(components=judge(server.url, retry_backoff_seconds=0.001))
        with pytest.raises(InfrastructureError, match="did not answer: status 401"):
            await manager.score(answer_of())
        assert len(server.failures) == 4


async def test_a_refused_answer_does_not_make_the_judge_one_that_is_down(
    make_manager: MakeManager, caplog: pytest.LogCaptureFixture
) -> None:
    async with chats(failures=[400, 413, 429]) as server:
        manager = make_manager(components=judge(server.url, retry_backoff_seconds=0.01))
        for status in (400, 413):
            with pytest.raises(BoundaryError, match=f"refused the request: status {status}") as caught:
                await manager.score(answer_of("long"))
            assert not isinstance(caught.value, InfrastructureError)
        assert (await manager.score(answer_of("short"))).score == 1.0
    assert not caplog.records


@pytest.mark.parametrize(
    "body",
    [
        "<html>Welcome</html>",
        "",
        "[1]",
        '{"choices": [',
        '{"error": {"message": "busy"}}',
        '{"choices": [{"message": 1}]}',
    ],
)
async def test_what_is_no_chat_completion_is_named(body: str, make_manager: MakeManager) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body, content_type="text/html" if body.startswith("<") else "application/json")

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", answer)])
    async with serving(app) as url:
        manager = make_manager(components=judge(f"{url}/v1"))
        with pytest.raises(InfrastructureError, match=r"no chat completion but .*; is base_url right\?"):
            await manager.score(answer_of())


async def test_a_service_that_does_not_count_tokens_is_kept_to_the_estimate(make_manager: MakeManager) -> None:
    reply = {"choices": [{"message": {"content": "<verdict>5</verdict>"}}], "usage": None}

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(reply)

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", answer)])
    async with serving(app) as url:
        settings = {"max_tpm": 60_000, "sampling": {"max_tokens": 1000}}
        manager = make_manager(components=judge(f"{url}/v1", **settings))
        started = time.monotonic()
        assert (await manager.score(answer_of("a"))).score == 0.5
        await manager.score(answer_of("b"))
        assert time.monotonic() - started > 0.8


async def test_a_reply_without_a_verdict_is_asked_for_again_and_then_a_failure(make_manager: MakeManager) -> None:
    replies = iter(["hm", "<verdict>5</verdict>", "hm", "<verdict>11</verdict>", "hm", "hm"])
    async with chats(reply=lambda prompt: next(replies)) as server:
        manager = make_manager(components=judge(server.url))
        assert (await manager.score(answer_of("a"))).components["judge/replies"] == 2
        with pytest.raises(BoundaryError, match="component judge: the judge's reply ends in no verdict from 0 to 10"):
            await manager.score(answer_of("b"))
        lenient = make_manager(components=judge(server.url, unparsed_score=0.0))
        result = await lenient.score(answer_of("c"))
        assert (result.score, result.components["judge/unparsed"]) == (0.0, 1.0)


async def test_a_judge_that_is_down_is_reported_once(
    make_manager: MakeManager, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        manager = make_manager(components=judge(closed, max_retries=1, retry_backoff_seconds=0.01))
        with caplog.at_level(logging.WARNING):
            for number in range(50):
                with pytest.raises(InfrastructureError, match="did not answer"):
                    await manager.score(answer_of(str(number)))
    assert len([record for record in caplog.records if "does not answer" in record.message]) == 1


async def test_a_judge_that_hangs_ends_at_its_deadline(make_manager: MakeManager) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        manager = make_manager(components=judge(url, timeout_seconds=0.1, max_retries=0))
        with pytest.raises(InfrastructureError, match=r"no answer within 0.1 seconds"):
            await manager.score(answer_of())


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("<verdict>10</verdict>", 1.0),
        ("<verdict>10</verdict> as the answer says, but <verdict>2</verdict>", 0.2),
        ("<verdict>10</verdict> is what it asks for", None),
        ("<verdict>8/10</verdict>", 0.8),
        ("<verdict>-1</verdict>", None),
        ("<verdict>1e9</verdict>", None),
        ("<verdict></verdict>", None),
        ("10", None),
        ("", None),
    ],
)
def test_only_the_verdict_at_the_end_counts(reply: str, score: float | None) -> None:
    assert VerdictScale(DEFAULT_VERDICT, (0, 10), {}).score(reply) == score


def test_verdicts_in_words() -> None:
    scale = VerdictScale(r"Verdict: (.*)", (0, 10), {"yes": 1.0, "No": -1.0})
    assert scale.score("Verdict: yes\nVerdict: no.") == -1.0
    assert scale.score("Verdict: maybe") is None
    bare = VerdictScale("(yes|no)", (0, 10), {"yes": 1.0, "no": 0.0})
    assert [bare.score(reply) for reply in ("I say Yes.", "**no**\n", "yes, but", "no yes?")] == [1.0, 0.0, None, None]
    assert VerdictScale("(yes)|no", (0, 10), {"yes": 1.0}).score("yes or what?") is None
    assert (scale.described, scale.example) == ("one of yes, no", "yes")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model": "m"}, "judge: settings of kind judge: key 'base_url' is missing"),
        ({"base_url": "", "model": "m"}, "base_url"),
        ({"base_url": "127.0.0.1:8000/v1", "model": "m"}, "begins with http:// or https://"),
        ({"base_url": "http://u", "model": "m", "verdicts": {True: 1, False: 0}}, "YAML takes yes, no, .* quote them"),
        ({"base_url": "http://u", "model": "m", "sampling": {"stream": True}}, "stream is not the user's to set"),
        ({"base_url": "http://u", "model": "m", "prompt": "Good? {{ question }}"}, "neither {{ answer }} nor"),
        ({"base_url": "http://u", "model": "m", "rubrik": "x"}, "did you mean 'rubric'"),
        ({"base_url": "http://u", "model": "m", "prompt": "{{ anser }}"}, "'anser' is undefined; it may use question"),
        ({"base_url": "http://u", "model": "m", "prompt": "{{ answer"}, "the judge's prompt"),
        ({"base_url": "http://u", "model": "m", "verdict": "("}, "no regular expression"),
        ({"base_url": "http://u", "model": "m", "verdict": "(?i)(a)"}, "no regular expression: global flags"),
        ({"base_url": "http://u", "model": "m", "verdict": "x"}, "has 0 groups; expected one"),
        ({"base_url": "http://u", "model": "m", "minimum": 10, "maximum": 1}, "must be below"),
        ({"base_url": "http://u", "model": "m", "api_key_variable": "NO_SUCH_KEY"}, "NO_SUCH_KEY, which is not set"),
        ({"base_url": "http://u", "model": "m", "max_rpm": "fast"}, "max_rpm = 'fast'"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    entry = {"name": "judge", "kind": "judge", "settings": settings}
    with pytest.raises(SettingsError, match=said):
        NaiveRewardManager(RewardSettings.model_validate({"components": [entry]}))
