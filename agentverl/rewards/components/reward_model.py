"""A component that a sequence classifier scores: a server with vLLM's `/classify`, or a folder in this process."""

import asyncio
import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
from pydantic import Field, model_validator

from agentverl import blocking
from agentverl.errors import BoundaryError, SettingsError
from agentverl.messages import Message, text_of
from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.components.base import ComponentContext, RewardComponent
from agentverl.rewards.endpoint import CHARACTERS_A_TOKEN, Endpoint, EndpointError, EndpointSettings, refusal


class RewardModelSettings(EndpointSettings):
    """Either `base_url` and `model`, or `model_path`."""

    base_url: str = ""
    """A server with vLLM's `/classify`, such as `http://127.0.0.1:8001`."""
    model: str = ""
    """The name under which it serves the model."""
    model_path: str | None = None
    """A Hugging Face folder, served in this process."""
    tokenizer_path: str | None = None
    """The folder whose chat template renders the conversation for a server; without it `role: text` lines are sent."""
    class_index: int = Field(0, ge=0)
    """The class whose number is the score."""
    use_activation: bool = False
    """Whether the score is a probability, or the raw output that reward models are trained on."""

    @model_validator(mode="after")
    def _one_place(self) -> "RewardModelSettings":
        served = bool(self.base_url)
        if served == (self.model_path is not None):
            raise ValueError("either base_url (with model) or model_path must be set")
        if served and not self.model:
            raise ValueError("base_url needs model, the name under which the server has it")
        if self.model_path is not None and self.tokenizer_path is not None:
            raise ValueError("tokenizer_path has no effect with model_path, whose folder holds one")
        return self


class RewardModel(RewardComponent[RewardModelSettings]):
    """The output of one class over the whole conversation.

    Raises:
        ModelFolderError, SettingsError: the folder cannot be used, or the key's variable is not set.
    """

    Settings = RewardModelSettings

    def __init__(self, name: str, settings: RewardModelSettings, context: ComponentContext) -> None:
        super().__init__(name, settings, context)
        self._endpoint = Endpoint(f"reward model {name}", settings)
        self._session: aiohttp.ClientSession | None = None
        self._loading = asyncio.Lock()
        self._loaded: Any = None
        for path in (settings.model_path, settings.tokenizer_path):
            if path is not None and not os.path.isdir(os.path.expanduser(path)):
                raise SettingsError(f"{path} is no folder")

    async def score(self, judged: RewardInput) -> RewardResult:
        values = await (self._here(judged) if self.settings.model_path is not None else self._served(judged))
        if self.settings.class_index >= len(values):
            raise BoundaryError(
                f"class_index={self.settings.class_index}, but the reward model has {len(values)} classes", "reward"
            )
        value = values[self.settings.class_index]
        if not math.isfinite(value):
            raise BoundaryError(f"the reward model gave {value}", "reward")
        return RewardResult(score=value)

    async def _here(self, judged: RewardInput) -> list[float]:
        classifier = await self._once_loaded(self._load_classifier)
        logits: list[float] = (await classifier.read(conversation_text(judged.messages, classifier.tokenizer))).logits
        if not self.settings.use_activation:
            return logits
        from agentverl.rewards.classifier import probabilities

        return probabilities(logits)

    async def _served(self, judged: RewardInput) -> list[float]:
        tokenizer = None if self.settings.tokenizer_path is None else await self._once_loaded(self._load_tokenizer)
        text = conversation_text(judged.messages, tokenizer)
        return await self._endpoint.ask(lambda: self._request(text), len(text) // CHARACTERS_A_TOKEN)

    async def _once_loaded(self, load: Callable[[], Any]) -> Any:
        """What `load` gives, which takes seconds, its imports included: in a thread, for all who wait."""
        async with self._loading:
            if self._loaded is None:
                self._loaded = await blocking.call(load)
        return self._loaded

    def _load_classifier(self) -> Any:
        from agentverl.rewards.classifier import Classifier

        return Classifier(os.path.expanduser(str(self.settings.model_path)))

    def _load_tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(os.path.expanduser(str(self.settings.tokenizer_path)))

    async def _request(self, text: str) -> tuple[list[float], int | None]:
        if self._session is None:
            key = self._endpoint.key
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            self._session = aiohttp.ClientSession(headers=headers)
        url = f"{self.settings.base_url.rstrip('/')}/classify"
        body = {"model": self.settings.model, "input": text, "use_activation": self.settings.use_activation}
        try:
            async with self._session.post(url, json=body) as response:
                answer = await response.text()
        except aiohttp.ClientError as error:
            raise EndpointError(f"{type(error).__name__}: {error}", passes=True) from error
        if response.status != 200:
            raise refusal(response.status, answer, response.headers)
        try:
            found: dict[str, Any] = json.loads(answer)
            values = [float(value) for value in found["data"][0]["probs"]]
        except (ValueError, LookupError, TypeError) as error:
            raise EndpointError(f"no numbers `data[0].probs` in {answer[:200]!r}", passes=False) from error
        used = (found.get("usage") or {}).get("total_tokens")
        return values, used if isinstance(used, int) else None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def conversation_text(messages: Sequence[Message], tokenizer: Any = None) -> str:
    """A conversation as a reward model reads it: by its tokenizer's chat template, else `role: text` lines."""
    if tokenizer is not None and tokenizer.chat_template:
        plain = [{"role": str(message.get("role")), "content": text_of(message)} for message in messages]
        return str(tokenizer.apply_chat_template(plain, tokenize=False))
    return "\n".join(f"{message.get('role')}: {text_of(message)}" for message in messages)
