"""A group of workers in one process is called like one object, and reports which worker failed and where."""

import asyncio
import pickle
import re
from functools import partial
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agentverl.errors import BadInputError, ModelFolderError
from agentverl.protocol.data_proto import DataProto
from agentverl.single_controller.dispatch import Dispatch, register, register_dispatch_mode
from agentverl.single_controller.launcher import start_workers
from agentverl.single_controller.local import LocalWorkerGroup
from agentverl.single_controller.pending import Pending
from agentverl.single_controller.worker import Worker, WorkerClass
from agentverl.single_controller.worker_errors import WorkerClassError, WorkerError
from agentverl.single_controller.worker_group import WorkerGroup
from tests.single_controller.reporter import Reporter


def group(size: int = 3, *args: Any, **kwargs: Any) -> WorkerGroup:
    return start_workers("local", WorkerClass(Reporter, args, kwargs), size)


async def test_what_ends_on_all_ranks_ends_on_those_after_one_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Ending(Worker):
        ended = False

        @register()
        async def end(self) -> None:
            if self.rank == 0:
                raise OSError("gone")
            await asyncio.sleep(0.01)
            self.ended = True

    workers = LocalWorkerGroup(WorkerClass(Ending), 3)
    await workers.end_on_all("end")
    assert [worker.ended for worker in workers.workers] == [False, True, True]
    assert "rank 0 does not end by itself" in caplog.text
    assert "OSError: gone" in caplog.text


def test_every_mode_hands_out_arguments_and_collects_results() -> None:
    workers = group(3, offset=10)
    assert workers.same(1, x=2) == [(10, (1,), {"x": 2}), (11, (1,), {"x": 2}), (12, (1,), {"x": 2})]
    assert workers.first("v") == (10, "v")
    assert workers.first_too() == 10
    assert workers.shared_or_same([1, 2, 3], ["a", "b", "c"]) == [(1, "a"), (2, "b"), (3, "c")]
    assert workers.shared_or_same([1, 2, 3], "a") == [([1, 2, 3], "a")] * 3
    assert workers.own([1, 2, 3], other=(4, 5, 6)) == [(1, 4), (2, 5), (3, 6)]
    assert workers.ranks() == 3
    with pytest.raises(WorkerClassError, match="one entry for each of 3 ranks, got a list of 2"):
        workers.own([1, 2], other=[1, 2, 3])


def test_a_restarted_worker_is_closed_and_another_one_knows_its_rank_and_nothing_else() -> None:
    workers = cast(LocalWorkerGroup, group(2, offset=10))
    for worker in workers.workers:
        worker.number = 0
    before = list(workers.workers)
    workers.restart(1)
    assert [worker.closed for worker in before] == [False, True]
    assert [number for number, *_ in workers.same()] == [0, 11]


def test_a_worker_that_was_ended_is_closed_once() -> None:
    workers = cast(LocalWorkerGroup, group(2))
    closed: list[int] = []
    for rank, worker in enumerate(workers.workers):
        worker.close = partial(closed.append, rank)
    workers.end_rank(1)
    with pytest.raises(WorkerError, match="rank 1 of 2"):
        workers.same()
    workers.close()
    workers.close()
    assert closed == [1, 0]


@given(st.integers(0, 7), st.integers(1, 4))
def test_batches_of_any_size_are_cut_and_put_together(rows: int, size: int) -> None:
    workers = group(size)
    data = DataProto({"a": torch.arange(rows)})
    added = workers.add(data, amount=5)
    assert added.batch.tensor("a").tolist() == [row + 5 for row in range(rows)]
    assert sum(added.meta_info["metrics"]["rows"]) == rows
    assert workers.nothing(data) is None
    assert sum(workers.rows(data=data)) == rows


@given(st.integers(0, 7), st.sampled_from([1, 2, 4]))
def test_ranks_of_one_share_of_a_mesh_get_the_same_rows_and_one_of_them_answers(rows: int, shares: int) -> None:
    workers = group(4)
    workers.join("pairs", shares)
    answered = workers.in_pairs(DataProto({"a": torch.arange(rows)}))
    assert answered.batch.tensor("a").tolist() == list(range(rows))
    assert set(answered.batch.tensor("rank").tolist()) <= {rank for rank in range(4) if (rank + 1) % (4 // shares) == 0}


def test_a_mesh_that_nobody_joined_is_refused() -> None:
    with pytest.raises(WorkerClassError, match=r"rank 0 of Reporter is not in the mesh 'pairs': call self\.join_mesh"):
        group(2).in_pairs(DataProto({"a": torch.arange(2)}))


@pytest.mark.parametrize(("ranks", "shares"), [([0], "[0]"), ([1, 2, 3], "[0, 1, 1]"), ([], "[]")])
def test_a_mesh_in_which_not_one_rank_of_each_share_collects_is_refused(ranks: list[int], shares: str) -> None:
    workers = group(4)
    workers.join_collecting("pairs", ranks)
    with pytest.raises(
        WorkerClassError, match=re.escape(f"collect the shares {shares}; expected each from 0 to 1 once")
    ):
        workers.in_pairs(DataProto({"a": torch.arange(2)}))


@given(st.integers(0, 7), st.integers(1, 4), st.integers(1, 4))
def test_what_is_not_there_yet_is_handed_on_in_shares(rows: int, one: int, other: int) -> None:
    pending = group(one).add_later(DataProto({"a": torch.arange(rows)}))
    assert group(other).add_unseen(pending, 5).batch.tensor("a").tolist() == [row + 6 for row in range(rows)]
    assert group(other).rows_unseen(pending) == [rows] * other


@given(st.integers(0, 7), st.integers(1, 4), st.sampled_from([1, 2, 4]))
def test_what_a_mesh_makes_is_handed_on_by_the_ranks_that_collect(rows: int, other: int, shares: int) -> None:
    workers = group(4)
    workers.join("pairs", shares)
    pending = workers.in_pairs_later(DataProto({"a": torch.arange(rows)}))
    handed_on = group(other).add_unseen(pending, 5)
    assert handed_on.batch.tensor("a").tolist() == [row + 5 for row in range(rows)]


@given(st.integers(0, 7), st.integers(1, 4))
def test_rows_keep_their_order_in_a_mesh_that_counts_backwards(rows: int, other: int) -> None:
    workers, data = group(3), DataProto({"a": torch.arange(rows)})
    workers.join_backwards("pairs")
    assert workers.in_pairs(data).batch.tensor("a").tolist() == list(range(rows))
    handed_on = group(other).add_unseen(workers.in_pairs_later(data), 5)
    assert handed_on.batch.tensor("a").tolist() == [row + 5 for row in range(rows)]


def test_what_is_handed_on_is_what_the_mode_collects() -> None:
    pending = group(2).of_first_later(DataProto({"a": torch.arange(2)}))
    assert group(2).add_unseen(pending, 5).batch.tensor("a").tolist() == [5, 6]


def test_a_function_goes_to_every_rank() -> None:
    doubled = group(2).apply(lambda values: values * 2, DataProto({"a": torch.arange(3)}))
    assert doubled.batch.tensor("a").tolist() == [0, 2, 4]
    with pytest.raises(WorkerClassError, match="takes a function as its first argument"):
        group().apply(DataProto({"a": torch.arange(3)}))


def test_modes_of_the_form_of_verl_work() -> None:
    assert group(2).in_verl_form([1, 2, 3, 4]) == [1, 3]
    mode = register_dispatch_mode("ONLY_FIRST", lambda group, value: (([value] * group.world_size,), {}), _first)
    assert vars(Dispatch)["ONLY_FIRST"] is mode

    class Own(Worker):
        @register(mode)
        def double(self, value: int) -> int:
            return 2 * value

    assert start_workers("local", WorkerClass(Own), 2).double(4) == 8
    with pytest.raises(WorkerClassError, match="'ONLY_FIRST' already"):
        register_dispatch_mode("ONLY_FIRST", _first, _first)


def _first(group: Any, results: list[Any]) -> Any:
    return results[0]


def test_a_direct_method_is_called_on_one_worker() -> None:
    with pytest.raises(WorkerClassError, match="not called through its group"):
        group().direct()
    assert group().execute_rank_zero("direct") == 0


def test_results_that_are_no_batches_are_refused() -> None:
    with pytest.raises(WorkerClassError, match="the ranks returned int; use DP_COMPUTE_METRIC"):
        group().number_of(DataProto({"a": torch.arange(3)}))
    with pytest.raises(WorkerClassError, match="needs a DataProto"):
        group().rows([1, 2, 3])


def test_calls_that_do_not_block_give_their_result_later_and_as_an_argument() -> None:
    workers = group(2)
    pending = workers.later("value")
    assert isinstance(pending, Pending)
    assert workers.first(pending) == (0, ["value", "value"])
    assert pending.get() == ["value", "value"]
    failed = workers.later("fail")
    with pytest.raises(WorkerError, match="RuntimeError: later"):
        failed.get()


async def test_async_methods_are_awaited() -> None:
    workers = group(3)
    assert await workers.soon() == [0, 1, 2]
    with pytest.raises(WorkerError, match=r"rank 1 of 3, Reporter\.soon: RuntimeError: not now") as raised:
        await workers.soon(fail_at=1)
    assert raised.value.rank == 1


def test_a_method_that_raises_is_reported_with_rank_and_traceback() -> None:
    with pytest.raises(WorkerError, match=r"^rank 1 of 3, Reporter\.fail: ZeroDivisionError: by zero$") as raised:
        group(3).fail(1, ZeroDivisionError("by zero"))
    assert raised.value.rank == 1
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert raised.value.worker_traceback.splitlines()[1].endswith("in fail")
    restored = pickle.loads(pickle.dumps(raised.value))
    assert (str(restored), restored.rank) == (str(raised.value), 1)


def test_our_own_errors_keep_their_kind_and_name_the_rank() -> None:
    with pytest.raises(ModelFolderError, match="no tokenizer") as raised:
        group(2).fail(1, ModelFolderError("no tokenizer"))
    assert raised.value.__notes__ == ["raised on rank 1 of 2, Reporter.fail"]


def test_a_worker_that_cannot_be_made_is_reported() -> None:
    with pytest.raises(WorkerError, match=r"rank 1 of 2, Reporter\.__init__: OSError: no device"):
        group(2, fail_at=1)


def test_unknown_methods_offer_the_nearest() -> None:
    workers = group()
    with pytest.raises(AttributeError, match="no method 'frst'; did you mean 'first'"):
        workers.frst  # noqa: B018
    with pytest.raises(AttributeError, match="no method 'unregistered'"):
        workers.unregistered  # noqa: B018
    assert workers.execute_all("unregistered") == [0, 1, 2]
    assert workers.execute_rank_zero("unregistered") == 0


def test_close_reaches_every_worker() -> None:
    workers = group(2)
    workers.close()
    assert [worker.closed for worker in workers.workers] == [True, True]


def test_overriding_a_method_keeps_it_registered() -> None:
    class Louder(Reporter):
        def first_too(self) -> int:
            return 100

    assert start_workers("local", WorkerClass(Louder)).first_too() == 100


def test_classes_and_launchers_that_cannot_work_are_refused() -> None:
    class Empty(Worker):
        pass

    class Stranger:
        pass

    with pytest.raises(
        WorkerClassError, match=r"Empty has no method that its group could call; mark some with @register"
    ):
        start_workers("local", WorkerClass(Empty))
    with pytest.raises(WorkerClassError, match="must inherit from Worker"):
        start_workers("local", WorkerClass(Stranger))  # type: ignore[arg-type]
    with pytest.raises(WorkerClassError, match="at least one worker, got 0"):
        group(0)
    with pytest.raises(BadInputError, match=r"trainer\.launcher='slurm' does not exist; known: local, ray"):
        start_workers("slurm", WorkerClass(Reporter))
    with pytest.raises(WorkerClassError, match="dispatch_mode must be"):
        register("one_to_all")  # type: ignore[arg-type]
    with pytest.raises(WorkerClassError, match="execute_mode must be"):
        register(execute_mode="all")  # type: ignore[arg-type]


def test_a_worker_made_without_a_group_is_alone() -> None:
    worker = Reporter()
    assert (worker.rank, worker.world_size) == (0, 1)
