"""Real HTTP servers that stand in for the models behind judges and reward models."""

import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Chats:
    """A chat-completions server that answers by a function and can be told to refuse, to be down, to enforce limits."""

    reply: Callable[[str], str] = lambda prompt: "Fine. <verdict>10</verdict>"
    most_a_minute: int | None = None
    failures: list[int] = field(default_factory=list)
    """Statuses that the next requests get."""
    retry_after: str = "0.05"
    prompts: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0
    url: str = ""
    _times: deque[float] = field(default_factory=deque)

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.failures:
            return web.Response(status=self.failures.pop(0), headers={"Retry-After": self.retry_after}, text="no")
        if self._is_over_limit():
            self.refused += 1
            return web.Response(status=429, headers={"Retry-After": "1"}, text="slower")
        prompt = body["messages"][-1]["content"]
        self.prompts.append(prompt)
        self.bodies.append(body)
        message = {"role": "assistant", "content": self.reply(prompt)}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        )

    def _is_over_limit(self) -> bool:
        if self.most_a_minute is None:
            return False
        now = time.monotonic()
        while self._times and now - self._times[0] >= 60:
            self._times.popleft()
        if len(self._times) >= self.most_a_minute:
            return True
        self._times.append(now)
        return False


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """The address at which an application is served until the block ends."""
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def chats(**settings: Any) -> AsyncIterator[Chats]:
    """A running chat-completions server."""
    server = Chats(**settings)
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", server.answer)])
    async with serving(app) as url:
        server.url = f"{url}/v1"
        yield server
