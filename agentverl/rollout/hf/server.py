"""The thread that an engine works in, and the way from event loops into it and back."""

import asyncio
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from agentverl import blocking
from agentverl.daemon_threads import DaemonThread
from agentverl.rollout.hf.engine import Engine
from agentverl.rollout.hf.requests import Answer, Request, model_failure

Future = asyncio.Future[Any]

_GATHER_SECONDS = 0.001
"""How long an idle engine waits for a further request of the trajectories that are there."""
_MOST_GATHERINGS = 10


class Server:
    """Steps an engine for as long as it has work; commands run between two steps, in the order they were posted.

    An exception in a step fails the requests that ran in it. Whatever else ends the thread fails everything pending,
    and every later call at once.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._changed = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._pending: dict[Future, asyncio.AbstractEventLoop] = {}
        self._answers: list[tuple[Future, Any]] = []
        self._holds: set[str] = set()
        self._stopping = False
        self._gatherings = 0
        self._ended: str | None = "it was not started"
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> str:
        """`serving`, or what holds it (`paused`, `asleep`, ...).

        Raises:
            InfrastructureError: the thread does not run.
        """
        self._require_alive()
        return ", ".join(sorted(self._holds)) or "serving"

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        if self._thread is None:
            self._ended = None
            self._thread = DaemonThread(self._run, "agentverl-hf-server", self._ask_to_stop)
            self._thread.start()

    async def stop(self) -> None:
        """Fail what is pending and end the thread."""
        thread = self._thread
        if thread is None:
            return
        self._ask_to_stop()
        await blocking.call(thread.join)

    def _ask_to_stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def post(self, command: Callable[[], None]) -> None:
        """Run a command between two steps, without waiting for it."""
        with self._changed:
            self._require_alive()
            self._commands.append(command)
            self._changed.notify()

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function between two steps and return what it returns or raise what it raises."""
        future = self.future()

        def command() -> None:
            try:
                self.settle(future, function())
            except Exception as error:  # carried to the awaiting task
                self.settle(future, error)

        self.post(command)
        return await future

    def future(self) -> Future:
        """A future of the running loop that is settled at the latest when the thread ends."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._changed:
            self._require_alive()
            self._pending[future] = loop
        return future

    def settle(self, future: Future, answer: Any) -> None:
        """In the thread: answer a future; exceptions are raised there. Sent with the others after the step."""
        self._answers.append((future, answer))

    def settle_request(self, future: Future, _: Request, answer: Answer) -> None:
        self.settle(future, answer)

    def hold(self, reason: str) -> None:
        """In the thread: no steps while any reason holds."""
        self._holds.add(reason)

    def let_go(self, reason: str) -> None:
        self._holds.discard(reason)

    def _require_alive(self) -> None:
        if self._ended is not None:
            raise model_failure(f"the hf server does not run: {self._ended}")

    def _run(self) -> None:
        ended = "it was shut down"
        try:
            with torch.inference_mode():
                while self._turn():
                    pass
        except BaseException as error:  # whatever ends the thread, nobody may be left waiting
            ended = f"it died of {type(error).__name__}: {error}"
        with self._changed:
            self._ended = ended
            self._commands.clear()
        self._send()
        for future in list(self._pending):
            self.settle(future, model_failure(f"the hf server does not run: {ended}"))
        self._send()

    def _turn(self) -> bool:
        with self._changed:
            while not (self._stopping or self._commands or self._may_step()):
                self._changed.wait()
            if self._stopping:
                return False
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command()
        if not self._may_step():
            self._gatherings = 0
        elif not self._gathers(bool(commands)):
            self._step()
        self._send()
        return True

    def _gathers(self, has_news: bool) -> bool:
        """Wait a moment where more requests are about to come: those that begin together end together.

        It sleeps, so that whoever sends them need not wake it for each.
        """
        if not (has_news and self.engine.expects_more and self._gatherings < _MOST_GATHERINGS):
            self._gatherings = 0
            return False
        self._gatherings += 1
        time.sleep(_GATHER_SECONDS)
        return True

    def _may_step(self) -> bool:
        return not self._holds and not self.engine.idle

    def _step(self) -> None:
        try:
            self.engine.step()
        except Exception as error:  # a model, tokenizer or device may raise anything
            self.engine.fail_running(f"a step of the hf server failed: {type(error).__name__}: {error}", error)

    def _send(self) -> None:
        by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Future, Any]]] = defaultdict(list)
        with self._changed:
            for future, answer in self._answers:
                loop = self._pending.pop(future, None)
                if loop is not None:
                    by_loop[loop].append((future, answer))
        self._answers = []
        for loop, answers in by_loop.items():
            with suppress(RuntimeError):  # the loop was closed: nobody waits there any more
                loop.call_soon_threadsafe(partial(_settle_all, answers))


def _settle_all(answers: list[tuple[Future, Any]]) -> None:
    for future, answer in answers:
        if future.done():
            continue
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)
