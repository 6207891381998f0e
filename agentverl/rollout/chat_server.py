"""A rollout server behind OpenAI's chat completions, for judges, user simulators and other helpers of a run."""

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from agentverl.data.chat_template import ChatTemplate
from agentverl.errors import BadInputError, InfrastructureError
from agentverl.rollout.replica import RolloutReplica

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop")
_KNOWN = {*_SAMPLING, "model", "messages", "n", "max_tokens", "max_completion_tokens", "user"}


class ChatServer:
    """Answers `POST /v1/chat/completions`, `GET /v1/models` and `GET /health` with the replica's model.

    Text only, one choice, no streaming and no tools; what it does not know is refused with status 400.
    """

    def __init__(self, replica: RolloutReplica, template: ChatTemplate, name: str) -> None:
        self._replica = replica
        self._template = template
        self._name = name
        self._numbers = itertools.count()

    def app(self) -> web.Application:
        """The application to run."""
        app = web.Application(client_max_size=64 << 20)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._complete),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
            ]
        )
        return app

    async def _complete(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
            messages, sampling = _read(body)
            prompt = self._template.prompt(messages)
            answer = await self._sampled(prompt, sampling)
        except (BadInputError, ValueError) as error:
            return _error(400, "invalid_request_error", str(error))
        except InfrastructureError as error:
            return _error(503, "server_error", str(error))
        text = self._template.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "length" if answer.stop_reason == "length" else "stop",
            "logprobs": None,
        }
        count = len(answer.token_ids)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": count, "total_tokens": len(prompt) + count}
        return web.json_response(
            {
                "id": f"chatcmpl-{next(self._numbers)}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": self._name,
                "choices": [choice],
                "usage": usage,
            }
        )

    async def _sampled(self, prompt: list[int], sampling: Mapping[str, Any]) -> Any:
        request_id = f"chat-{next(self._numbers)}"
        params = {**sampling, "stop_token_ids": self._template.stop_token_ids, "logprobs": False}
        await self._replica.open(request_id)
        try:
            return await self._replica.generate(request_id, prompt_ids=prompt, sampling_params=params)
        finally:
            await self._replica.close(request_id)

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._name, "object": "model"}]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.json_response(await self._replica.health())


def _read(body: Any) -> tuple[Sequence[dict[str, Any]], dict[str, Any]]:
    """The messages and the sampling parameters of a request.

    Raises:
        ValueError: what the server does not do is asked for.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise ValueError("messages: expected a list of messages")
    asked = [name for name, value in body.items() if value and name not in _KNOWN]
    if asked or body.get("n", 1) != 1:
        raise ValueError(f"{', '.join(asked) or 'n above 1'} is not served here; known are {', '.join(sorted(_KNOWN))}")
    sampling = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
    if isinstance(sampling.get("stop"), str):
        sampling["stop"] = [sampling["stop"]]
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    if limit is not None:
        sampling["max_tokens"] = limit
    return body["messages"], sampling


def _error(status: int, kind: str, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": kind, "code": status}}, status=status)
