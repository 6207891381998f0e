"""What is offloaded comes for as long as somebody needs it, and only then."""

import pytest

from agentverl.engines.fsdp.engine import FSDPEngine
from agentverl.settings.engine import FSDPSettings
from agentverl.workers.offloading import Residence
from tests.engines.tiny_models import engine_of

Move = tuple[str, bool, bool]
"""Where to, whether the weights, whether the optimiser's state."""


class Moves(list[Move]):
    """The moves of a real engine, which still makes them."""

    def __init__(self, engine: FSDPEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        move = engine.to

        def noted(device: str, *, model: bool = True, optimizer: bool = True) -> None:
            self.append((device, model, optimizer))
            move(device, model=model, optimizer=optimizer)

        monkeypatch.setattr(engine, "to", noted)

    def since(self) -> list[Move]:
        found = list(self)
        self.clear()
        return found


def residence_of(monkeypatch: pytest.MonkeyPatch, **settings: bool) -> tuple[Residence, Moves]:
    engine = engine_of()
    moves = Moves(engine, monkeypatch)
    return Residence(engine, FSDPSettings.model_validate(settings), "cpu"), moves


def test_a_pass_brings_weights_and_an_update_also_the_optimiser(monkeypatch: pytest.MonkeyPatch) -> None:
    residence, moves = residence_of(monkeypatch, param_offload=True, optimizer_offload=True)
    assert moves.since() == [("cpu", True, True)]
    with residence.on_device():
        assert moves.since() == [("device", True, False)]
    assert moves.since() == [("cpu", True, False)]
    with residence.on_device(optimizer=True):
        assert moves.since() == [("device", True, True)]
    assert moves.since() == [("cpu", True, True)]


def test_several_steps_move_what_they_share_once(monkeypatch: pytest.MonkeyPatch) -> None:
    residence, moves = residence_of(monkeypatch, param_offload=True, optimizer_offload=True)
    moves.clear()
    residence.load()
    for _ in range(3):
        with residence.on_device(optimizer=True):
            pass
    with residence.on_device():
        pass
    assert moves.since() == [("device", True, True)]
    residence.offload()
    residence.offload()
    assert moves.since() == [("cpu", True, True)]


def test_an_update_within_a_pass_brings_only_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    residence, moves = residence_of(monkeypatch, param_offload=True, optimizer_offload=True)
    moves.clear()
    with residence.on_device(), residence.on_device(optimizer=True):
        pass
    assert moves.since() == [
        ("device", True, False),
        ("device", False, True),
        ("cpu", False, True),
        ("cpu", True, False),
    ]


@pytest.mark.parametrize(
    "settings", [{}, {"param_offload": True, "optimizer_offload": True, "offload_policy": True}], ids=["none", "policy"]
)
def test_what_is_not_offloaded_here_never_moves(monkeypatch: pytest.MonkeyPatch, settings: dict[str, bool]) -> None:
    residence, moves = residence_of(monkeypatch, **settings)
    residence.load()
    with residence.on_device(optimizer=True):
        pass
    residence.offload()
    assert moves.since() == []
