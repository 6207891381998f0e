"""The runner of a run's episodes: in this process, or one that hands them on to processes of their own."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from agentverl import blocking
from agentverl.data.chat_template import ChatTemplate
from agentverl.data.tool_parsers import ToolParser, load_tool_parser
from agentverl.loop_thread import LoopThread
from agentverl.rewards.base import RewardManager
from agentverl.rollout.group_player import Runner
from agentverl.rollout.judging import Judge
from agentverl.rollout.keeper import Keeper
from agentverl.rollout.parts import EpisodeParts
from agentverl.rollout.player import Player
from agentverl.rollout.runner import EpisodeRunner
from agentverl.rollout.runner_pool import RunnerPool
from agentverl.rollout.runner_worker import RunnerWorker
from agentverl.rollout.token_classes import TokenClasses
from agentverl.settings.root import Settings
from agentverl.single_controller.launcher import Places
from agentverl.single_controller.worker import WorkerClass
from agentverl.single_controller.worker_group import WorkerGroup
from agentverl.tools.toolset import Toolset
from agentverl.tracking.journal import Journal
from agentverl.trainer.preparation import Prepared, agent_loops_of, reward_manager, template_of, toolset_of
from agentverl.trainer.rollout_settings import runner_settings

_CLOSE_SECONDS = 30.0


def open_runner(
    settings: Settings, prepared: Prepared, places: Places, thread: LoopThread, journal: Journal, closing: ExitStack
) -> tuple[Runner, Judge | None]:
    """The runner, and what judges the trajectories that it leaves to be judged; `closing` ends both."""
    if places.in_one_process:
        runner = _runner(settings, prepared.template, prepared.toolset, prepared.reward, journal)
        thread.run(runner.setup())
        closing.callback(lambda: thread.end(runner.teardown(), "the runner of episodes", _CLOSE_SECONDS))
        return runner, runner.defer_judging()
    made = WorkerClass(RunnerWorker, (partial(make_runner, settings, journal.folder.absolute()), places.column_store()))
    workers = places.start_beside("runner", made, settings.actor_rollout_ref.rollout.agent.num_workers)
    closing.callback(workers.close)
    closing.callback(lambda: thread.end(workers.end_on_all("stop_player"), "the runners' processes", _CLOSE_SECONDS))
    thread.run(workers.start_player())
    players = [workers.resident(rank, "player") for rank in range(workers.world_size)]
    pool = RunnerPool(players, _Processes(workers))
    closing.callback(lambda: thread.end(prepared.reward.close(), "the reward manager", _CLOSE_SECONDS))
    closing.callback(lambda: thread.end(pool.close(), "the pool of runners", _CLOSE_SECONDS))
    thread.run(pool.open())
    return pool, pool


def make_runner(settings: Settings, journal: Path, rank: int) -> EpisodeRunner:
    """The runner of a process of its own, with plugins found there; it writes its trajectories into the journal."""
    _, _, template = template_of(settings.actor_rollout_ref.model, settings.data.apply_chat_template_kwargs)
    reward = reward_manager(settings)
    runner = _runner(settings, template, toolset_of(settings), reward, Journal(journal, f"runner-rank{rank}"))
    if reward.scores_groups:
        runner.defer_judging()
    return runner


def _runner(
    settings: Settings, template: ChatTemplate, toolset: Toolset, reward: RewardManager, journal: Journal
) -> EpisodeRunner:
    parser = load_tool_parser(settings.actor_rollout_ref.rollout.multi_turn.format)
    parts = EpisodeParts(
        template=template,
        parser=parser,
        agent_loops=agent_loops_of(settings),
        toolset=toolset,
        reward=reward,
        keeper=_keeper(settings, template.tokenizer, parser, journal),
        whole_config=settings.model_dump(mode="json"),
    )
    return EpisodeRunner(runner_settings(settings), parts)


class _Processes:
    """Those of the ranks of a worker group."""

    def __init__(self, workers: WorkerGroup) -> None:
        self._workers = workers

    async def replace(self, rank: int) -> Player:
        await blocking.call(self._workers.restart, rank)
        await self._workers.run_async(rank, "start_player", ((), {}))
        player: Player = self._workers.resident(rank, "player")
        return player

    async def end(self, rank: int) -> None:
        await blocking.call(self._workers.end_rank, rank)


def _keeper(settings: Settings, tokenizer: Any, parser: ToolParser, journal: Journal) -> Keeper:
    actor = settings.actor_rollout_ref.actor
    sorts_tokens = actor.calculate_entropy or actor.entropy_coeff != 0
    return Keeper(
        journal=journal,
        tokenizer=tokenizer,
        keeps_texts=settings.trainer.rollout_data_dir is not None,
        classes=TokenClasses(tokenizer, parser) if sorts_tokens else None,
    )
