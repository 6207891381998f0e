"""A model that is cut over ranks trains as it does on one, whoever has which rows."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from agentverl.engines.fsdp.engine import FSDPEngine
from agentverl.engines.settings import EngineSettings, ShardingSettings
from agentverl.errors import ModelFolderError, SettingsError
from agentverl.protocol.data_proto import DataProto
from tests.engines.ranks import on_ranks
from tests.engines.test_packed_exactness import weighted_loss
from tests.engines.test_value_head import squared_error
from tests.engines.tiny_models import batch_of, engine_of

LENGTHS = [(3, 9), (7, 2), (1, 1), (4, 30), (4, 30), (2, 0), (5, 12), (1, 29)]
STEPS = 3

Outcome = tuple[list[dict[str, float]], DataProto, dict[str, torch.Tensor], int]


def trained(size: int, lengths: list[tuple[int, int]], name: str, settings: dict[str, Any]) -> Outcome:
    """Metrics of some steps, then log-probabilities of this rank's rows, the weights, and the tokens forwarded."""
    engine = engine_of(name, max_tokens=60, **settings)
    rank = int(os.environ["RANK"]) if size > 1 else 0
    data = batch_of(lengths).chunk(size)[rank]
    metrics = [engine.train_batch(data, weighted_loss, calculate_entropy=True) for _ in range(STEPS)]
    computed = engine.infer_batch(data, calculate_entropy=True)
    weights = {name: parameter.clone() for name, parameter in engine.get_per_tensor_param()}
    return metrics, computed, weights, engine.tokens_forwarded


def assert_ranks_train_as_one(
    size: int,
    name: str = "qwen2",
    lengths: list[tuple[int, int]] = LENGTHS,
    *,
    tolerance: float = 1e-4,
    **settings: Any,
) -> None:
    alone = {key: value for key, value in settings.items() if key != "sharding"}
    metrics, computed, weights, _ = trained(1, lengths, name, alone)
    outcomes: list[Outcome] = on_ranks(size, trained, size, lengths, name, settings)
    together = DataProto.concat([outcome[1] for outcome in outcomes])
    for column in ("log_probs", "entropys"):
        ours, expected = (part.batch.ragged(column).values for part in (together, computed))
        assert float((ours - expected).norm()) <= tolerance * float(expected.norm())
    start = dict(engine_of(name, **alone).get_per_tensor_param())
    for rank_metrics, _, rank_weights, _ in outcomes:
        for ours_of_step, expected_of_step in zip(rank_metrics, metrics, strict=True):
            assert ours_of_step == pytest.approx(expected_of_step, rel=tolerance)
        assert rank_weights.keys() == weights.keys()
        # Where a gradient is 0 but for rounding, AdamW makes steps of rounding: all weights are judged together.
        distance, moved = (
            torch.cat([(one[key].double() - other[key]).flatten() for key in weights]).norm()
            for one, other in ((rank_weights, weights), (weights, start))
        )
        assert float(distance) <= 10 * tolerance * float(moved)


@pytest.mark.parametrize(("size", "name"), [(2, "qwen2"), (4, "qwen2"), (2, "llama"), (2, "gemma2")])
def test_ranks_train_as_one_rank_does(size: int, name: str) -> None:
    assert_ranks_train_as_one(size, name)


def test_three_rows_train_on_four_ranks() -> None:
    assert_ranks_train_as_one(4, lengths=LENGTHS[:3])


def test_rows_that_nobody_predicts_train_on_two_ranks() -> None:
    assert_ranks_train_as_one(2, lengths=[(3, 9), (2, 0)])


def test_two_copies_of_two_shards_train_as_one_rank_does() -> None:
    assert_ranks_train_as_one(4, sharding=ShardingSettings(fsdp_size=2, reshard_after_forward=False))


def test_weights_in_host_memory_train_as_others_do() -> None:
    assert_ranks_train_as_one(2, sharding=ShardingSettings(offload_policy=True))


def test_checkpointed_activations_train_as_others_do() -> None:
    assert_ranks_train_as_one(2, enable_gradient_checkpointing=True)


def test_reductions_in_each_micro_batch_train_as_one_a_batch() -> None:
    assert_ranks_train_as_one(2, sharding=ShardingSettings(use_no_sync_for_gradient_accumulation=False))


def critic_trained(size: int) -> tuple[list[dict[str, float]], torch.Tensor]:
    engine, rank = engine_of(head="value"), int(os.environ["RANK"]) if size > 1 else 0
    data = batch_of(LENGTHS).chunk(size)[rank]
    metrics = [engine.train_batch(data, squared_error) for _ in range(STEPS)]
    return metrics, engine.infer_batch(data).batch.ragged("values").values


def test_a_critic_on_ranks_trains_as_on_one() -> None:
    (metrics, values), outcomes = critic_trained(1), on_ranks(2, critic_trained, 2)
    for ours, _ in outcomes:
        for of_step, expected in zip(ours, metrics, strict=True):
            assert of_step == pytest.approx(expected, rel=1e-4)
    together = torch.cat([ours for _, ours in outcomes])
    assert float((together - values).norm()) <= 1e-3 * float(values.norm())


def test_ranks_in_bfloat16_train_as_one_rank_does() -> None:
    assert_ranks_train_as_one(2, dtype="bfloat16", tolerance=2e-2)


class Reductions(TorchDispatchMode):
    """Counts how often gradients are summed up over the ranks."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "reduce_scatter" in str(func)
        return func(*args, **(kwargs or {}))


def reductions(no_sync: bool) -> int:
    """How many reductions a batch of four micro-batches takes."""
    sharding = ShardingSettings(use_no_sync_for_gradient_accumulation=no_sync)
    engine, data = engine_of(max_tokens=33, sharding=sharding), batch_of([(3, 30)] * 8).chunk(2)[0]
    counted = Reductions()  # type: ignore[no-untyped-call]
    with counted:
        engine.train_batch(data, weighted_loss, calculate_entropy=True)
    return counted.count


def test_gradients_are_summed_over_ranks_once_a_batch() -> None:
    layers_and_root = 3
    assert on_ranks(2, reductions, True)[0] == layers_and_root
    assert on_ranks(2, reductions, False)[0] == 4 * layers_and_root


def too_long() -> str:
    engine = engine_of(max_tokens=20)
    data = batch_of([(3, 9), (7, 30)]).chunk(2)[int(os.environ["RANK"])]
    with pytest.raises(Exception, match="does not fit") as raised:
        engine.train_batch(data, weighted_loss, calculate_entropy=True)
    return type(raised.value).__name__


def test_a_row_that_fits_into_no_micro_batch_is_refused_on_all_ranks() -> None:
    assert on_ranks(2, too_long) == ["AgentverlError", "BadInputError"]


def not_dividing() -> None:
    with pytest.raises(SettingsError, match="fsdp_size=3 does not divide the 2 ranks"):
        engine_of(sharding=ShardingSettings(fsdp_size=3))


def test_shards_that_do_not_divide_the_ranks_are_refused() -> None:
    on_ranks(2, not_dividing)


def missing_folder() -> None:
    engine = FSDPEngine(EngineSettings(model=Path("no/such/folder")))
    with pytest.raises(ModelFolderError, match=r"config\.json"):
        engine.initialize()


def test_a_model_that_does_not_load_is_refused_on_all_ranks() -> None:
    on_ranks(2, missing_folder)
