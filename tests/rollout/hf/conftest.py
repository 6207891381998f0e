"""Servers of tiny models; each is shut down when its test ends."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

import pytest
from transformers import PreTrainedTokenizerFast

from agentverl.rollout.hf.replica import HFReplica
from agentverl.rollout.hf.settings import HFSettings
from tests.rollout.hf.tiny_models import Reference, character_tokenizer


class Serve(Protocol):
    """Start a server with a reference's weights, version 0."""

    async def __call__(self, reference: Reference, tokenizer: Any = None, **settings: Any) -> HFReplica: ...


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    started: list[HFReplica] = []

    async def start(reference: Reference, tokenizer: Any = None, **settings: Any) -> HFReplica:
        replica = HFReplica(reference.config, tokenizer, HFSettings(**settings))
        started.append(replica)
        await replica.init_standalone()
        await replica.update_weights(reference.weights(), 0)
        return replica

    yield start
    for replica in started:
        await replica.shutdown()


@pytest.fixture(scope="session")
def qwen2() -> Reference:
    return Reference.make("qwen2")


@pytest.fixture(scope="session")
def other_qwen2() -> Reference:
    return Reference.make("qwen2", seed=1)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return character_tokenizer()
