"""959 cases that verl 0.9.1 answered on CPU in float32: how they are read, asked and compared.

`data/golden.json` lists them, `data/golden.npz` holds their arrays, those of one shape and type in one stack. A case
has `id`, `function`, `kwargs`, `inputs` (argument to array) and `outputs` (numbers, arrays or metrics), or an `error`.
"""

import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import agentverl.algorithms

DATA = Path(__file__).parent / "data"
ACTOR: dict[str, Any] = {
    "clip_ratio": 0.2,
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
    "clip_ratio_c": 3.0,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
    "global_batch_info": {},
}
POLICY_LOSS: dict[str, Any] = {
    "clip_cov_ratio": 2e-4,
    "clip_cov_lb": 1.0,
    "clip_cov_ub": 5.0,
    "kl_cov_ratio": 2e-4,
    "ppo_kl_coef": 0.1,
    "dro_beta": None,
}
GDPO = ("gdpo_reward_keys", "gdpo_reward_weights")
WITHOUT_CONFIG = {"compute_policy_loss_reinforce"}
TENSORS_IN_KWARGS = {"loss_mat", "loss_mask", "values", "mask"}
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
def golden() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DATA / "golden.json").read_text())
    return loaded


@cache
def stacks() -> dict[str, np.ndarray]:
    with np.load(DATA / "golden.npz") as file:
        return dict(file)


def cases() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = golden()["cases"]
    return found


def function(case: Mapping[str, Any]) -> Callable[..., Any]:
    """Ours of the same name."""
    found: Callable[..., Any] = getattr(agentverl.algorithms, case["function"])
    return found


def array(reference: str) -> np.ndarray:
    stack, _, number = reference.rpartition("/")
    chosen: np.ndarray = stacks()[stack][int(number)]
    return chosen


def arguments(case: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs as tensors (those that a gradient is known of require one) and the keywords."""
    wanted = {GRADIENTS[name] for name in case.get("outputs", {}) if name in GRADIENTS}
    given: dict[str, Any] = {}
    for name, reference in case["inputs"].items():
        values = array(reference)
        given[name] = values if values.dtype.kind == "U" else torch.from_numpy(values.copy())
        if name in wanted:
            given[name].requires_grad_()
    for keyword, value in case["kwargs"].items():
        given[keyword] = as_tensor(value) if keyword in TENSORS_IN_KWARGS else value
    if case["function"].startswith("compute_policy_loss") and case["function"] not in WITHOUT_CONFIG:
        policy_loss = POLICY_LOSS | given.pop("policy_loss")
        if "rollout_correction" in policy_loss:
            policy_loss["rollout_correction"] = ItemsAsAttributes(policy_loss["rollout_correction"])
        given["config"] = ItemsAsAttributes(
            ACTOR | given.pop("actor") | {"policy_loss": ItemsAsAttributes(policy_loss)}
        )
    elif "gdpo_reward_keys" in given:
        given["config"] = ItemsAsAttributes({name: given.pop(name) for name in GDPO})
        prompts = torch.zeros(len(given["index"]), given.pop("prompt_length"))
        given["batch"] = {"prompts": prompts, "attention_mask": given.pop("attention_mask")}
        given["non_tensor_batch"] = {name: given.pop(name).numpy() for name in given["config"].gdpo_reward_keys}
    elif "config" in given:
        given["config"] = ItemsAsAttributes(given["config"])
    if "index" in given:
        given["singleton"] = "raw"
    return given


def as_tensor(values: list[Any]) -> Tensor:
    """A matrix or vector written into the case itself, "nan" standing for NaN."""
    return torch.from_numpy(np.array(values, dtype=object).astype(np.float32))


def answer(case: Mapping[str, Any]) -> dict[str, Any]:
    """What our function of the case's name returns, under the names of its outputs, gradients included."""
    given = arguments(case)
    torch.manual_seed(0)
    returned = function(case)(**given)
    known = [one for one in (returned if isinstance(returned, tuple) else (returned,)) if one is not None]
    names = [name for name in case["outputs"] if name not in GRADIENTS]
    answers = dict(zip(names, known, strict=True))
    for name, argument in GRADIENTS.items():
        if name in case["outputs"]:
            (answers[name],) = torch.autograd.grad(answers[names[0]].sum(), given[argument])
    return answers


def expected(value: Any) -> Any:
    """The stored output: an array, a dict of metrics or a number."""
    if isinstance(value, str) and value.startswith("array:"):
        return array(value.removeprefix("array:"))
    if isinstance(value, dict):
        names = golden()["metric_names"][value["names"]]
        return {name: float(number) for name, number in zip(names, value["values"], strict=True)}
    return float(value)


def assert_close(ours: Any, theirs: Any, where: np.ndarray | None = None) -> None:
    """Equal within rtol 1e-5 and atol 1e-6; `where` limits the comparison."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert math.isclose(ours[name], value, rel_tol=1e-5, abs_tol=1e-6), (name, ours[name], value)
        return
    found = ours.detach().numpy() if isinstance(ours, Tensor) else np.asarray(ours)
    chosen = np.ones(found.shape, dtype=bool) if where is None else where
    np.testing.assert_allclose(found[chosen], np.asarray(theirs)[chosen], rtol=1e-5, atol=1e-6)
