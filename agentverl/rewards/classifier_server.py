"""Serve a sequence classifier in the form of vLLM's `/classify`.

Usage: python -m agentverl.rewards.classifier_server FOLDER [--port 8001]
"""

import argparse
import asyncio
import json
from typing import Any

from aiohttp import web

from agentverl.rewards.classifier import Classifier, Reading, probabilities


def classifier_app(classifier: Classifier, name: str) -> web.Application:
    """An application with `POST /classify` and `GET /health`.

    A request holds `model` and `input`, a text or a list of them; `use_activation: false` asks for logits.
    """

    async def classify(request: web.Request) -> web.Response:
        texts, activates = _asked(await request.read())
        readings = await asyncio.gather(*map(classifier.read, texts))
        tokens = sum(reading.tokens for reading in readings)
        usage = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
        data = [_answer(index, reading, activates) for index, reading in enumerate(readings)]
        return web.json_response({"object": "list", "model": name, "data": data, "usage": usage})

    def _answer(index: int, reading: Reading, activates: bool) -> dict[str, Any]:
        values = probabilities(reading.logits) if activates else reading.logits
        best = max(range(len(values)), key=values.__getitem__)
        label = classifier.labels.get(best)
        return {"index": index, "label": label, "probs": values, "num_classes": len(values)}

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=64 << 20)
    app.add_routes([web.post("/classify", classify), web.get("/health", health)])
    return app


def _asked(body: bytes) -> tuple[list[str], bool]:
    """The texts of a request, and whether it asks for probabilities.

    Raises:
        HTTPBadRequest: it has another form; says which.
    """
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"the request is no JSON: {error}; it begins {body[:80]!r}") from None
    given = asked.get("input") if isinstance(asked, dict) else asked
    texts = [given] if isinstance(given, str) else given
    if not isinstance(asked, dict) or not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise web.HTTPBadRequest(text=f"input is {str(given)[:80]!r}; expected a text or a list of texts")
    activates = asked.get("use_activation", True)
    if not isinstance(activates, bool):
        raise web.HTTPBadRequest(text=f"use_activation is {activates!r}; expected true or false")
    return texts, activates


def main() -> None:
    """Serve the folder named on the command line until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    app = classifier_app(Classifier(arguments.folder, device=arguments.device), arguments.folder)
    web.run_app(app, host=arguments.host, port=arguments.port)


if __name__ == "__main__":
    main()
