"""A group of Ray actors is called like one object, as a group in one process is."""

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
import torch

from agentverl.errors import InfrastructureError, ModelFolderError
from agentverl.protocol.column_store import drop, refer
from agentverl.protocol.columns import object_array
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ray_column_store import RayColumnStore
from agentverl.single_controller.dispatch import Dispatch, register
from agentverl.single_controller.host_options import HostOptions
from agentverl.single_controller.ray_group import RayClassWithInitArgs, RayWorkerGroup, create_colocated_worker_cls
from agentverl.single_controller.ray_pools import RayResourcePool, merge_resource_pool, split_resource_pool
from agentverl.single_controller.worker import Worker, WorkerClass
from agentverl.single_controller.worker_errors import ResourceError, WorkerClassError, WorkerError
from tests.single_controller.reporter import Reporter

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cluster")]


@pytest.fixture(scope="module")
def workers(pool: RayResourcePool) -> Iterator[RayWorkerGroup]:
    group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(ray.remote(Reporter), offset=10))
    yield group
    group.close()


def test_every_mode_hands_out_arguments_and_collects_results(workers: RayWorkerGroup) -> None:
    assert workers.same(1, x=2) == [(10, (1,), {"x": 2}), (11, (1,), {"x": 2})]
    assert workers.first("v") == (10, "v")
    assert workers.first_too() == 10
    assert workers.shared_or_same([1, 2], ["a", "b"]) == [(1, "a"), (2, "b")]
    assert workers.own([1, 2], other=(4, 5)) == [(1, 4), (2, 5)]
    assert workers.ranks() == 1
    assert workers.in_verl_form([1, 2, 3, 4]) == [1, 3]
    assert workers.execute_all("unregistered") == [0, 1]
    assert workers.execute_rank_zero("unregistered") == 0
    assert workers.apply(lambda a: a * 2, DataProto({"a": torch.arange(3)})).batch.tensor("a").tolist() == [0, 2, 4]


@pytest.mark.parametrize("rows", [0, 1, 2, 5])
def test_batches_of_any_size_are_cut_and_put_together(workers: RayWorkerGroup, rows: int) -> None:
    data = DataProto({"a": torch.arange(rows)})
    assert workers.add(data, amount=5).batch.tensor("a").tolist() == [row + 5 for row in range(rows)]
    assert workers.nothing(data) is None
    assert sum(workers.rows(data=data)) == rows
    pending = workers.add_later(data)
    assert workers.add_unseen(pending, 5).batch.tensor("a").tolist() == [row + 6 for row in range(rows)]
    assert workers.rows_unseen(pending) == [rows, rows]


def test_calls_begin_in_the_order_in_which_they_were_sent(workers: RayWorkerGroup) -> None:
    data = DataProto({"a": torch.arange(2)})
    for _ in range(100):
        # The second one waits, in the thread of both, for what the first one makes.
        assert workers.add_unseen(workers.add_later(data), 5).batch.tensor("a").tolist() == [6, 7]


def test_threads_of_a_controller_may_call_at_the_same_time(workers: RayWorkerGroup) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = threads.map(lambda number: workers.same(number)[0][1], range(60))
        assert list(answers) == [(number,) for number in range(60)]


def test_ranks_of_one_share_of_a_mesh_get_the_same_rows(workers: RayWorkerGroup) -> None:
    workers.join("pairs", 1)
    answered = workers.in_pairs(DataProto({"a": torch.arange(3)}))
    assert answered.batch.tensor("a").tolist() == [0, 1, 2]
    assert answered.batch.tensor("rank").tolist() == [1, 1, 1]


async def test_async_methods_are_awaited_and_cancelled(workers: RayWorkerGroup) -> None:
    assert await workers.soon() == [0, 1]
    with pytest.raises(WorkerError, match=r"rank 1 of 2, Reporter\.soon: RuntimeError: not now") as raised:
        await workers.soon(fail_at=1)
    assert raised.value.rank == 1
    waiting = asyncio.create_task(workers.wait_softly(600))
    await asyncio.sleep(0.5)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for _ in range(100):
        if workers.current_number() == [-1, -1]:
            break
        await asyncio.sleep(0.1)
    assert workers.current_number() == [-1, -1]


def test_ranks_find_each_other_by_the_environment(workers: RayWorkerGroup) -> None:
    first, second = workers.environment()
    assert (first["RANK"], second["RANK"], second["LOCAL_RANK"]) == ("0", "1", "1")
    assert first["WORLD_SIZE"] == first["LOCAL_WORLD_SIZE"] == "2"
    assert first["MASTER_PORT"] == second["MASTER_PORT"]


def test_what_a_worker_raises_arrives_with_rank_traceback_and_kind(workers: RayWorkerGroup) -> None:
    with pytest.raises(WorkerError, match=r"^rank 1 of 2, Reporter\.fail: ZeroDivisionError: by zero$") as raised:
        workers.fail(1, ZeroDivisionError("by zero"))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert "reporter.py" in raised.value.worker_traceback
    with pytest.raises(ModelFolderError, match="no tokenizer") as ours:
        workers.fail(1, ModelFolderError("no tokenizer"))
    assert ours.value.__notes__ == ["raised on rank 1 of 2, Reporter.fail"]
    with pytest.raises(AttributeError, match="no method 'frst'; did you mean 'first'"):
        workers.frst  # noqa: B018


async def test_what_lives_on_a_worker_is_used_from_here(workers: RayWorkerGroup) -> None:
    server = workers.resident(1, "server")
    assert server.served == 0
    assert await server.answer("who") == "11: who"
    assert server.served == 1
    with pytest.raises(InfrastructureError, match="no answer"):
        await server.answer("fail")
    with pytest.raises(AttributeError, match="not_async is neither async nor a property"):
        server.not_async  # noqa: B018


def test_several_roles_share_the_processes_of_one_group(pool: RayResourcePool) -> None:
    classes: dict[str, RayClassWithInitArgs | WorkerClass] = {
        "actor": RayClassWithInitArgs(Reporter, offset=0),
        "critic": WorkerClass(Reporter, (100,)),
    }
    both = RayWorkerGroup(pool, create_colocated_worker_cls(classes))
    roles = both.spawn(classes)
    assert roles["actor"].process_id() == roles["critic"].process_id()
    assert roles["critic"].first("v") == (100, "v")
    with pytest.raises(WorkerClassError, match="no role 'reference' in these workers; they hold actor, critic"):
        both.spawn(["reference"])
    both.close()


def test_pools_are_split_and_merged(cluster: None) -> None:
    whole = RayResourcePool([2], name_prefix="whole")
    first, second = split_resource_pool(whole, 1)
    one = RayWorkerGroup(first, WorkerClass(Reporter), name_prefix="one")
    assert one.world_size == 1
    one.close()
    again = RayWorkerGroup(merge_resource_pool(first, second), WorkerClass(Reporter), name_prefix="again")
    assert again.ranks() == 1
    again.close()
    for sizes in ([3], [2, 0], 0, 3, -1):
        with pytest.raises(ResourceError, match=r"cannot be split into .*; expected sizes of at least 1 that add up"):
            split_resource_pool(whole, sizes)
    whole.release()


def test_a_detached_group_is_found_by_its_names(cluster: None) -> None:
    pool = RayResourcePool([1], detached=True)
    left = RayWorkerGroup(pool, WorkerClass(Reporter, (5,)), name_prefix="left", detached=True)
    found = RayWorkerGroup.from_detached(left.worker_names, WorkerClass(Reporter))
    assert found.first("v") == (5, "v")
    assert found.worker_names == left.worker_names
    found.close()
    with pytest.raises(ResourceError, match="no detached worker group"):
        RayWorkerGroup.from_detached(["nobody"], WorkerClass(Reporter))


def test_all_that_a_process_prints_is_in_a_log_with_role_and_rank(pool: RayResourcePool, tmp_path: Path) -> None:
    group = RayWorkerGroup(pool, WorkerClass(Speaker), options=HostOptions(name="speaker", logs=tmp_path / "logs"))
    group.speak()
    group.close()
    assert [path.name for path in sorted((tmp_path / "logs").iterdir())] == ["speaker-rank0.log", "speaker-rank1.log"]
    assert "rank 1 speaks\n" in (tmp_path / "logs" / "speaker-rank1.log").read_text()


class Speaker(Worker):
    """Prints, also below Python."""

    @register(Dispatch.ONE_TO_ALL)
    def speak(self) -> None:
        os.write(1, f"rank {self.rank} speaks\n".encode())


def test_columns_that_a_batch_refers_to_are_fetched_by_the_worker(workers: RayWorkerGroup) -> None:
    data = DataProto({"a": torch.arange(3)}, {"image": object_array([b"x", b"y", b"z"])})
    referring = refer(data, ["a", "image"], RayColumnStore())
    assert "a" not in referring.batch
    for rows in (3, 1, 0):
        added = workers.add(referring.slice(0, rows), amount=5)
        assert added.batch.tensor("a").tolist() == [5, 6, 7][:rows]
    drop(referring)
