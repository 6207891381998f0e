"""A sequence classifier of transformers that scores texts, in threads of this process."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from agentverl import blocking
from agentverl.errors import ModelFolderError
from agentverl.messages import Message, text_of


class Classifier:
    """Scores what comes in together in one forward pass; belongs to the event loop that uses it.

    Args:
        folder: a Hugging Face folder with a sequence classifier and its tokenizer.
        max_batch: texts of one forward pass at most.

    Raises:
        ModelFolderError: the folder cannot be loaded.
    """

    def __init__(self, folder: str | Path, *, device: str = "cpu", max_batch: int = 32) -> None:
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
            self._model: Any = AutoModelForSequenceClassification.from_pretrained(folder).to(device).eval()
        except (OSError, ValueError) as error:
            raise ModelFolderError(f"{folder} holds no sequence classifier: {error}") from error
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self._model.config.pad_token_id = self.tokenizer.pad_token_id
        self.labels: dict[int, str] = dict(self._model.config.id2label)
        self._device, self._max_batch = device, max_batch
        self._waiting: list[tuple[str, asyncio.Future[list[float]]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def logits(self, text: str) -> list[float]:
        """One number a class, the whole text read; a longer one than the model takes loses its beginning."""
        future: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        self._waiting.append((text, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.ensure_future(self._work())
        return await future

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[: self._max_batch], self._waiting[self._max_batch :]
            try:
                rows: Any = await blocking.call(self.score, [text for text, _ in batch])
            except Exception as error:  # a model may raise anything; who asked has to hear of it
                rows = [error] * len(batch)
            for (_, future), row in zip(batch, rows, strict=True):
                if future.done():
                    continue
                if isinstance(row, Exception):
                    future.set_exception(row)
                else:
                    future.set_result(row)

    def score(self, texts: Sequence[str]) -> list[list[float]]:
        """Logits [text][class]."""
        self.tokenizer.truncation_side = "left"
        encoded = self.tokenizer(list(texts), return_tensors="pt", padding=True, truncation=True)
        with torch.inference_mode():
            found = self._model(**encoded.to(self._device)).logits
        rows: list[list[float]] = found.float().tolist()
        return rows


def probabilities(logits: Sequence[float]) -> list[float]:
    """What vLLM calls `probs`: a softmax over the classes, a sigmoid where there is one."""
    values = torch.tensor(list(logits))
    listed: list[float] = (values.sigmoid() if len(logits) == 1 else values.softmax(0)).tolist()
    return listed


def conversation_text(messages: Sequence[Message], tokenizer: Any = None) -> str:
    """A conversation as a reward model reads it: by its tokenizer's chat template, else `role: text` lines."""
    if tokenizer is not None and tokenizer.chat_template:
        plain = [{"role": str(message.get("role")), "content": text_of(message)} for message in messages]
        return str(tokenizer.apply_chat_template(plain, tokenize=False))
    return "\n".join(f"{message.get('role')}: {text_of(message)}" for message in messages)
