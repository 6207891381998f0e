"""A component that a language model judges, behind any endpoint that speaks OpenAI's chat completions."""

import asyncio
import json
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import openai
from pydantic import Field, field_validator, model_validator

from agentverl.errors import BoundaryError
from agentverl.messages import text_of
from agentverl.rewards.base import RewardInput, RewardResult
from agentverl.rewards.components.base import ComponentContext, RewardComponent
from agentverl.rewards.endpoint import CHARACTERS_A_TOKEN, Endpoint, EndpointError, EndpointSettings, refusal
from agentverl.rewards.verdicts import DEFAULT_PROMPT, DEFAULT_VERDICT, JudgePrompt, VerdictScale

_NOT_SAMPLING = frozenset({"model", "messages", "stream", "n"})


class JudgeSettings(EndpointSettings):
    """What the judge is told, how its verdict is read, and what it costs."""

    prompt: str = DEFAULT_PROMPT
    """A jinja template; see `agentverl.rewards.verdicts`."""
    rubric: str = ""
    """What makes an answer good, for the default prompt."""
    system: str | None = None
    """A system message before the prompt."""
    verdict: str = DEFAULT_VERDICT
    """A regular expression with one group, the verdict; a reply must end in it."""
    verdicts: dict[str, float] = {}
    """Scores of verdicts in words, such as `{'yes': 1, 'no': 0}`; without them a verdict is a number."""
    minimum: float = 0.0
    """The number that scores 0."""
    maximum: float = 10.0
    """The number that scores 1."""
    unparsed_score: float | None = None
    """Of an answer about which no reply has a verdict; without it the trajectory fails at `reward`."""
    attempts_to_parse: int = Field(2, gt=0)
    """Replies asked for until one has a verdict."""
    sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": 512}
    """Further fields of each request."""
    cache_size: int = Field(10_000, ge=0)
    """Verdicts kept; an answer that was judged before is not sent again."""
    price_per_million_prompt_tokens: float = Field(0.0, ge=0)
    price_per_million_completion_tokens: float = Field(0.0, ge=0)

    @field_validator("verdicts", mode="before")
    @classmethod
    def _are_words(cls, verdicts: Any) -> Any:
        if isinstance(verdicts, dict) and any(isinstance(word, bool) for word in verdicts):
            raise ValueError("YAML takes yes, no, on and off for true and false: quote them, as in {'yes': 1, 'no': 0}")
        return verdicts

    @field_validator("sampling")
    @classmethod
    def _leaves_the_request_whole(cls, sampling: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_NOT_SAMPLING & sampling.keys()):
            raise ValueError(f"{taken[0]} is not the user's to set; a judge is asked for one whole reply to its prompt")
        return sampling

    @model_validator(mode="after")
    def _can_be_read(self) -> "JudgeSettings":
        if not self.minimum < self.maximum:
            raise ValueError(f"minimum={self.minimum:g} must be below maximum={self.maximum:g}")
        try:
            groups = re.compile(f"(?:{self.verdict})").groups  # as it is used: flags for the whole do not work
        except re.error as error:
            raise ValueError(f"verdict={self.verdict!r} is no regular expression: {error}") from None
        if groups != 1:
            raise ValueError(f"verdict={self.verdict!r} has {groups} groups; expected one, the verdict")
        return self


@dataclass(slots=True)
class _Reply:
    text: str
    prompt_tokens: int
    completion_tokens: int


class Judge(RewardComponent[JudgeSettings]):
    """Scores the final message (else all that the policy wrote) between 0 and 1.

    Reports `prompt_tokens`, `completion_tokens`, `cost`, `cached` and `replies` of each trajectory.

    Raises:
        SettingsError: the prompt cannot be used, or the key's variable is not set.
    """

    Settings = JudgeSettings

    def __init__(self, name: str, settings: JudgeSettings, context: ComponentContext) -> None:
        super().__init__(name, settings, context)
        self._scale = VerdictScale(settings.verdict, (settings.minimum, settings.maximum), settings.verdicts)
        self._prompt = JudgePrompt(settings.prompt, settings.rubric, self._scale)
        self._endpoint = Endpoint(f"judge {name}", settings)
        self._verdicts: OrderedDict[str, asyncio.Future[RewardResult]] = OrderedDict()
        self._client: Any = None

    async def score(self, judged: RewardInput) -> RewardResult:
        messages = self._messages(judged)
        key = json.dumps(messages)
        known = self._verdicts.get(key)
        if known is not None:
            self._verdicts.move_to_end(key)
            kept = await asyncio.shield(known)
            free = {"prompt_tokens": 0, "completion_tokens": 0, "cost": 0.0, "cached": 1.0, "replies": 0}
            return RewardResult(score=kept.score, components=free)
        future: asyncio.Future[RewardResult] = asyncio.ensure_future(self._ask(messages))
        if self.settings.cache_size:
            self._keep(key, future)
        return await asyncio.shield(future)

    def _keep(self, key: str, future: "asyncio.Future[RewardResult]") -> None:
        self._verdicts[key] = future
        if len(self._verdicts) > self.settings.cache_size:
            self._verdicts.popitem(last=False)

        def forget_failure(done: "asyncio.Future[RewardResult]") -> None:
            if done.cancelled() or done.exception() is not None:
                self._verdicts.pop(key, None)

        future.add_done_callback(forget_failure)

    def _messages(self, judged: RewardInput) -> list[dict[str, str]]:
        answer = judged.final_message or judged.solution_str
        asked = [text_of(message) for message in judged.messages if message.get("role") == "user"]
        said = "\n\n".join(f"{message.get('role')}: {text_of(message)}" for message in judged.messages)
        prompt = self._prompt.render(
            question=asked[0] if asked else "", answer=answer, ground_truth=judged.ground_truth, conversation=said
        )
        system = [{"role": "system", "content": self.settings.system}] if self.settings.system else []
        return [*system, {"role": "user", "content": prompt}]

    async def _ask(self, messages: list[dict[str, str]]) -> RewardResult:
        settings, spent = self.settings, _Reply("", 0, 0)
        for attempt in range(settings.attempts_to_parse):
            reply = await self._reply(messages, attempt)
            spent.text = reply.text
            spent.prompt_tokens += reply.prompt_tokens
            spent.completion_tokens += reply.completion_tokens
            score = self._scale.score(reply.text)
            if score is not None:
                return self._result(score, spent, attempt + 1)
        if settings.unparsed_score is not None:
            result = self._result(settings.unparsed_score, spent, settings.attempts_to_parse)
            result.components["unparsed"] = 1.0
            return result
        raise BoundaryError(
            f"the judge's reply ends in no verdict {self._scale.described}: {spent.text.strip()[-120:]!r}", "reward"
        )

    def _result(self, score: float, spent: _Reply, replies: int) -> RewardResult:
        settings = self.settings
        cost = spent.prompt_tokens * settings.price_per_million_prompt_tokens
        cost += spent.completion_tokens * settings.price_per_million_completion_tokens
        facts = {"prompt_tokens": spent.prompt_tokens, "completion_tokens": spent.completion_tokens}
        return RewardResult(score=score, components={**facts, "cost": cost / 1e6, "cached": 0.0, "replies": replies})

    async def _reply(self, messages: list[dict[str, str]], attempt: int) -> _Reply:
        length = sum(len(message["content"]) for message in messages)
        estimated = length // CHARACTERS_A_TOKEN + int(self.settings.sampling.get("max_tokens") or 0)
        return await self._endpoint.ask(lambda: self._request(messages, attempt), estimated)

    async def _request(self, messages: list[dict[str, str]], attempt: int) -> tuple[_Reply, int | None]:
        if self._client is None:
            key = self._endpoint.key or "none"
            self._client = openai.AsyncOpenAI(base_url=self.settings.base_url, api_key=key, max_retries=0, timeout=None)
        sampling = self.settings.sampling
        if attempt:  # the same reply once more would help nobody
            sampling = {**sampling, "seed": attempt, "temperature": 0.7}
        try:
            answer = await self._client.chat.completions.with_raw_response.create(
                model=self.settings.model, messages=messages, extra_body=sampling
            )
        except openai.APIStatusError as error:
            raise refusal(error.status_code, error.message, error.response.headers) from error
        except openai.APIError as error:
            raise EndpointError(f"{type(error).__name__}: {error}", passes=True) from error
        return _read(answer.text)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def _read(answer: str) -> tuple[_Reply, int | None]:
    """A reply, and the tokens that it used where the service says so.

    Raises:
        EndpointError: it is none.
    """
    try:
        found: dict[str, Any] = json.loads(answer)
        choices: list[Any] = found["choices"]
        text = text_of(choices[0]["message"]) if choices else ""  # a service may withhold what it filtered
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise EndpointError(f"no chat completion but {answer[:200]!r}; is base_url right?", passes=False) from error
    usage = found.get("usage")
    counts = [usage.get(f"{part}_tokens") if isinstance(usage, dict) else None for part in ("prompt", "completion")]
    prompt, completion = (count if isinstance(count, int) else 0 for count in counts)
    return _Reply(text, prompt, completion), prompt + completion or None
