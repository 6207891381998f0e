"""Call an advantage estimator with those of a batch's columns that it asks for."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from agentverl.algorithms.registry import advantage_estimators
from agentverl.errors import BadInputError


def estimate_advantages(adv_estimator: str, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Advantages and returns (B, T) by the estimator of that name.

    Args:
        inputs: all that may be asked for, under verl's names of the arguments: token_level_rewards, response_mask,
            index, config, gamma, lam, norm_adv_by_std_in_grpo, ...

    Raises:
        BadInputError: an unknown name, an argument without a default that is not among the inputs, or a result that is
            not two tensors of the rewards' shape.
    """
    function = advantage_estimators.get(adv_estimator)
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        and name not in inputs
    ]
    if missing:
        raise BadInputError(
            f"advantage estimator {adv_estimator!r} needs {', '.join(missing)}, which this run does not provide"
        )
    given = {name: value for name, value in inputs.items() if takes_all or name in parameters}
    result = function(**given)
    shape = inputs["token_level_rewards"].shape
    if not (
        isinstance(result, tuple)
        and len(result) == 2
        and all(isinstance(one, Tensor) and one.shape == shape for one in result)
    ):
        raise BadInputError(
            f"advantage estimator {adv_estimator!r} must return advantages and returns of shape {tuple(shape)}"
        )
    return result
