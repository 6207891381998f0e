"""Advantage estimators and policy losses by name."""

import difflib
import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from agentverl import plugins
from agentverl.errors import BadInputError

Function = TypeVar("Function", bound=Callable[..., Any])


class Registry:
    """Functions of one kind: those in the box, imported when asked for, and those that users add.

    Args:
        kind: what the functions are, for messages and as the kind of plugin.
        built_in: where each of our own is, as module:function inside `agentverl.algorithms`.
    """

    def __init__(self, kind: str, built_in: dict[str, str]) -> None:
        self._kind = kind
        self._built_in = built_in
        self._added: dict[str, Callable[..., Any]] = {}

    def register(self, name: Any) -> Callable[[Function], Function]:
        """A decorator that gives a function a name; defining the same function again replaces it.

        Raises:
            BadInputError: the name belongs to another function.
        """
        key = _text(name)

        def decorate(function: Function) -> Function:
            known = self._added.get(key)
            if key in self._built_in or (known is not None and _origin(known) != _origin(function)):
                raise BadInputError(
                    f"{self._kind} {key!r} is already registered for another function; choose a new name"
                )
            self._added[key] = function
            return function

        return decorate

    def get(self, name: Any) -> Callable[..., Any]:
        """The function of a name, or the one that `package.module:Attribute` or `file.py:Attribute` points to.

        Raises:
            BadInputError: nothing has that name; says which is nearest.
        """
        key = _text(name)
        if key in self._added:
            return self._added[key]
        if key in self._built_in:
            module, _, attribute = self._built_in[key].partition(":")
            function: Callable[..., Any] = getattr(importlib.import_module(f"agentverl.algorithms.{module}"), attribute)
            return function
        if ":" in key:
            found: Callable[..., Any] = plugins.find(self._kind.replace(" ", "_"), key)
            return found
        nearest = difflib.get_close_matches(key, self.names(), n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
        raise BadInputError(
            f"Unknown {self._kind} {key!r}{hint} Known: {', '.join(self.names())}. "
            "Also accepted: package.module:Attribute or file.py:Attribute"
        )

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted({*self._built_in, *self._added})


def _text(name: Any) -> str:
    return str(getattr(name, "value", name))


def _origin(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__


advantage_estimators = Registry(
    "advantage estimator",
    {
        "gae": "return_advantages:compute_gae_advantage_return",
        "gdpo": "batch_advantages:compute_gdpo_outcome_advantage",
        "gigpo": "turn_advantages:compute_gigpo_advantage",
        "gpg": "batch_advantages:compute_gpg_outcome_advantage",
        "grpo": "group_advantages:compute_grpo_outcome_advantage",
        "grpo_passk": "group_advantages:compute_grpo_passk_outcome_advantage",
        "grpo_vectorized": "group_advantages:compute_grpo_outcome_advantage",
        "opo": "group_advantages:compute_opo_outcome_advantage",
        "optimal_token_baseline": "token_baselines:compute_optimal_token_baseline_advantage",
        "reinforce_plus_plus": "return_advantages:compute_reinforce_plus_plus_outcome_advantage",
        "reinforce_plus_plus_baseline": ("batch_advantages:compute_reinforce_plus_plus_baseline_outcome_advantage"),
        "remax": "return_advantages:compute_remax_outcome_advantage",
        "rloo": "group_advantages:compute_rloo_outcome_advantage",
        "rloo_vectorized": "group_advantages:compute_rloo_vectorized_outcome_advantage",
        "tir_optimal_token_baseline": "token_baselines:compute_multi_turn_optimal_token_baseline_advantage",
        "turn_gae": "turn_advantages:compute_turn_gae_advantage_return",
        "turn_grpo": "turn_advantages:compute_turn_grpo_advantage",
    },
)
policy_losses = Registry(
    "policy loss",
    {
        "bypass_mode": "policy_losses.bypass:compute_policy_loss_bypass_mode",
        "cispo": "policy_losses.clipped:compute_policy_loss_cispo",
        "clip_cov": "policy_losses.covariance:compute_policy_loss_clip_cov",
        "dppo_kl": "policy_losses.trust_region:compute_policy_loss_dppo_kl",
        "dppo_tv": "policy_losses.trust_region:compute_policy_loss_dppo_tv",
        "dro": "policy_losses.policy_gradient:compute_policy_loss_dro",
        "geo_mean": "policy_losses.sequence_ratio:compute_policy_loss_geo_mean",
        "gpg": "policy_losses.policy_gradient:compute_policy_loss_gpg",
        "gspo": "policy_losses.sequence_ratio:compute_policy_loss_gspo",
        "kl_cov": "policy_losses.covariance:compute_policy_loss_kl_cov",
        "sapo": "policy_losses.clipped:compute_policy_loss_sapo",
        "vanilla": "policy_losses.clipped:compute_policy_loss_vanilla",
    },
)

register_adv_est = advantage_estimators.register
get_adv_estimator_fn = advantage_estimators.get
register_policy_loss = policy_losses.register
get_policy_loss_fn = policy_losses.get
