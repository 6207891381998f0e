"""A sequence classifier as a component: behind vLLM's `/classify`, served by our own server, and in this process."""

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from agentverl.errors import BoundaryError, InfrastructureError, ModelFolderError, SettingsError
from agentverl.rewards.classifier import Classifier, Reading, probabilities
from agentverl.rewards.classifier_server import classifier_app
from agentverl.rewards.naive import NaiveRewardManager
from agentverl.settings.reward import RewardSettings
from tests.rewards.conftest import MakeManager, answer_of
from tests.rewards.services import serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier with random weights and two classes."""
    path = tmp_path_factory.mktemp("classifier")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "user", "assistant", ":", "what", "is", "2", "+", "4", "5", "?"]
    (path / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(path / "vocab.txt"), model_max_length=64).save_pretrained(path)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        num_labels=2,
    )
    BertForSequenceClassification(config).save_pretrained(path)
    return path


def part(**settings: Any) -> list[dict[str, Any]]:
    return [{"name": "preference", "kind": "reward_model", "settings": settings}]


async def test_a_served_classifier_scores_as_the_same_one_in_process(folder: Path, make_manager: MakeManager) -> None:
    here = make_manager(components=part(model_path=str(folder), class_index=1))
    async with serving(classifier_app(Classifier(folder), "m")) as url:
        there = make_manager(components=part(base_url=url, model="m", tokenizer_path=str(folder), class_index=1))
        likely = make_manager(components=part(base_url=url, model="m", class_index=1, use_activation=True))
        for text in ("4", "5", "4 " * 500):
            local = await here.score(answer_of(text))
            remote = await there.score(answer_of(text))
            assert local.score == pytest.approx(remote.score, abs=1e-5)
            assert 0 < (await likely.score(answer_of(text))).score < 1
    assert local.components == {"preference": local.score}


class Counting(Classifier):
    """Notes how many texts each forward pass has."""

    def __init__(self, folder: Path, max_batch: int) -> None:
        super().__init__(folder, max_batch=max_batch)
        self.passes: list[int] = []

    def score(self, texts: Sequence[str]) -> list[Reading]:
        self.passes.append(len(texts))
        return super().score(texts)


async def test_what_comes_together_is_scored_together(folder: Path) -> None:
    classifier = Counting(folder, max_batch=4)
    texts = ["4", "what is 5", "2 + 2 ?", "5", "?"]
    alone = [classifier.score([text])[0].logits for text in texts]
    classifier.passes.clear()
    together = await asyncio.gather(*(classifier.read(text) for text in texts))
    assert classifier.passes == [4, 1]
    for one, other in zip(alone, together, strict=True):
        assert one == pytest.approx(other.logits, abs=1e-5)


async def test_a_list_of_texts_is_answered_in_order_after_one_pass(folder: Path) -> None:
    classifier = Counting(folder, max_batch=4)
    body: dict[str, Any] = {"input": ["4", "what is 5", "2 + 2 ?"], "use_activation": False}
    async with serving(classifier_app(classifier, "m")) as url, aiohttp.ClientSession() as session:
        async with session.post(f"{url}/classify", json=body) as response:
            answers = (await response.json())["data"]
        assert classifier.passes == [3]
        async with session.post(f"{url}/classify", json={"input": 7}) as response:
            assert (response.status, await response.text()) == (
                400,
                "input is '7'; expected a text or a list of texts",
            )
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    for answer, text in zip(answers, body["input"], strict=True):
        assert answer["probs"] == pytest.approx(classifier.score([text])[0].logits, abs=1e-5)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"input": ["4"', "the request is no JSON: Expecting"),
        (b"\xff\xfe", "the request is no JSON"),
        (b'["4"]', "input is .*; expected a text or a list of texts"),
        (b'{"input": ["4", null]}', "expected a text or a list of texts"),
        (b'{"input": "4", "use_activation": "no"}', "use_activation is 'no'; expected true or false"),
    ],
)
async def test_a_request_in_another_form_is_refused_with_the_reason(folder: Path, body: bytes, said: str) -> None:
    async with (
        serving(classifier_app(Classifier(folder), "m")) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/classify", data=body) as response,
    ):
        assert response.status == 400
        assert re.search(said, await response.text())


async def test_a_service_is_kept_to_the_tokens_that_it_says_it_used(make_manager: MakeManager) -> None:
    usage: dict[str, Any] = {}

    async def classify(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"probs": [2.0]}], **usage})

    app = web.Application()
    app.add_routes([web.post("/classify", classify)])
    async with serving(app) as url:
        manager = make_manager(components=part(base_url=url, model="m", max_tpm=60_000))
        await manager.score(answer_of())
        for spent, shortest, longest in ((None, 0.0, 0.4), (1000, 0.8, 3.0)):
            usage.update({} if spent is None else {"usage": {"total_tokens": spent}})
            await manager.score(answer_of())
            started = time.monotonic()
            await manager.score(answer_of())
            assert shortest < time.monotonic() - started < longest


async def test_our_server_says_how_many_tokens_it_read(folder: Path) -> None:
    async with (
        serving(classifier_app(Classifier(folder), "m")) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/classify", json={"input": ["4", "what is 5"]}) as response,
    ):
        usage = (await response.json())["usage"]
    assert usage == {"prompt_tokens": 8, "completion_tokens": 0, "total_tokens": 8}


def test_probabilities_are_those_of_the_classes() -> None:
    assert probabilities([0.0]) == [0.5]
    assert sum(probabilities([1.0, 2.0, 3.0])) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        ({"data": []}, InfrastructureError, "no numbers `data.0..probs`"),
        ({"data": [{"probs": "0.5"}]}, InfrastructureError, "no numbers `data.0..probs`"),
        ([1], InfrastructureError, "no numbers `data.0..probs`"),
        ({"data": [{"probs": [1.0]}]}, BoundaryError, "class_index=1, but the reward model has 1 classes"),
        ({"data": [{"probs": [0.0, float("nan")]}]}, BoundaryError, "the reward model gave nan"),
    ],
)
async def test_an_answer_in_another_form_is_a_failure(
    answer: Any, error: type[Exception], said: str, make_manager: MakeManager
) -> None:
    async def classify(request: web.Request) -> web.Response:
        return web.json_response(answer)

    app = web.Application()
    app.add_routes([web.post("/classify", classify)])
    async with serving(app) as url:
        manager = make_manager(components=part(base_url=url, model="m", class_index=1))
        with pytest.raises(error, match=said):
            await manager.score(answer_of())


async def test_the_key_is_sent(make_manager: MakeManager, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str | None] = []

    async def classify(request: web.Request) -> web.Response:
        keys.append(request.headers.get("Authorization"))
        return web.json_response({"data": [{"probs": [2.0]}]})

    monkeypatch.setenv("SOME_KEY", "secret")
    app = web.Application()
    app.add_routes([web.post("/classify", classify)])
    async with serving(app) as url:
        for settings in ({"api_key_variable": "SOME_KEY"}, {}):
            await make_manager(components=part(base_url=url, model="m", **settings)).score(answer_of())
    assert keys == ["Bearer secret", None]


async def test_a_refused_request_is_sent_again_when_the_server_wants_it(make_manager: MakeManager) -> None:
    times: list[float] = []

    async def classify(_: web.Request) -> web.Response:
        times.append(time.monotonic())
        if len(times) == 1:
            return web.Response(status=429, headers={"Retry-After": "0.4"}, text="slower")
        return web.json_response({"data": [{"probs": [2.0]}]})

    app = web.Application()
    app.add_routes([web.post("/classify", classify)])
    async with serving(app) as url:
        manager = make_manager(components=part(base_url=url, model="m", retry_backoff_seconds=0.001))
        assert (await manager.score(answer_of())).score == 2.0
    assert times[1] - times[0] > 0.35


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "either base_url .with model. or model_path"),
        ({"base_url": "http://h"}, "base_url needs model"),
        ({"model_path": "/nowhere"}, "/nowhere is no folder"),
        ({"base_url": "http://h", "model": "m", "model_path": "/x"}, "either base_url"),
        ({"model_path": "/", "tokenizer_path": "/"}, "has no effect with model_path"),
        ({"base_url": "http://h", "model": "m", "api_key_variable": "NO_SUCH_KEY"}, "NO_SUCH_KEY, which is not set"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        NaiveRewardManager(RewardSettings.model_validate({"components": part(**settings)}))


def test_a_folder_without_a_classifier_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="holds no sequence classifier"):
        Classifier(tmp_path)
