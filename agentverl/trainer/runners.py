"""The runner of a run's episodes: in this process, or one that hands them on to processes of their own."""

import logging
from contextlib import ExitStack
from functools import partial

from agentverl import blocking
from agentverl.data.chat_template import ChatTemplate
from agentverl.data.tool_parsers import load_tool_parser
from agentverl.loop_thread import LoopThread
from agentverl.rewards.base import RewardManager
from agentverl.rollout.judging import Judging
from agentverl.rollout.parts import EpisodeParts
from agentverl.rollout.player import Player
from agentverl.rollout.rollouts import Runner
from agentverl.rollout.runner import EpisodeRunner
from agentverl.rollout.runner_pool import RunnerPool
from agentverl.rollout.runner_worker import RunnerWorker
from agentverl.settings.root import Settings
from agentverl.single_controller.launcher import Places
from agentverl.single_controller.worker import WorkerClass
from agentverl.single_controller.worker_errors import WorkerError
from agentverl.single_controller.worker_group import WorkerGroup
from agentverl.tools.toolset import Toolset
from agentverl.trainer.preparation import Prepared, agent_loops_of, reward_manager, template_of, toolset_of
from agentverl.trainer.rollout_settings import runner_settings

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 30.0


def open_runner(
    settings: Settings, prepared: Prepared, places: Places, thread: LoopThread, closing: ExitStack
) -> tuple[Runner, Judging | None]:
    """The runner, and what judges the trajectories that it leaves to be judged; `closing` ends both."""
    if places.in_one_process:
        runner = _runner(settings, prepared.template, prepared.toolset, prepared.reward)
        thread.run(runner.setup())
        closing.callback(lambda: thread.run(runner.teardown(), _CLOSE_SECONDS))
        return runner, runner.defer_judging()
    made = WorkerClass(RunnerWorker, (partial(make_runner, settings),))
    workers = places.start_beside("runner", made, settings.actor_rollout_ref.rollout.agent.num_workers)
    closing.callback(workers.close)
    closing.callback(lambda: _stop(workers, thread))
    thread.run(workers.start_player())
    players = [workers.resident(rank, "player") for rank in range(workers.world_size)]
    pool = RunnerPool(players, partial(_again, workers))
    closing.callback(lambda: thread.run(prepared.reward.close(), _CLOSE_SECONDS))
    closing.callback(lambda: thread.run(pool.close(), _CLOSE_SECONDS))
    thread.run(pool.open())
    # A prompt's trajectories come from several processes, and meet only here.
    grouped = prepared.reward.scores_groups
    return pool, Judging(prepared.reward, runner_settings(settings)) if grouped else None


def make_runner(settings: Settings) -> EpisodeRunner:
    """The runner of a process of its own, with plugins found there."""
    _, _, template = template_of(settings.actor_rollout_ref.model, settings.data.apply_chat_template_kwargs)
    reward = reward_manager(settings)
    runner = _runner(settings, template, toolset_of(settings), reward)
    if reward.scores_groups:
        runner.defer_judging()
    return runner


def _runner(settings: Settings, template: ChatTemplate, toolset: Toolset, reward: RewardManager) -> EpisodeRunner:
    parts = EpisodeParts(
        template=template,
        parser=load_tool_parser(settings.actor_rollout_ref.rollout.multi_turn.format),
        agent_loops=agent_loops_of(settings),
        toolset=toolset,
        reward=reward,
        whole_config=settings.model_dump(mode="json"),
    )
    return EpisodeRunner(runner_settings(settings), parts)


async def _again(workers: WorkerGroup, rank: int) -> Player:
    """The player of a rank whose process is lost, in a new one."""
    await blocking.call(workers.restart, rank)
    await workers.run_async(rank, "start_player", ((), {}))
    player: Player = workers.resident(rank, "player")
    return player


def _stop(workers: WorkerGroup, thread: LoopThread) -> None:
    try:
        thread.run(workers.stop_player(), _CLOSE_SECONDS)
    except WorkerError as error:  # one that is lost was reported when it was
        logger.info("runners did not stop by themselves: %s", error)
