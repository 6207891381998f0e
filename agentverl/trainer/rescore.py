"""`agentverl rescore`: another reward over the trajectories of a stored run."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import track
from rich.table import Table

from agentverl.errors import BoundaryError, RunFolderError
from agentverl.rewards.base import RewardInput, RewardManager
from agentverl.settings.root import Settings
from agentverl.tracking.journal import read_journal
from agentverl.trainer.preparation import reward_manager, template_of
from agentverl.trajectory import AgentLoopOutput

RESCORED_FILE = "rescored.jsonl"
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Rescored:
    """One trajectory under both rewards; a score is None where there was none to be had."""

    trajectory_id: str
    step: int
    split: str
    before: float | None
    after: float | None
    reason: str = ""


def rescore(run: Path, settings: Settings, console: Console | None = None) -> list[Rescored]:
    """Score every trajectory of a run's journal again, write `rescored.jsonl` into its folder, print the change.

    Raises:
        RunFolderError: the folder holds no trajectory.
        PluginError, SettingsError: the reward is not found.
    """
    console = console or Console()
    records = list(read_journal(run / "journal"))
    if not records:
        raise RunFolderError(f"{run} has no trajectory in its journal")
    _, tokenizer, _ = template_of(settings.actor_rollout_ref.model, settings.data.apply_chat_template_kwargs)

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    judged = [_judged(record, decode) for record in track(records, "reading", console=console, transient=True)]
    rescored = asyncio.run(_score_all(reward_manager(settings), records, judged))
    lines = [orjson.dumps(one) + b"\n" for one in rescored]
    (run / RESCORED_FILE).write_bytes(b"".join(lines))
    console.print(_change(rescored))
    if reasons := sorted({one.reason for one in rescored if one.reason}):
        console.print(f"Without a score, for instance: {reasons[0]}", soft_wrap=True)
    console.print(f"Each trajectory: {run / RESCORED_FILE}")
    return rescored


def _judged(record: dict[str, Any], decode: Any) -> RewardInput:
    row = {
        "data_source": record["data_source"],
        "reward_model": {"ground_truth": record["ground_truth"]},
        "extra_info": record["extra_info"],
    }
    return RewardInput.of(row, [AgentLoopOutput.model_validate(output) for output in record["outputs"]], decode)


async def _score_all(
    manager: RewardManager, records: Sequence[dict[str, Any]], judged: Sequence[RewardInput]
) -> list[Rescored]:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(record: dict[str, Any], given: RewardInput) -> Rescored:
        after, reason = None, ""
        async with slots:
            try:
                after = (await manager.score(given)).score
            except BoundaryError as error:
                reason = str(error)
        return Rescored(record["trajectory_id"], record["step"], record["split"], record["reward"], after, reason)

    try:
        return await asyncio.gather(*(one(record, given) for record, given in zip(records, judged, strict=True)))
    finally:
        await manager.close()


def _change(rescored: Sequence[Rescored]) -> Table:
    table = Table(title="Mean score", title_justify="left", box=None, header_style="dim")
    for column in ("split", "trajectories", "before", "after", "changed", "without score"):
        table.add_column(column, justify="left" if column == "split" else "right")
    for split in sorted({one.split for one in rescored}):
        members = [one for one in rescored if one.split == split]
        both = [(one.before, one.after) for one in members if one.before is not None and one.after is not None]
        before = sum(pair[0] for pair in both) / len(both) if both else 0.0
        after = sum(pair[1] for pair in both) / len(both) if both else 0.0
        changed = sum(abs(old - new) > 1e-9 for old, new in both)
        without = sum(one.after is None for one in members)
        table.add_row(split, str(len(members)), f"{before:.3f}", f"{after:.3f}", str(changed), str(without))
    return table
