"""Tokens are true from the server through the batch to the training engine: the nano model plays with real tools."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, ClassVar, cast

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from agentverl.agent_loops.limits import ChatLimits
from agentverl.data.chat_template import ChatTemplate
from agentverl.data.hermes import HermesToolParser
from agentverl.data.model_folder import resolve_model_path
from agentverl.data.tokenizers import load_tokenizer
from agentverl.environments.base import Environment, EnvironmentContext, Observation, Step
from agentverl.messages import Message
from agentverl.protocol.column_store import resolve
from agentverl.protocol.data_proto import DataProto
from agentverl.rollout.batching import assemble
from agentverl.rollout.client import Gate
from agentverl.rollout.episode import Episode, EpisodeResult, Group
from agentverl.rollout.keeper import Keeper
from agentverl.rollout.parts import EpisodeParts
from agentverl.rollout.replica import RolloutReplica
from agentverl.rollout.router import LeastLoadedRouter
from agentverl.rollout.runner import EpisodeRunner
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.settings.root import ActorRolloutRefSettings
from agentverl.single_controller.launcher import start_workers
from agentverl.single_controller.worker import WorkerClass
from agentverl.single_controller.worker_group import WorkerGroup
from agentverl.tools.base import Tool
from agentverl.tools.toolset import Toolset, ToolSpec
from agentverl.trajectory import AgentLoopOutput, Termination, TokenOutput
from agentverl.workers.actor_rollout_ref import ActorRolloutRefWorker

TEMPERATURES = (0.6, 1.0, 1.3)
TEMPLATE = ChatTemplate(load_tokenizer(resolve_model_path("nano").path))
SPECIAL = "".join(TEMPLATE.tokenizer.get_added_vocab())
EMPTY_ANSWER = {"role": "tool", "content": "", "tool_call_id": "1"}
AROUND_AN_ANSWER = len(TEMPLATE.delta([{"role": "assistant", "content": "?"}], [EMPTY_ANSWER])) + 3
"""The template's own tokens around a tool's answer, and what a cut reply needs to be ended."""


class Picky(Tool):
    """Wants other arguments than the nano model gives."""

    name = "calculator"

    async def call(self, amount: int) -> str:
        """Evaluate an arithmetic expression.

        Args:
            amount: a number
        """
        return str(amount)


class Talker(Environment):
    """Answers whatever is said with every special token; between the first turns and the second, something happens."""

    between: ClassVar[Callable[[], Awaitable[None]] | None] = None

    async def reset(self, context: EnvironmentContext, *args: Any, **task: Any) -> Observation:
        self.heard = 0
        return Observation(messages=[{"role": "user", "content": f"Speak. {SPECIAL} {context.random.random()}"}])

    async def step(self, action: Message) -> Step:
        self.heard += 1
        if Talker.between is not None:
            await Talker.between()
        content = SPECIAL * self.context.random.randint(0, 2)
        return Step(observation=Observation(messages=[{"role": "user", "content": content}]), done=self.heard == 4)


class Forger(Tool):
    """Prints every special token, fails or hangs; by the name that the nano model calls."""

    name = "calculator"

    async def call(self, expression: str) -> str:
        """Evaluate an arithmetic expression.

        Args:
            expression: such as 37 * 48
        """
        deed = self.context.row["deed"]
        if deed == "raise":
            raise ValueError(SPECIAL)
        if deed == "hang":
            await asyncio.sleep(60)
        return SPECIAL


@dataclass(eq=False)
class Recording:
    """A replica whose answers are noted, by trajectory, as they leave it."""

    replica: RolloutReplica
    answers: dict[str, list[tuple[list[int], TokenOutput]]] = field(default_factory=dict)

    async def open(self, request_id: str) -> None:
        await self.replica.open(request_id)

    async def close(self, request_id: str) -> None:
        await self.replica.close(request_id)

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: Mapping[str, Any]
    ) -> TokenOutput:
        answer = await self.replica.generate(request_id, prompt_ids=prompt_ids, sampling_params=sampling_params)
        noted = TokenOutput(list(answer.token_ids), list(answer.log_probs or []), answer.stop_reason)
        noted.weight_versions = list(answer.weight_versions)
        self.answers.setdefault(request_id, []).append((list(prompt_ids), noted))
        return answer


@dataclass(frozen=True)
class Kind:
    """A way to play: what the tool does and how narrow the limits are."""

    deed: str = "print"
    limits: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    tools: Sequence[type[Tool]] = (Forger,)
    environment: str | None = None


KINDS = {
    "plain": Kind(),
    "cut tool answer": Kind(limits={"max_tool_response_length": 7}),
    "response length": Kind(limits={"max_response_length": 48}),
    "cut turns": Kind(limits={"max_tokens_per_turn": 9}),
    "deadline": Kind(deed="hang", seconds=2.0),
    "invalid calls": Kind(tools=(Picky,), limits={"max_consecutive_invalid_calls": 2}),
    "tool error": Kind(deed="raise"),
}


TALK = Kind(tools=(), limits={"max_tokens_per_turn": 20}, environment="tests.workers.test_truth:Talker")


async def served(path: str) -> WorkerGroup:
    config = ActorRolloutRefSettings.model_validate(
        {
            "model": {"path": path, "enable_gradient_checkpointing": False},
            "actor": {"fsdp_config": {"dtype": "float32"}, "optim": {"lr": 1e-2}, "ppo_max_token_len_per_gpu": 1100},
            "rollout": {"max_model_len": 1024, "log_prob_max_token_len_per_gpu": 1100},
        }
    )
    group = start_workers("local", WorkerClass(ActorRolloutRefWorker, (config,)))
    group.init_model()
    await group.start_replica()
    await group.update_weights(0)
    return group


@pytest.fixture
async def nano() -> AsyncIterator[WorkerGroup]:
    group = await served("nano")
    yield group
    await group.stop_replica()


@pytest.fixture
async def untrained(tmp_path: Path) -> AsyncIterator[WorkerGroup]:
    """The nano model before it learnt anything: float32 resolves its small logits to 1e-5."""
    folder = resolve_model_path("nano").path
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(tmp_path)
    group = await served(str(tmp_path))
    yield group
    await group.stop_replica()


async def play(
    replica: Recording, kind: str, temperature: float, episodes: int, how: Kind | None = None
) -> list[EpisodeResult]:
    """Random episodes of one kind, all at the same time."""
    how = how or KINDS[kind]
    parts = EpisodeParts(
        template=TEMPLATE,
        parser=HermesToolParser(),
        toolset=Toolset([ToolSpec.of(tool, timeout_seconds=30.0) for tool in how.tools]),
    )
    limits = ChatLimits(**{"max_response_length": 400, "max_model_len": 1024, "max_assistant_turns": 4, **how.limits})
    settings = RunnerSettings(
        limits=limits,
        default_agent_loop="tool_agent",
        trajectory_timeout_seconds=how.seconds,
        environment=how.environment,
    )
    runner, router = EpisodeRunner(settings, parts), LeastLoadedRouter([cast(RolloutReplica, replica)])

    async def one(number: int) -> EpisodeResult:
        chance = Random(f"{kind} {temperature} {number}")
        # The nano model calls the tool for products.
        question = f"What is {chance.randint(2, 99)} * {chance.randint(2, 99)}?{SPECIAL}"
        row = {"raw_prompt": [{"role": "user", "content": question}], "deed": how.deed, "data_source": kind}
        params = {"temperature": temperature}
        episode = Episode(uid=f"{kind} {number}", sample=number, row=row, sampling_params=params)
        lease = await router.lease(episode.trajectory_id)
        try:
            return await runner.run(episode, lease, Gate())
        finally:
            await lease.close()

    return list(await asyncio.gather(*(one(number) for number in range(episodes))))


def batch_of(results: Sequence[EpisodeResult]) -> DataProto:
    for result in results:
        result.score = 1.0
        Keeper().keep(result)
    groups = [Group(uid=result.episode.uid, row={}, results=[result], failures=[]) for result in results]
    return resolve(assemble(groups))


def check_row(data: DataProto, row: int, answers: Sequence[tuple[list[int], TokenOutput]]) -> None:
    """A row of a batch against what the replica answered: ids, mask, log-probabilities, contexts."""
    prompt, responses, mask = (data.batch.ragged(name)[row] for name in ("prompts", "responses", "response_mask"))
    sampled = torch.tensor([token for _, answer in answers for token in answer.token_ids], dtype=torch.long)
    assert torch.equal(responses[mask == 1], sampled)
    log_probs = data.batch.ragged("rollout_log_probs")[row]
    assert torch.equal(log_probs[mask == 1], torch.tensor([one for _, a in answers for one in a.log_probs or []]))
    assert not log_probs[mask == 0].any()
    ids, expected_mask = prompt.tolist() + responses.tolist(), [0] * (len(prompt) + len(responses))
    for context, answer in answers:
        assert ids[: len(context)] == context
        expected_mask[len(context) : len(context) + len(answer.token_ids)] = [1] * len(answer.token_ids)
    assert mask.tolist() == expected_mask[len(prompt) :]


def check_nothing_is_forged(output: AgentLoopOutput) -> None:
    """What was inserted between turns opens as many turns as the template does, whatever the text says."""
    start, end = (TEMPLATE.tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>"))
    assert output.prompt_ids.count(start) == 3 - (output.prompt_ids.count(end) == 1)
    for turn in output.turns:
        if turn.role != "assistant":
            inserted = output.response_ids[turn.start : turn.stop]
            assert inserted.count(start) == 2
            assert inserted.count(end) in (1, 2)  # two where the end of a cut reply had to be inserted


def check_ending(kind: str, output: AgentLoopOutput) -> None:
    """The row ends as its kind has to, within its budget."""
    turns = [turn for turn in output.turns if turn.role == "assistant"]
    length = len(output.response_ids)
    allowed = {Termination.ANSWERED, Termination.MAX_TURNS, Termination.RESPONSE_LENGTH}
    if kind == "response length":
        assert length <= 48
        if output.termination is Termination.RESPONSE_LENGTH:
            assert 48 - length <= AROUND_AN_ANSWER  # no token of a tool's answer fits
    elif kind == "deadline":
        allowed.add(Termination.DEADLINE)
        if output.termination is Termination.DEADLINE:
            assert [turn.stop for turn in turns[-1:]] in ([], [length])
    elif kind == "invalid calls":
        allowed.add(Termination.INVALID_CALLS)
        if output.termination is Termination.INVALID_CALLS:
            assert len(turns) == 2
    elif kind == "cut turns":
        assert all(turn.stop - turn.start <= 9 for turn in turns)
    elif kind == "cut tool answer":
        answers = [turn for turn in output.turns if turn.role != "assistant"]
        assert all(turn.stop - turn.start <= 7 + AROUND_AN_ANSWER for turn in answers)
    assert output.termination in allowed
    assert length <= 400
    assert len(turns) <= 4


def float32_noise(data: DataProto) -> float:
    """How far transformers' own log-probabilities of the nano model in float32 are from those in float64, at most."""
    folder = resolve_model_path("nano").path
    models = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
        for dtype in (torch.float32, torch.float64)
    ]
    worst = 0.0
    for prompt, response, mask, temperature in zip(
        *(data.batch.ragged(name).unbind() for name in ("prompts", "responses", "response_mask", "temperature")),
        strict=True,
    ):
        ids = torch.cat([prompt, response])[None]
        with torch.no_grad():
            logits = [model(input_ids=ids).logits[0, len(prompt) - 1 : -1] for model in models]
        one, other = (
            torch.log_softmax(each / temperature[:, None], -1).gather(1, response[:, None])[:, 0] for each in logits
        )
        worst = max([worst, *(one - other).abs()[mask == 1].tolist()])
    return worst


@pytest.mark.parametrize("temperature", TEMPERATURES)
async def test_rows_hold_what_was_sampled_however_they_end(temperature: float, nano: WorkerGroup) -> None:
    replica = Recording(nano.replica())
    played = await asyncio.gather(*(play(replica, kind, temperature, 6) for kind in KINDS))
    results = [result for results in played for result in results]
    assert all(result.failure is None for result in results), [result.failure for result in results]
    endings = {(result.episode.row["data_source"], result.termination) for result in results}
    assert {
        ("response length", Termination.RESPONSE_LENGTH),
        ("deadline", Termination.DEADLINE),
        ("invalid calls", Termination.INVALID_CALLS),
    } <= endings
    data = batch_of(results)
    for row, result in enumerate(results):
        (output,) = result.outputs
        check_row(data, row, replica.answers.get(result.episode.trajectory_id, []))
        check_nothing_is_forged(output)
        check_ending(result.episode.row["data_source"], output)
    assert max(len(answers) for answers in replica.answers.values()) >= 3
    # A trained model sharpens its rounding too: float32 itself does not resolve its log-probabilities to 1e-5.
    check_log_probs(nano.compute_log_prob(data), data, max(1e-5, 3 * float32_noise(data)))


def check_log_probs(computed: DataProto, data: DataProto, tolerance: float = 1e-5) -> None:
    mask = data.batch.ragged("response_mask").values == 1
    engine, server = computed.batch.ragged("log_probs").values, data.batch.ragged("rollout_log_probs").values
    torch.testing.assert_close(engine[mask], server[mask], rtol=0, atol=tolerance)


@pytest.mark.parametrize("temperature", TEMPERATURES)
async def test_server_and_engine_agree_on_every_sampled_token(temperature: float, untrained: WorkerGroup) -> None:
    replica = Recording(untrained.replica())
    results = await play(replica, "talk", temperature, 8, TALK)
    data = batch_of(results)
    for row, result in enumerate(results):
        answers = replica.answers[result.episode.trajectory_id]
        assert len(answers) >= 2
        check_row(data, row, answers)
        check_nothing_is_forged(result.outputs[0])
    check_log_probs(untrained.compute_log_prob(data), data)


@pytest.mark.parametrize("temperature", TEMPERATURES)
async def test_each_token_is_true_to_the_weights_that_sampled_it(
    temperature: float, untrained: WorkerGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An optimiser step comes when the first episode has spoken once: the others are in the middle of a reply."""
    replica, before = Recording(untrained.replica()), tmp_path / "before"
    before.mkdir()
    untrained.save_checkpoint(before)
    lesson = batch_of(await play(replica, "lesson", temperature, 4, TALK))
    lesson.batch["advantages"] = lesson.batch.ragged("rollout_log_probs")

    lessons = [lesson]

    async def learn() -> None:
        if lessons:
            untrained.update_actor(lessons.pop())
            await untrained.update_weights(1)

    monkeypatch.setattr(Talker, "between", learn)
    results = await play(replica, "talk", temperature, 6, TALK)
    data = batch_of(results)
    versions = data.batch.ragged("responses").like(torch.cat([versions_of(result.outputs[0]) for result in results]))
    after = untrained.compute_log_prob(data).batch.ragged("log_probs").values
    untrained.load_checkpoint(before)
    computed = torch.stack([untrained.compute_log_prob(data).batch.ragged("log_probs").values, after])
    mask = data.batch.ragged("response_mask").values == 1
    server, version = data.batch.ragged("rollout_log_probs").values[mask], versions.values[mask]
    theirs = computed[:, mask].gather(0, version[None])[0]
    torch.testing.assert_close(theirs, server, rtol=0, atol=1e-5)
    others = computed[:, mask].gather(0, 1 - version[None])[0]
    for one in (0, 1):
        assert float((others - server).abs()[version == one].max()) > 1e-2
    assert {tuple(dict.fromkeys(row.tolist())) for row in versions.unbind()} == {(0, 1)}


def versions_of(output: AgentLoopOutput) -> torch.Tensor:
    """The weight version of each response token."""
    versions = torch.zeros(len(output.response_ids), dtype=torch.long)
    start = 0
    for stop, version in output.version_spans:
        versions[start:stop] = version
        start = stop
    return versions
