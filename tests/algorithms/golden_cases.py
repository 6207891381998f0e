"""Cases that verl 0.9.1 answered on CPU in float32: how they are read, asked and compared."""

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import agentverl.algorithms

DATA = Path(__file__).parent / "data"
ACTOR: dict[str, Any] = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
GRADIENTS = {
    "grad_log_prob": "log_prob",
    "grad_vpreds": "vpreds",
    "grad_loss_mat": "loss_mat",
    "grad_logprob": "logprob",
}


class ItemsAsAttributes(dict[str, Any]):
    """A configuration with items, attributes and `.get`."""

    __getattr__ = dict.__getitem__


@cache
def arrays() -> dict[str, np.ndarray]:
    with np.load(DATA / "golden.npz") as file:
        return dict(file)


def cases() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((DATA / "golden.json").read_text())
    return loaded


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    """The inputs as tensors (those that a gradient is known of require one) and the keywords."""
    wanted = {GRADIENTS[name] for name in case.get("outputs", {}) if name in GRADIENTS}
    given: dict[str, Any] = {}
    for name, key in case["inputs"].items():
        array = arrays()[key]
        given[name] = array if array.dtype.kind == "U" else torch.from_numpy(array.copy())
        if name in wanted:
            given[name].requires_grad_()
    keywords: dict[str, Any] = dict(case["kwargs"])
    for keyword, value in keywords.items():
        keywords[keyword] = as_tensor(value) if isinstance(value, list) else value
    if case["function"].startswith("compute_policy_loss"):
        policy_loss = ItemsAsAttributes(keywords.pop("policy_loss"))
        keywords["config"] = ItemsAsAttributes(ACTOR | keywords.pop("actor") | {"policy_loss": policy_loss})
    return given | keywords


def as_tensor(values: list[Any]) -> Tensor:
    """A matrix or vector written into the case itself, "nan" standing for NaN."""
    return torch.from_numpy(np.array(values, dtype=object).astype(np.float32))


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """What our function of the case's name returns, under the names of its outputs, gradients included."""
    given = arguments(case)
    function: Callable[..., Any] = getattr(agentverl.algorithms, case["function"])
    if case["function"] == "compute_grpo_outcome_advantage" or "vectorized" in case["function"]:
        given["singleton"] = "raw"
    returned = function(**given)
    names = [name for name in case["outputs"] if name not in GRADIENTS]
    answers = dict(zip(names, returned if isinstance(returned, tuple) else (returned,), strict=True))
    for name, argument in GRADIENTS.items():
        if name in case["outputs"]:
            (answers[name],) = torch.autograd.grad(answers[names[0]].sum(), given[argument])
    return answers


def expected(value: Any) -> Any:
    """The stored output: an array, a dict of metrics or a number."""
    if isinstance(value, str) and value.startswith("npz:"):
        return arrays()[value.removeprefix("npz:")]
    if isinstance(value, dict):
        return {name: expected(inner) for name, inner in value.items()}
    return float(value)


def assert_close(ours: Any, theirs: Any, where: np.ndarray | None = None) -> None:
    """Equal within rtol 1e-5 and atol 1e-6; `where` limits the comparison."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert math.isclose(ours[name], value, rel_tol=1e-5, abs_tol=1e-6), name
        return
    array = ours.detach().numpy() if isinstance(ours, Tensor) else np.asarray(ours)
    chosen = np.ones(array.shape, dtype=bool) if where is None else where
    np.testing.assert_allclose(array[chosen], np.asarray(theirs)[chosen], rtol=1e-5, atol=1e-6)
