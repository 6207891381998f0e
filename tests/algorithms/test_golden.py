"""Our functions give verl's numbers, gradients included, but for the deviations named here.

- Advantages of GAE and whitened values are compared where nothing is masked: under the mask verl has left-overs, we 0.
- A batch without a token has loss 0 and gradient 0, and NaN under the mask counts nowhere, where verl has NaN.
- A single value is centred and not whitened, which verl refuses.
- A group of one is asked for with `singleton="raw"`; by default it gets no advantage.
- geo_mean counts rows that hold a token, verl all rows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import agentverl.algorithms
from agentverl.algorithms.aggregation import agg_loss
from agentverl.algorithms.masked import get_response_mask, masked_var, masked_whiten
from agentverl.algorithms.registry import advantage_estimators, policy_losses
from tests.algorithms.golden_cases import answer, arguments, assert_close, cases, expected, function, golden

CONTROLLERS = {"AdaptiveKLController", "FixedKLController"}
NUMERIC = [case for case in cases() if "outputs" in case and case["function"] not in CONTROLLERS]
UNSOUND = [case for case in NUMERIC if "nan" in case["outputs"].values() or case["id"].endswith("allmasked")]
SOUND = [case for case in NUMERIC if case not in UNSOUND]
WITHOUT_COUNTS = [case for case in cases() if "dp2_no_global" in case["id"]]
REFUSED = [case for case in cases() if "error" in case and case not in WITHOUT_COUNTS]
ERRORS = {"ValueError": ValueError, "NotImplementedError": NotImplementedError}


def name(case: Mapping[str, Any]) -> str:
    return str(case["id"])


def test_all_of_verls_names_are_offered() -> None:
    assert len(cases()) == 959
    of = golden()["of"]
    assert set(of["functions"]) <= {*dir(agentverl.algorithms)}
    assert set(of["advantage_estimators"]) <= {*advantage_estimators.names()}
    assert set(of["policy_losses"]) == {*policy_losses.names()}


@pytest.mark.parametrize("case", SOUND, ids=name)
def test_numbers_agree(case: dict[str, Any]) -> None:
    answers = answer(case)
    assert answers.keys() == case["outputs"].keys()
    for output, value in case["outputs"].items():
        assert_close(answers[output], _adapted(case, output, expected(value)), _compared(case, output))


def _compared(case: dict[str, Any], output: str) -> np.ndarray | None:
    """Where whitened values count; None is everywhere."""
    whitened = case["function"] == "masked_whiten"
    if whitened or (case["function"] == "compute_gae_advantage_return" and output == "advantages"):
        mask: np.ndarray = arguments(case)["mask" if whitened else "response_mask"].numpy() != 0
        return mask
    return None


def _adapted(case: dict[str, Any], output: str, theirs: Any) -> Any:
    """verl's number as it would be if geo_mean counted rows with a token only."""
    if case["function"] != "compute_policy_loss_geo_mean" or output == "metrics":
        return theirs
    if "global_batch_info" in case["kwargs"]["actor"]:
        return theirs
    rows = arguments(case)["response_mask"].sum(dim=-1) > 0
    return theirs * (len(rows) / int(rows.sum()))


@pytest.mark.parametrize("case", UNSOUND, ids=name)
def test_nan_under_the_mask_and_batches_without_a_token_give_numbers(case: dict[str, Any]) -> None:
    given = arguments(case)
    loss_mat = given.pop("loss_mat").requires_grad_()
    loss = agg_loss(loss_mat, **given)
    (gradient,) = torch.autograd.grad(loss, loss_mat)
    assert_close(loss, agg_loss(loss_mat.nan_to_num(), **given).item())
    assert gradient[given["loss_mask"] == 0].abs().sum() == 0
    if not given["loss_mask"].any():
        assert loss == 0


@pytest.mark.parametrize("case", REFUSED, ids=name)
def test_errors_agree(case: dict[str, Any]) -> None:
    if case["function"] == "masked_whiten":
        assert_close(masked_whiten(**arguments(case)), torch.zeros(3))
        return
    given = arguments(case)
    if case["function"] == "compute_rollout_correction_and_rejection_mask":
        given |= {name: torch.zeros(2, 3) for name in ("old_log_prob", "rollout_log_prob")}
        given["response_mask"] = torch.ones(2, 3)
    with pytest.raises(ERRORS[case["error"].split(":")[0]]):
        function(case)(**given)


@pytest.mark.parametrize("case", WITHOUT_COUNTS, ids=name)
def test_global_counts_are_required_where_a_mode_divides_by_them(case: dict[str, Any]) -> None:
    if case["error"] == "none":
        assert function(case)(torch.ones(2, 3), torch.ones(2, 3), **case["kwargs"]) == 12
        return
    missing = case["error"].removeprefix("ValueError: ").split(" is required")[0]
    with pytest.raises(ValueError, match=missing.removeprefix("(global) ") + " is required when dp_size > 1"):
        function(case)(torch.ones(2, 3), torch.ones(2, 3), **case["kwargs"])


@pytest.mark.parametrize("case", [case for case in cases() if case["function"] in CONTROLLERS], ids=name)
def test_coefficients_of_the_kl_follow_the_same_path(case: dict[str, Any]) -> None:
    controller = function(case)(**case["kwargs"])
    for current_kl, n_steps, value in case["outputs"].get("trace_kl_nsteps_value", {}).values():
        controller.update(current_kl, n_steps)
        assert controller.value == pytest.approx(value, rel=1e-12)
    assert controller.value == pytest.approx(case["outputs"].get("value", controller.value))


def test_a_single_value_is_centred_where_verl_refuses_to_whiten() -> None:
    values, mask = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 0, 0])
    torch.testing.assert_close(masked_whiten(values, mask), torch.zeros(3))
    torch.testing.assert_close(masked_whiten(values, mask, shift_mean=False), torch.tensor([1.0, 0.0, 0.0]))
    assert masked_whiten(values, torch.zeros(3)).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="two unmasked values"):
        masked_var(values, mask)


def test_a_response_ends_with_its_first_end_token() -> None:
    ids = torch.tensor([[5, 2, 7, 2], [5, 6, 7, 8], [2, 2, 2, 2]])
    assert get_response_mask(ids).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]
    assert get_response_mask(ids, [7, 2], torch.float32).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0]]
