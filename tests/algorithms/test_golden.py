"""Our functions give verl's numbers, gradients included, but for the deviations named here."""

from typing import Any

import pytest
import torch

import agentverl.algorithms
from agentverl.algorithms.aggregation import agg_loss
from agentverl.algorithms.masked import masked_var, masked_whiten
from tests.algorithms.golden_cases import answer, arguments, assert_close, cases, expected

CONTROLLERS = {"AdaptiveKLController", "FixedKLController"}
NUMERIC = [case for case in cases() if "outputs" in case and case["function"] not in CONTROLLERS]
UNSOUND = [case for case in NUMERIC if "nan" in case["outputs"].values() or case["id"].endswith("allmasked")]
SOUND = [case for case in NUMERIC if case not in UNSOUND]
REFUSED = [case for case in cases() if case.get("error", "none") != "none" and case["inputs"]]
WITHOUT_COUNTS = [case for case in cases() if "dp2_no_global" in case["id"]]


def name(case: dict[str, Any]) -> str:
    return str(case["id"])


ERRORS = {"ValueError": ValueError, "NotImplementedError": NotImplementedError}


@pytest.mark.parametrize("case", SOUND, ids=name)
def test_numbers_agree(case: dict[str, Any]) -> None:
    answers = answer(case)
    assert answers.keys() == case["outputs"].keys()
    # Whitened values at masked positions are left-overs there and zero here.
    where = arguments(case)["mask"].numpy() != 0 if case["function"] == "masked_whiten" else None
    for output, value in case["outputs"].items():
        assert_close(answers[output], expected(value), where)


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
    error = ERRORS[case["error"].split(":")[0]]
    with pytest.raises(error):
        getattr(agentverl.algorithms, case["function"])(**arguments(case))


@pytest.mark.parametrize("case", WITHOUT_COUNTS, ids=name)
def test_global_counts_are_required_where_a_mode_divides_by_them(case: dict[str, Any]) -> None:
    function = getattr(agentverl.algorithms, case["function"])
    if case["error"] == "none":
        assert function(torch.ones(2, 3), torch.ones(2, 3), **case["kwargs"]) == 12
        return
    missing = case["error"].removeprefix("ValueError: ").split(" is required")[0]
    with pytest.raises(ValueError, match=missing.removeprefix("(global) ") + " is required when dp_size > 1"):
        function(torch.ones(2, 3), torch.ones(2, 3), **case["kwargs"])


@pytest.mark.parametrize("case", [case for case in cases() if case["function"] in CONTROLLERS], ids=name)
def test_coefficients_of_the_kl_follow_the_same_path(case: dict[str, Any]) -> None:
    controller = getattr(agentverl.algorithms, case["function"])(**case["kwargs"])
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
