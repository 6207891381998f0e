"""A service that components ask over HTTP: retried with backoff, kept to its limits, reported once when it is down."""

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from pydantic import Field, field_validator
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from agentverl.deadlines import OutOfTimeError, bounded
from agentverl.errors import BoundaryError, InfrastructureError, SettingsError
from agentverl.rewards.rate_limit import RateLimit
from agentverl.settings.section import Name, Section

logger = logging.getLogger(__name__)
T = TypeVar("T")


CHARACTERS_A_TOKEN = 4
"""About; `Endpoint.ask` takes an estimate of tokens."""


_LONGEST_WAIT_SECONDS = 300.0
"""A service that asks for more is one that does not answer."""


class EndpointSettings(Section):
    """Where a service answers, and how much it may be asked."""

    base_url: Name
    """Such as `http://127.0.0.1:8000/v1`."""
    model: Name
    """The name under which it serves the model."""
    api_key_variable: str | None = None
    """The environment variable that holds the key; without it none is sent."""
    timeout_seconds: float = Field(60.0, gt=0)
    """Of one request."""
    max_retries: int = Field(4, ge=0)
    """Of a request that the service refused, lost or did not answer in time."""
    retry_backoff_seconds: float = Field(0.5, gt=0)
    """Before the first retry, on average; doubled with each, or what the service asks for."""
    max_rpm: float | None = Field(None, gt=0)
    """Requests a minute."""
    max_tpm: float | None = Field(None, gt=0)
    """Tokens a minute."""
    max_concurrent: int = Field(64, gt=0)
    """Requests under way at a time."""

    @field_validator("base_url")
    @classmethod
    def _has_a_scheme(cls, base_url: str) -> str:
        if base_url and not base_url.startswith(("http://", "https://")):
            raise ValueError("expected an address that begins with http:// or https://")
        return base_url


class EndpointError(Exception):
    """One request that got no usable answer.

    `passes` says that the same request may succeed later, `retry_after_seconds` what the service asks to wait, and
    `is_refusal` that the service is well and refuses what this request holds, such as a text that is too long.
    """

    def __init__(
        self, message: str, *, passes: bool, retry_after_seconds: float | None = None, is_refusal: bool = False
    ) -> None:
        super().__init__(message)
        self.passes = passes
        self.retry_after_seconds = retry_after_seconds
        self.is_refusal = is_refusal


def refusal(status: int, said: str, headers: Mapping[str, str]) -> EndpointError:
    """What an answer with an error status means: whether asking again may help, and when the service wants it."""
    wait = headers.get("retry-after", "")
    seconds = float(wait) if wait.replace(".", "", 1).isdecimal() else None
    is_too_long = seconds is not None and seconds > _LONGEST_WAIT_SECONDS
    return EndpointError(
        f"status {status}: {said[:200]}" + (f"; it asks to wait {wait} seconds" if is_too_long else ""),
        passes=(status in (408, 409, 429) or status >= 500) and not is_too_long,
        retry_after_seconds=None if is_too_long else seconds,
        is_refusal=status in (400, 413, 422),
    )


class Endpoint:
    """Sends the requests of one component.

    A service that stays away after all retries is reported once; until it answers again, each request is tried once.

    Raises:
        SettingsError: the key's variable is not set.
    """

    def __init__(self, name: str, settings: EndpointSettings) -> None:
        variable = settings.api_key_variable
        if variable is not None and variable not in os.environ:
            raise SettingsError(f"its key stands in the environment variable {variable}, which is not set")
        self.key = os.environ[variable] if variable else None
        self._name = name
        self._settings = settings
        self._limit = RateLimit(settings.max_rpm, settings.max_tpm, settings.max_concurrent)
        self._is_down = False

    async def ask(self, request: Callable[[], Awaitable[tuple[T, int | None]]], tokens: int) -> T:
        """The answer to a request, which gives it with the tokens that it used, or raises EndpointError.

        `tokens` is about what it will use, and what it counts where the service does not say.

        Raises:
            InfrastructureError: no answer after all retries; boundary "reward".
            BoundaryError: the service refuses what the request holds; boundary "reward".
        """
        attempts = 1 if self._is_down else self._settings.max_retries + 1
        backoff = wait_random_exponential(multiplier=2 * self._settings.retry_backoff_seconds, max=60.0)
        retrying = AsyncRetrying(
            stop=stop_after_attempt(attempts),
            retry=retry_if_exception(lambda error: isinstance(error, EndpointError) and error.passes),
            wait=lambda state: _wanted(state) or backoff(state),
            reraise=True,
        )
        try:
            answer: T = await retrying(self._once, request, tokens)
        except EndpointError as error:
            if error.is_refusal:
                raise BoundaryError(f"{self._settings.base_url} refused the request: {error}", "reward") from error
            self._report(error)
            raise InfrastructureError(f"{self._settings.base_url} did not answer: {error}", "reward") from error
        if self._is_down:
            logger.warning("%s (%s) answers again", self._name, self._settings.base_url)
            self._is_down = False
        return answer

    async def _once(self, request: Callable[[], Awaitable[tuple[T, int | None]]], tokens: int) -> T:
        async with self._limit.request(tokens):
            try:
                answer, used = await bounded(request(), self._settings.timeout_seconds)
            except OutOfTimeError as error:
                raise EndpointError(str(error), passes=True) from None
            except EndpointError as error:
                if error.retry_after_seconds is not None:
                    self._limit.hold_back(error.retry_after_seconds)
                raise
        if used is not None:
            self._limit.correct(tokens, used)
        return answer

    def _report(self, error: EndpointError) -> None:
        if not self._is_down:
            logger.warning(
                "%s (%s) does not answer: %s; trajectories fail at `reward` until it does",
                self._name,
                self._settings.base_url,
                error,
            )
        self._is_down = True


def _wanted(state: RetryCallState) -> float | None:
    error: Any = state.outcome.exception() if state.outcome is not None else None
    seconds: float | None = getattr(error, "retry_after_seconds", None)
    return seconds
