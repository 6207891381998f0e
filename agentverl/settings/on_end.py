"""`actor_rollout_ref.rollout.on_end.*`: what each way an episode ends means for training."""

from pydantic import model_validator

from agentverl.settings.section import Section
from agentverl.trajectory import Termination


class EndSettings(Section):
    """What one ending means."""

    score: float | None = None
    """Replaces the trajectory's score; null keeps it."""
    loss: bool = True
    """Whether its tokens are trained on."""
    baseline: bool = True
    """Whether its score enters the statistics of its group."""


_TRAINED = EndSettings()
_CUT = (Termination.RESPONSE_LENGTH, Termination.CONTEXT_LENGTH)
_LEFT_OUT = EndSettings(loss=False, baseline=False)


class OnEndSettings(Section):
    """One entry a termination; those of errors may also be written `error:model`."""

    mask_truncated: bool = False
    """Take the loss off trajectories that a length cut short, DAPO's overlong filtering; their scores count still."""
    answered: EndSettings = _TRAINED
    finished: EndSettings = _TRAINED
    max_turns: EndSettings = _TRAINED
    response_length: EndSettings = _TRAINED
    context_length: EndSettings = _TRAINED
    deadline: EndSettings = _TRAINED
    invalid_calls: EndSettings = _TRAINED
    aborted: EndSettings = _LEFT_OUT
    error_model: EndSettings = _LEFT_OUT
    error_tool: EndSettings = _LEFT_OUT
    error_environment: EndSettings = _LEFT_OUT
    error_sandbox: EndSettings = _LEFT_OUT
    error_reward: EndSettings = _LEFT_OUT
    error_agent: EndSettings = _LEFT_OUT

    @model_validator(mode="before")
    @classmethod
    def _start_from_the_defaults(cls, values: object) -> object:
        """An entry that sets one key keeps the ending's other defaults."""
        if not isinstance(values, dict):
            return values
        merged: dict[str, object] = {}
        for key, value in values.items():
            name = key.replace(":", "_") if isinstance(key, str) else key
            default = cls.model_fields[name].default if name in cls.model_fields else None
            if isinstance(default, EndSettings) and isinstance(value, dict):
                merged[name] = {**default.model_dump(), **value}
            else:
                merged[name] = value
        return merged

    def policies(self) -> dict[str, EndSettings]:
        """By the termination's own name, such as `error:tool`."""
        policies: dict[str, EndSettings] = {end.value: self[end.value.replace(":", "_")] for end in Termination}
        for end in _CUT if self.mask_truncated else ():
            policies[end.value] = policies[end.value].model_copy(update={"loss": False})
        return policies
