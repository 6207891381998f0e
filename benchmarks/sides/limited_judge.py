"""A judge with a limit a minute, over a sliding window: beyond it requests are refused. Prints its address.

Usage: python benchmarks/sides/limited_judge.py 600

`GET /counts` tells how many requests were answered and refused so far.
"""

import asyncio
import sys
import time
from collections import deque

from aiohttp import web

WINDOW_SECONDS = 60.0
REPLY = {"role": "assistant", "content": "Fine. <verdict>7</verdict>"}


class LimitedJudge:
    """Answers at most `most` requests in any window of a minute, each after 50 ms."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: deque[float] = deque()
        self._counts = {"answered": 0, "refused": 0}

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        now = time.monotonic()
        while self._times and now - self._times[0] >= WINDOW_SECONDS:
            self._times.popleft()
        if len(self._times) >= self._most:
            self._counts["refused"] += 1
            return web.Response(status=429, headers={"Retry-After": "1"}, text="too many requests")
        self._times.append(now)
        self._counts["answered"] += 1
        await asyncio.sleep(0.05)
        choice = {"index": 0, "finish_reason": "stop", "message": REPLY}
        usage = {"prompt_tokens": 100, "completion_tokens": 8, "total_tokens": 108}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        return web.json_response(body)

    async def counts(self, _: web.Request) -> web.Response:
        return web.json_response(self._counts)


async def main() -> None:
    """Serve until killed."""
    judge = LimitedJudge(int(sys.argv[1]))
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", judge.answer), web.get("/counts", judge.counts)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)  # noqa: T201
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
