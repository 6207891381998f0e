"""`agentverl show RUN`: the trajectories of a run in the terminal, also of one that runs or crashed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import yaml
from rich.console import Console
from rich.table import Table

from agentverl.data.model_folder import resolve_model_path
from agentverl.data.tokenizers import load_tokenizer, text_of
from agentverl.errors import BadInputError, RunFolderError
from agentverl.tracking import rendering
from agentverl.tracking.journal import read_journal
from agentverl.tracking.tokens import Decode, legend

Pick = Literal["first", "best", "worst", "failed"]


def show(
    run: Path,
    *,
    step: int | None = None,
    uid: str | None = None,
    pick: Pick = "first",
    limit: int = 4,
    tokens: bool = False,
    console: Console | None = None,
) -> None:
    """Print a summary of a run's journal and some of its trajectories.

    Without `step` and `uid` those of the newest step are shown; `pick` orders them: as written, best or worst reward
    first, or only those that failed.

    Raises:
        RunFolderError: the folder is no run, or has nothing of the kind asked for.
    """
    console = console or Console()
    journal = journal_of(run)
    chosen, steps = _chosen(journal, step, uid)
    if not chosen:
        raise RunFolderError(_nothing(run, step, uid, steps))
    console.print(summary_table(run, steps, chosen))
    decode, reason = decoder_of(run)
    console.print(legend() if decode else f"[dim]messages instead of tokens: {reason}[/dim]")
    advantages = _advantages(journal, {record["step"] for record in chosen})
    shown = list(islice(_ordered(chosen, pick), limit))
    if not shown:
        console.print(f"none of these {len(chosen)} trajectories {'failed' if pick == 'failed' else 'has a reward'}")
    for record in shown:
        found = advantages.get(record["trajectory_id"]) if record["split"] == "train" else None
        console.print(rendering.trajectory(record, decode=decode, tokens=tokens, advantages=found))


def journal_of(run: Path) -> Path:
    """The journal's folder of a run.

    Raises:
        RunFolderError: it is no run's folder; names the runs inside it, where it is a folder of runs.
    """
    if not run.is_dir():
        raise RunFolderError(f"{run} is not a folder; expected a run's folder such as outputs/quickstart")
    journal = run / "journal"
    if journal.is_dir():
        return journal
    runs = sorted(path.parent.name for path in run.glob("*/journal"))
    hint = f"; it holds the runs {', '.join(runs)}" if runs else "; a run's folder has config.yaml and journal/"
    raise RunFolderError(f"{run} is not a run's folder{hint}")


def decoder_of(run: Path) -> tuple[Decode | None, str]:
    """How to decode a run's tokens, from the model that its `config.yaml` names; else None and the reason."""
    try:
        config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        tokenizer = load_tokenizer(resolve_model_path(config["actor_rollout_ref"]["model"]["path"]).path)
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        return None, f"config.yaml names no model ({type(error).__name__}: {error})"
    except BadInputError as error:
        return None, str(error)
    return partial(text_of, tokenizer), ""


def summary_table(run: Path, steps: Sequence[int], chosen: Sequence[Mapping[str, Any]]) -> Table:
    """How the chosen trajectories ended, a row a split and ending."""
    title = f"{run} \N{MIDDLE DOT} steps {steps[0]} to {steps[-1]}"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in ("step", "split", "ended", "trajectories", "mean reward"):
        table.add_column(column, justify="right" if column in ("step", "trajectories", "mean reward") else "left")
    counts = Counter((record["step"], record["split"], record["termination"]) for record in chosen)
    for (step, split, ended), count in sorted(counts.items())[-20:]:
        rewards = [
            record["reward"]
            for record in chosen
            if (record["step"], record["split"], record["termination"]) == (step, split, ended)
            and record["reward"] is not None
        ]
        mean = f"{sum(rewards) / len(rewards):.3f}" if rewards else "-"
        table.add_row(str(step), split, ended, str(count), mean)
    return table


def _chosen(journal: Path, step: int | None, uid: str | None) -> tuple[list[dict[str, Any]], list[int]]:
    """The trajectories asked for, and all steps of the journal; of the newest step when none is asked for."""
    chosen: list[dict[str, Any]] = []
    steps: set[int] = set()
    for record in read_journal(journal, uid=uid):
        steps.add(record["step"])
        if step is None and uid is None and chosen and record["step"] > chosen[0]["step"]:
            chosen.clear()
        wanted = record["step"] == step if step is not None else uid is not None or record["step"] == max(steps)
        if wanted:
            chosen.append(record)
    return chosen, sorted(steps)


def _ordered(records: Sequence[dict[str, Any]], pick: Pick) -> Iterator[dict[str, Any]]:
    if pick == "failed":
        return (record for record in records if record["reward"] is None or record.get("error"))
    if pick == "first":
        return iter(records)
    scored = [record for record in records if record["reward"] is not None]
    return iter(sorted(scored, key=lambda record: record["reward"], reverse=pick == "best"))


def _advantages(journal: Path, steps: set[int]) -> dict[str, Sequence[Any]]:
    found: dict[str, Sequence[Any]] = {}
    for record in read_journal(journal, "step"):
        if record["step"] in steps:
            found.update(record["advantages"])
    return found


def _nothing(run: Path, step: int | None, uid: str | None, steps: Sequence[int]) -> str:
    asked = " and ".join([f"step {step}"] * (step is not None) + [f"uid {uid!r}"] * (uid is not None))
    if not asked:
        return f"{run} has no trajectory in its journal yet"
    there = f"; it has steps {steps[0]} to {steps[-1]}" if steps else ""
    return f"{run} has no trajectory of {asked}{there}"
