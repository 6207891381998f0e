"""One attempt at an episode: open, play until the deadline, check against the record, score, close."""

import asyncio
import traceback
from collections.abc import Coroutine
from functools import partial
from typing import Any

from pydantic import ValidationError

from agentverl.agent_loops.context import AgentContext
from agentverl.agent_loops.loading import AgentLoopSpec
from agentverl.deadlines import Deadline, contained, give_up
from agentverl.errors import BadInputError, Boundary, BoundaryError, InfrastructureError
from agentverl.plugins import line_of
from agentverl.rollout.client import Gate, HeldServer, TrajectoryClient
from agentverl.rollout.episode import Episode, EpisodeResult, Failure
from agentverl.rollout.judging import settle
from agentverl.rollout.parts import Workshop
from agentverl.rollout.raw_outputs import as_outputs, complete, raw_params
from agentverl.rollout.record_check import mismatch, rebuilt
from agentverl.rollout.runner_settings import RunnerSettings
from agentverl.rollout.scoring import Scoring
from agentverl.rollout.stage import Stage
from agentverl.settings.seeds import derive_seed
from agentverl.trajectory import AgentLoopOutput, Termination


class Attempt:
    """One attempt; an object of a single use."""

    def __init__(self, workshop: Workshop, episode: Episode, lease: HeldServer, gate: Gate) -> None:
        self._workshop = workshop
        self._settings: RunnerSettings = workshop.settings
        self._episode = episode
        run_seed = self._settings.run_seed
        self._run_seed = derive_seed(run_seed, "validation") if episode.validation else run_seed
        self._lease = lease
        self._gate = gate
        seed = derive_seed(self._run_seed, episode.uid, episode.sample, "stage")
        self._stage = Stage(episode.row, episode.trajectory_id, seed)
        self._result = EpisodeResult(episode=episode)
        self._is_late = False

    async def run(self) -> EpisodeResult:
        """What became of the episode.

        Raises:
            BadInputError: see `EpisodeRunner.run`.
        """
        name = self._episode.row.get("agent_name") or self._settings.default_agent_loop
        loop = self._workshop.parts.agent_loops.find(str(name))
        try:
            if await self._open() and await self._play(loop) and self._is_true():
                await Scoring(self._workshop.parts, self._settings).score(self._stage, self._result)
        finally:
            if self._stage.needs_closing:
                seconds = self._settings.seconds(self._settings.close_timeout_seconds)
                await asyncio.shield(asyncio.ensure_future(self._stage.close(seconds)))
        settle(self._result)
        return self._result

    async def _open(self) -> bool:
        settings, parts = self._settings, self._workshop.parts
        deadline = Deadline.after(settings.seconds(settings.trajectory_timeout_seconds))
        try:
            async with asyncio.timeout(settings.seconds(settings.start_timeout_seconds)):
                await contained(self._stage.open(parts.toolset, self._workshop.worlds, deadline))
        except BadInputError:
            raise
        except TimeoutError:
            return self._fail(self._stage.opening, f"did not open in {settings.start_timeout_seconds:g} seconds", True)
        except BoundaryError as error:
            return self._fail(error.boundary, str(error), isinstance(error, InfrastructureError))
        except Exception as error:  # nothing was sampled yet, so the policy cannot have caused it
            return self._fail(self._stage.opening, f"{type(error).__name__}: {error}{line_of(error)}", True)
        return True

    def _make_client(self, deadline: Deadline) -> TrajectoryClient:
        episode, settings, workshop = self._episode, self._settings, self._workshop
        identity = (self._run_seed, episode.uid, episode.sample)
        return TrajectoryClient(
            self._lease,
            gate=self._gate,
            turnstile=workshop.turnstile,
            timeout_seconds=settings.seconds(settings.generate_timeout_seconds),
            one_request_at_a_time=settings.deterministic,
            on_queued=deadline.put_off,
            defaults=partial(raw_params, settings.limits, workshop.parts.template, identity),
            most_tokens=settings.max_tokens_per_request,
        )

    def _make_context(self) -> AgentContext:
        stage, parts = self._stage, self._workshop.parts
        environment = stage.environment
        deadline = Deadline.after(self._settings.seconds(self._settings.trajectory_timeout_seconds))
        self._client = self._make_client(deadline)
        return AgentContext(
            server_manager=self._client,
            template=parts.template,
            parser=parts.parser,
            limits=self._settings.limits,
            cutter=self._workshop.cutter,
            tools=stage.tools,
            environment=environment,
            world=environment if environment is not None and environment.steps() else None,
            world_schemas=stage.world_schemas,
            state_key=stage.state_key,
            processor=parts.processor,
            models=parts.models,
            whole_config=parts.whole_config,
            trajectory_id=self._episode.trajectory_id,
            uid=self._episode.uid,
            sample=self._episode.sample,
            run_seed=self._run_seed,
            deadline=deadline,
        )

    async def _play(self, spec: AgentLoopSpec) -> bool:
        self._context = self._make_context()
        row = {key: value for key, value in self._stage.row.items() if key != "sampling_params"}
        outputs: list[AgentLoopOutput] | None = None
        try:
            outputs = await self._until_deadline(self._run_loop(spec, row))
        except BadInputError:
            raise
        except BoundaryError as error:
            self._fail(error.boundary, str(error), isinstance(error, InfrastructureError))
        except Exception as error:  # the loop's own code may raise anything
            self._fail("agent", f"{type(error).__name__}: {_reason(error)}{line_of(error)}")
            if self._result.failure is not None:
                self._result.failure.traceback = "".join(traceback.format_exception(error))
        if outputs is None:
            outputs = self._what_is_there()
        # Chats hold the context, which holds them: without the circle all of it is freed as soon as the episode ends.
        self._context.chats.clear()
        self._result.outputs = outputs
        if self._result.failure is None and not outputs:
            no_output = "returned no output; expected `return chat.outputs()`"
            late = "was cut by its deadline before anything was sampled" if self._is_late else no_output
            self._fail("agent", f"{spec.loop_class.__name__}.run {late}")
        if outputs:
            main = [output for output in outputs if output.role == "main"] or outputs
            self._result.termination = main[-1].termination
            if self._result.failure is not None and self._result.failure.traceback:
                main[-1].extra_fields["traceback"] = self._result.failure.traceback
        return self._result.failure is None and not self._result.failed

    async def _run_loop(self, spec: AgentLoopSpec, row: dict[str, Any]) -> Any:
        return await spec.make(self._context).run(dict(self._episode.sampling_params), **row)

    async def _until_deadline(self, run: Coroutine[Any, Any, Any]) -> list[AgentLoopOutput] | None:
        """What the loop returns; None when the deadline, which waits in queues put off, came first."""
        task = asyncio.ensure_future(contained(run))
        try:
            while not task.done() and not self._context.deadline.passed:
                await asyncio.wait({task}, timeout=self._context.deadline.remaining_seconds)
        finally:
            in_time = task.done()
            self._is_late = not in_time
            if not in_time:
                await give_up(task)
        return as_outputs(task.result()) if in_time else None

    def _what_is_there(self) -> list[AgentLoopOutput]:
        """What a loop that was cut short leaves: its chats, or else the record alone."""
        failure = self._result.failure
        ending = Termination.DEADLINE if failure is None else failure.termination
        for chat in self._context.chats:
            chat.stop(ending)
        outputs = [output for chat in self._context.chats for output in chat.outputs()]
        outputs = outputs or rebuilt(self._client.record, self._episode.trajectory_id)
        for output in outputs:
            output.termination = ending
        return outputs

    def _is_true(self) -> bool:
        complete(self._result.outputs, self._episode.trajectory_id, self._client.record)
        reason = mismatch(self._result.outputs, self._client.record, self._workshop.vocabulary)
        if reason is not None:
            return self._fail("agent", f"what the loop returned is not what was sampled: {reason}")
        return True

    def _fail(self, boundary: Boundary, message: str, retriable: bool = False) -> bool:
        self._result.failure = Failure(boundary=boundary, message=message, retriable=retriable)
        return False


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):  # its own text has the reason on its third line
        return "; ".join(f"{error.title}: {detail['msg']}" for detail in error.errors())
    return str(error)
