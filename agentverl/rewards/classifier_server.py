"""Serve a sequence classifier in the form of vLLM's `/classify`.

Usage: python -m agentverl.rewards.classifier_server FOLDER [--port 8001]
"""

import argparse
import asyncio
from typing import Any

from aiohttp import web

from agentverl.rewards.classifier import Classifier, probabilities


def classifier_app(classifier: Classifier, name: str) -> web.Application:
    """An application with `POST /classify` and `GET /health`.

    A request holds `model` and `input`, a text or a list of them; `use_activation: false` asks for logits.
    """

    async def classify(request: web.Request) -> web.Response:
        body = await request.json()
        given = body.get("input")
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise web.HTTPBadRequest(text=f"input is {str(given)[:80]!r}; expected a text or a list of texts")
        return web.json_response({"object": "list", "model": name, "data": await _answers(texts, body)})

    async def _answers(texts: list[str], body: dict[str, Any]) -> list[dict[str, Any]]:
        answers = []
        for index, logits in enumerate(await asyncio.gather(*map(classifier.logits, texts))):
            values = probabilities(logits) if body.get("use_activation", True) else logits
            best = max(range(len(values)), key=values.__getitem__)
            label = classifier.labels.get(best)
            answers.append({"index": index, "label": label, "probs": values, "num_classes": len(values)})
        return answers

    async def health(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(client_max_size=64 << 20)
    app.add_routes([web.post("/classify", classify), web.get("/health", health)])
    return app


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
