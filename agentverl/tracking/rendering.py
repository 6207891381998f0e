"""A journalled trajectory for the terminal: its turns, tokens, calls, rewards, versions and ending."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from agentverl.messages import text_of
from agentverl.tracking.tokens import Decode, coloured, style_of, visible

_ROLE_STYLES = {"system": "magenta", "user": "blue", "assistant": "green", "tool": "yellow"}


def trajectory(
    record: Mapping[str, Any],
    *,
    decode: Decode | None = None,
    tokens: bool = False,
    advantages: Sequence[Any] | None = None,
) -> RenderableType:
    """One trajectory as a panel.

    Without `decode` the messages stand for the tokens. `tokens` adds a table, a row a token. `advantages` holds for
    each sequence a number or one number a response token.
    """
    parts: list[RenderableType] = [_facts(record)]
    for index, output in enumerate(record["outputs"]):
        advantage = advantages[index] if advantages and index < len(advantages) else None
        parts.append(_heading(output, len(record["outputs"]), advantage))
        parts.extend(_messages(output) if decode is None else _turns(output, decode))
        if tokens:
            parts.append(token_table(output, decode, advantage))
    if record.get("error"):
        parts.append(Text(f"error: {visible(record['error'])}", style="bold red"))
    title = f"step {record['step']} \N{MIDDLE DOT} {record['split']} \N{MIDDLE DOT} {record['uid']}/{record['sample']}"
    return Panel(Group(*parts), title=title, title_align="left", border_style=_border(record))


def _border(record: Mapping[str, Any]) -> str:
    if record.get("error") or record.get("reward") is None:
        return "red"
    return "green" if record["reward"] > 0 else "yellow"


def _facts(record: Mapping[str, Any]) -> Text:
    outputs = record["outputs"]
    sampled = sum(sum(output["response_mask"]) for output in outputs)
    total = sum(len(output["response_ids"]) for output in outputs)
    reward = "no reward" if record.get("reward") is None else f"reward {record['reward']:g}"
    components = ", ".join(f"{key} {_short(value)}" for key, value in record["reward_components"].items())
    versions = sorted({version for output in outputs for _, version in output.get("version_spans", [])})
    facts = [
        f"{reward} ({components})" if components else reward,
        str(record["termination"]),
        f"{sum(output['num_turns'] for output in outputs)} turns",
        f"{total} response tokens, {sampled} sampled",
    ]
    if versions:
        facts.append(f"weights {versions[0]}" + (f" to {versions[-1]}" if len(versions) > 1 else ""))
    facts += [f"{name} {seconds:.2f} s" for name, seconds in record.get("timings", {}).items()]
    if record.get("ground_truth") is not None:
        facts.append(f"truth {_short(record['ground_truth'])}")
    return Text(visible(" \N{MIDDLE DOT} ".join(facts)), style="bold")


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, int | float) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _heading(output: Mapping[str, Any], count: int, advantage: Any) -> Text:
    facts = []
    if count > 1 or output["role"] != "main":
        facts.append(f"sequence {output['sequence_index']}, {output['role']}")
        facts.append(str(output["termination"]))
    if isinstance(advantage, int | float):
        facts.append(f"advantage {advantage:+.3f}")
    elif advantage:
        trained = [value for value, mask in zip(advantage, output["response_mask"], strict=False) if mask] or [0.0]
        low, high = f"{min(trained):+.3f}", f"{max(trained):+.3f}"
        facts.append(f"advantage {low}" if low == high else f"advantages {low} to {high}")
    if not output.get("trainable", True):
        facts.append("not trained")
    return Text(" \N{MIDDLE DOT} ".join(facts), style="dim")


def _turns(output: dict[str, Any], decode: Decode) -> Iterator[RenderableType]:
    yield Text(visible(decode(output["prompt_ids"])), style="dim")
    for role, start, stop, note in _spans(output):
        label = Text(f"\N{BLACK RIGHT-POINTING SMALL TRIANGLE} {role}", style=_ROLE_STYLES.get(role, "white"))
        yield label.append(f"  {note}" if note else "", style="dim")
        yield coloured(output, start, stop, decode)


def _spans(output: Mapping[str, Any]) -> Iterator[tuple[str, int, int, str]]:
    """(role, start, stop, note) of all response tokens: the turns, and what stands between them."""
    at = 0
    for turn in output.get("turns", []):
        if turn["start"] > at:
            yield "inserted", at, turn["start"], ""
        if turn["stop"] > turn["start"]:
            yield turn["role"], turn["start"], turn["stop"], _note(turn)
        at = max(at, turn["stop"])
    if at < len(output["response_ids"]):
        yield ("inserted" if at else "response"), at, len(output["response_ids"]), ""


def _note(turn: Mapping[str, Any]) -> str:
    facts = []
    if turn.get("tool_names"):
        facts.append("calls " + ", ".join(turn["tool_names"]))
    if turn.get("reward") is not None:
        facts.append(f"reward {turn['reward']:g}")
    if turn.get("stop_reason") not in (None, "completed"):
        facts.append(str(turn["stop_reason"]))
    if turn.get("seconds"):
        facts.append(f"{turn['seconds']:.2f} s")
    return visible(" \N{MIDDLE DOT} ".join(facts))


def _messages(output: Mapping[str, Any]) -> Iterator[RenderableType]:
    for message in output.get("messages", []):
        role = str(message.get("role", "?"))
        yield Text(f"\N{BLACK RIGHT-POINTING SMALL TRIANGLE} {visible(role)}", style=_ROLE_STYLES.get(role, "white"))
        if text := text_of(message):
            yield Text(visible(text))
        for call in message.get("tool_calls") or []:
            yield Text(visible(json.dumps(call.get("function", call), ensure_ascii=False)), style="cyan")


def token_table(output: Mapping[str, Any], decode: Decode | None, advantage: Any = None) -> Table:
    """The response of a sequence, a row a token: index, id, text, mask, log-probability, weights, advantage."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("index", "id", "text", "mask", "log-prob", "weights", "advantage"):
        table.add_column(title, justify="left" if title == "text" else "right")
    log_probs = output.get("response_logprobs")
    versions = _versions(output)
    for index, (token, mask) in enumerate(zip(output["response_ids"], output["response_mask"], strict=True)):
        log_prob = log_probs[index] if log_probs else None
        text = visible(repr(decode([token]))[1:-1]) if decode else ""
        per_token = advantage[index] if isinstance(advantage, Sequence) and index < len(advantage) else advantage
        table.add_row(
            str(index),
            str(token),
            Text(text, style=style_of(mask, log_prob)),
            str(mask),
            f"{log_prob:.4f}" if mask and log_prob is not None else "",
            str(versions[index]) if mask and index < len(versions) else "",
            f"{per_token:+.3f}" if mask and isinstance(per_token, int | float) else "",
        )
    return table


def _versions(output: Mapping[str, Any]) -> list[int]:
    versions: list[int] = []
    for stop, version in output.get("version_spans", []):
        versions += [version] * (stop - len(versions))
    return versions
