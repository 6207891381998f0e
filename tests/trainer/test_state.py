"""What a trainer remembers survives a checkpoint to the last bit."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentverl.errors import RunFolderError
from agentverl.trainer.state import TrainerState
from agentverl.trainer.summary import ValidationPoint

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
STATES = st.builds(
    TrainerState,
    step=st.integers(0, 10**9),
    loader=st.fixed_dictionaries({"epoch": st.integers(0, 9), "shuffle": st.booleans()}),
    rollouts=st.fixed_dictionaries({"groups": st.lists(st.fixed_dictionaries({"row": st.just({"uid": "0-1"})}))}),
    kl_coefficient=st.none() | NUMBERS,
    validations=st.lists(st.builds(ValidationPoint, step=st.integers(0, 99), success=NUMBERS, tool_call_rate=NUMBERS)),
    metrics=st.dictionaries(st.text(max_size=9), NUMBERS, max_size=5),
    wall_seconds=NUMBERS,
)


@given(STATES)
def test_a_state_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, state: TrainerState) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    state.save(folder)
    assert TrainerState.load(folder) == state


def test_a_metric_that_is_not_a_number_stays_one(tmp_path: Path) -> None:
    TrainerState(metrics={"loss": math.nan}).save(tmp_path)
    assert math.isnan(TrainerState.load(tmp_path).metrics["loss"])


@pytest.mark.parametrize(
    "content", [None, "", '{"step": 3', "[]", '{"step": 3}', '{"validations": [], "metrics": {}, "x": 1}']
)
def test_what_is_no_state_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "trainer.json").write_text(content)
    with pytest.raises(RunFolderError, match="is no checkpoint of a run: trainer"):
        TrainerState.load(tmp_path)
