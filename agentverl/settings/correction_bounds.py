"""How the bounds of a rollout correction are written: `2.0`, `0.5_2.0`, and lists of those."""

import math
from dataclasses import dataclass

from agentverl.errors import BadInputError

IS_LEVELS = ("sequence", "token")
RS_OPTIONS = (
    "seq_max_k2",
    "seq_max_k3",
    "seq_mean_k1",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_sum_k1",
    "seq_sum_k2",
    "seq_sum_k3",
    "token_k1",
    "token_k2",
    "token_k3",
)
"""What rejection may measure: level, `_`, estimator of the divergence."""

Spec = str | float


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a value must lie within, both ends included."""

    lower: float | None
    upper: float


def weight_bounds(spec: Spec) -> Bounds:
    """`rollout_is_threshold`: a number (weights above it are cut to it), or `lower_upper` (those outside become 0).

    Raises:
        BadInputError: no number, not positive, or in the wrong order.
    """
    name = "rollout_is_threshold"
    lower, separator, upper = _text(spec, name).rpartition("_")
    bounds = Bounds(_number(lower, spec, name) if separator else None, _number(upper, spec, name))
    if bounds.upper <= 0:
        raise BadInputError(f"{name} upper bound must be positive, got {bounds.upper}")
    if bounds.lower is not None and bounds.lower <= 0:
        raise BadInputError(f"{name} lower bound must be positive, got {bounds.lower}")
    if bounds.lower is not None and bounds.lower > bounds.upper:
        raise BadInputError(f"{name} lower bound must be <= upper bound, got {spec}")
    return bounds


def rejection_bounds(rollout_rs: str, threshold: Spec | None) -> dict[str, Bounds]:
    """The bounds of each option in `rollout_rs`, a list with commas, from `rollout_rs_threshold`, one or as many.

    Options of k1 bound a ratio: `lower_upper`, or `upper` alone, which means 1 / upper to upper; their bounds come back
    as logarithms. Those of k2 and k3 have an upper bound only.

    Raises:
        BadInputError: an unknown option, another number of thresholds, no number, not positive, or in the wrong order.
    """
    options = list(dict.fromkeys(part.strip() for part in rollout_rs.split(",") if part.strip()))
    if not options:
        raise BadInputError(f"rollout_rs must name at least one of {', '.join(RS_OPTIONS)}; got {rollout_rs!r}")
    for option in options:
        if option not in RS_OPTIONS:
            raise BadInputError(f"Invalid rollout_rs option: {option}. Must be one of {', '.join(RS_OPTIONS)}")
    if threshold is None:
        raise BadInputError(
            f"rollout_rs={rollout_rs} needs rollout_rs_threshold, such as 0.5_2.0 for k1, 0.1 for others"
        )
    name = "rollout_rs_threshold"
    specs = [part.strip() for part in _text(threshold, name).split(",") if part.strip()]
    if len(specs) not in (1, len(options)):
        raise BadInputError(
            f"{name} expects one threshold for all options or {len(options)}, one for each; got {threshold}"
        )
    specs = specs * len(options) if len(specs) == 1 else specs
    return {option: _option_bounds(option, spec) for option, spec in zip(options, specs, strict=True)}


def _option_bounds(option: str, spec: str) -> Bounds:
    name = f"rollout_rs_threshold of {option}"
    lower, separator, upper_text = spec.rpartition("_")
    upper = _number(upper_text, spec, name)
    is_ratio = option.endswith("k1")
    if separator and not is_ratio:
        raise BadInputError(f"{name} must be a single upper bound without '_', got {spec!r}")
    if upper <= 0:
        raise BadInputError(f"{name} must be positive, got {spec!r}")
    if not is_ratio:
        return Bounds(None, upper)
    lowest = _number(lower, spec, name) if separator else 1 / upper
    if lowest <= 0:
        raise BadInputError(f"{name} must be positive, got {spec!r}")
    if lowest > upper:
        raise BadInputError(f"{name} keeps nothing: its lower bound {lowest:g} is above its upper bound {upper:g}")
    return Bounds(math.log(lowest), math.log(upper))


def _text(spec: Spec, name: str) -> str:
    if isinstance(spec, bool) or not isinstance(spec, str | int | float) or not str(spec).strip():
        raise BadInputError(f"{name} must be a number or text such as 0.5_2.0, got {spec!r}")
    return str(spec).strip()


def _number(text: str, spec: Spec, name: str) -> float:
    try:
        number = float(text) if "_" not in text else math.nan
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadInputError(f"Invalid {name} {spec!r}: expected a number such as 2.0, or lower_upper such as 0.5_2.0")
    return number
