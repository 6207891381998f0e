"""A sequence classifier of transformers that scores texts, in threads of this process."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from agentverl import blocking
from agentverl.errors import ModelFolderError


@dataclass(frozen=True, slots=True)
class Reading:
    """What a classifier makes of one text."""

    logits: list[float]
    """One number a class."""
    tokens: int
    """Of the text, as many as were read."""


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
        self._waiting: list[tuple[str, asyncio.Future[Reading]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def read(self, text: str) -> Reading:
        """The whole text read; a longer one than the model takes loses its beginning."""
        future: asyncio.Future[Reading] = asyncio.get_running_loop().create_future()
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

    def score(self, texts: Sequence[str]) -> list[Reading]:
        """All texts in one forward pass."""
        self.tokenizer.truncation_side = "left"
        encoded = self.tokenizer(list(texts), return_tensors="pt", padding=True, truncation=True)
        with torch.inference_mode():
            found = self._model(**encoded.to(self._device)).logits
        tokens = encoded["attention_mask"].sum(dim=1).tolist()
        return [Reading(row, count) for row, count in zip(found.float().tolist(), tokens, strict=True)]


def probabilities(logits: Sequence[float]) -> list[float]:
    """What vLLM calls `probs`: a softmax over the classes, a sigmoid where there is one."""
    values = torch.tensor(list(logits))
    listed: list[float] = (values.sigmoid() if len(logits) == 1 else values.softmax(0)).tolist()
    return listed
