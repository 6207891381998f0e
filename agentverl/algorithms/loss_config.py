"""What losses and estimators read from a configuration, which may be any object with attributes or items."""

from collections.abc import Mapping
from typing import Any

from agentverl.errors import BadInputError

_REQUIRED = object()


def setting(config: Any, name: str, default: Any = _REQUIRED) -> Any:
    """An attribute of `config`, or an item where it is a mapping.

    Raises:
        BadInputError: it has neither and there is no default.
    """
    try:
        return config[name] if isinstance(config, Mapping) else getattr(config, name)
    except (AttributeError, KeyError):
        if default is _REQUIRED:
            raise BadInputError(f"the setting {name!r} is needed, and the configuration does not have it") from None
        return default


class LossConfig:
    """Settings of a loss together with what holds for one batch.

    Args:
        settings: the actor's settings; all their names can be read from this object as attributes, items or by `get`.
        global_batch_info: handed on to `agg_loss`: `loss_weight`, or counts such as `batch_num_tokens`.
        instead: settings that take the place of those of the same name.
    """

    def __init__(self, settings: Any, global_batch_info: Mapping[str, Any], **instead: Any) -> None:
        self._settings = settings
        self._instead = instead
        self.global_batch_info = dict(global_batch_info)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._instead:
            return self._instead[name]
        found = (
            self._settings.get(name, _REQUIRED)
            if isinstance(self._settings, Mapping)
            else getattr(self._settings, name)
        )
        if found is _REQUIRED:
            raise AttributeError(name)
        return found

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None

    def get(self, name: str, default: Any = None) -> Any:
        """The setting, or `default` where it does not exist."""
        return getattr(self, name, default)
