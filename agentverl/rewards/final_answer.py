"""The answer inside a text: its last number, an <answer> tag, a box, or its last line."""

import re
from decimal import Decimal
from typing import Literal

Extraction = Literal["auto", "tag", "boxed", "number", "line", "text"]
"""`auto`: a tag, else a box, else the last number where the truth is a number, else the last line."""

_NUMBER = re.compile(
    r"(?:(?<![\w.)])-)?(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d{1,9}(?!\d))?",
    re.ASCII,
)
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def last_number(text: str) -> Decimal | None:
    """The last number of a text, with its minus sign, thousands separators and decimals read; None without one.

    A minus directly after a digit, a letter or a bracket is taken as an operator: `5-3` ends in 3.
    """
    found = _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))
    return Decimal(found[-1].replace(",", "")) if found else None


def as_number(text: str) -> Decimal | None:
    """The number that a text is as a whole (`-1,776.50`), None where it is anything else."""
    match = _NUMBER.fullmatch(text.strip().replace("\N{MINUS SIGN}", "-"))
    return Decimal(match[0].replace(",", "")) if match else None


def tagged(text: str) -> str | None:
    """What stands in the last `<answer>...</answer>`."""
    found = _TAG.findall(text)
    return str(found[-1]).strip() if found else None


def boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}`, its braces balanced; None without a complete one."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    begin = start + len("\\boxed{")
    depth = 1
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position].strip()
    return None


def last_line(text: str) -> str | None:
    """The last line that holds more than white space."""
    lines = text.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), None)


def extract(text: str, how: Extraction = "auto", truth: str | None = None) -> str | None:
    """The answer of a text; `truth` tells `auto` whether a number is expected. None where there is no answer."""
    if how == "text":
        return text.strip() or None
    if how == "tag":
        return tagged(text)
    if how == "boxed":
        return boxed(text)
    if how == "line":
        return last_line(text)
    if how == "number":
        return _written(last_number(text))
    marked = tagged(text) or boxed(text)
    if marked is not None:
        return marked
    if truth is not None and as_number(truth) is not None:
        return _written(last_number(text))
    return last_line(text)


def _written(number: Decimal | None) -> str | None:
    if number is None:
        return None
    whole = number == number.to_integral_value() and number.adjusted() < 1000
    return str(int(number)) if whole else str(number)
