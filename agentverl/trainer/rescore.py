"""`agentverl rescore`: another reward over the trajectories of a stored run."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import track
from rich.table import Table

from agentverl.data.tokenizers import text_of
from agentverl.errors import BoundaryError, RunFolderError
from agentverl.protocol.grouping import rows_by
from agentverl.rewards.base import RewardInput, RewardManager, RewardResult, numbers, outcome
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
    components: dict[str, Any] = field(default_factory=dict)
    """What the other reward reported beside its score."""
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
        return text_of(tokenizer, ids, skip_special_tokens=True)

    judged = [_judged(record, decode) for record in track(records, "reading", console=console, transient=True)]
    rescored = asyncio.run(_score_all(reward_manager(settings), records, judged))
    lines = [orjson.dumps(one, default=str) + b"\n" for one in rescored]
    (run / RESCORED_FILE).write_bytes(b"".join(lines))
    console.print(_change(rescored))
    if (components := _components(rescored)) is not None:
        console.print(components)
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
    judged = RewardInput.of(row, [AgentLoopOutput.model_validate(output) for output in record["outputs"]], decode)
    if (score := record.get("environment_score")) is not None:
        judged.environment = RewardResult(score=score)
    return judged


async def _score_all(
    manager: RewardManager, records: Sequence[dict[str, Any]], judged: Sequence[RewardInput]
) -> list[Rescored]:
    """Those of one prompt and step together, so that managers which compare them can."""
    groups = rows_by(
        (record["uid"], record["step"], record["split"], None if manager.scores_groups else number)
        for number, record in enumerate(records)
    )
    slots = asyncio.Semaphore(_AT_ONCE)
    verdicts: dict[int, RewardResult | BoundaryError] = {}

    async def judge(members: list[int]) -> None:
        given = [judged[number] for number in members]
        async with slots:
            if manager.scores_groups:
                found = await _group_outcome(manager, given)
            else:
                found = [await outcome(manager.score(given[0]))]
        verdicts.update(zip(members, found, strict=True))

    try:
        await asyncio.gather(*(judge(members) for members in groups.values()))
    finally:
        await manager.close()
    return [_rescored(record, verdicts[number]) for number, record in enumerate(records)]


async def _group_outcome(
    manager: RewardManager, group: Sequence[RewardInput]
) -> Sequence[RewardResult | BoundaryError]:
    """What a manager says of a group; its failure as that of each."""
    try:
        return await manager.score_group(group)
    except BoundaryError as error:
        return [error] * len(group)


def _rescored(record: dict[str, Any], verdict: RewardResult | BoundaryError) -> Rescored:
    base = {key: record[key] for key in ("trajectory_id", "step", "split")}
    if isinstance(verdict, BoundaryError):
        return Rescored(**base, before=record["reward"], after=None, reason=str(verdict))
    return Rescored(**base, before=record["reward"], after=verdict.score, components=verdict.components)


def _change(rescored: Sequence[Rescored]) -> Table:
    table = _table("Mean score", "split", "trajectories", "before", "after", "changed", "without score")
    for split in sorted({one.split for one in rescored}):
        members = [one for one in rescored if one.split == split]
        both = [(one.before, one.after) for one in members if one.before is not None and one.after is not None]
        changed = sum(abs(old - new) > 1e-9 for old, new in both)
        without = sum(one.after is None for one in members)
        means = (_mean([old for old, _ in both]), _mean([new for _, new in both]))
        table.add_row(split, str(len(members)), *means, str(changed), str(without))
    return table


def _components(rescored: Sequence[Rescored]) -> Table | None:
    """The means of what the other reward reports, over those that have a finite one; None where that is nothing."""
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in rescored:
        for name, value in numbers(one.components).items():
            values[one.split, name].append(value)
    table = _table("Mean of each component", "split", "component", "trajectories", "mean")
    for (split, name), listed in sorted(values.items()):
        table.add_row(split, name, str(len(listed)), _mean(listed))
    return table if values else None


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, header_style="dim")
    for column in columns:
        table.add_column(column, justify="left" if column in ("split", "component") else "right")
    return table


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f}" if values else "-"
