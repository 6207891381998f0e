"""A rank that raises, dies or stalls is reported at once, whatever the others do."""

import asyncio
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from agentverl.errors import PluginError
from agentverl.protocol.column_store import blocks_of, held
from agentverl.single_controller.host_options import HostOptions
from agentverl.single_controller.ray_group import RayWorkerGroup
from agentverl.single_controller.ray_pools import RayResourcePool
from agentverl.single_controller.worker import WorkerClass
from agentverl.single_controller.worker_errors import (
    ResourceError,
    WorkerClassError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
)
from tests.single_controller.reporter import Reporter

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("cluster")]


def started(
    pool: RayResourcePool, logs: Path | None = None, silent: float = 60.0, lag: float = 600.0
) -> RayWorkerGroup:
    options = HostOptions(name="reporter", logs=logs, silent_seconds=silent, lag_seconds=lag)
    return RayWorkerGroup(pool, WorkerClass(Reporter), options=options)


def test_a_killed_process_is_reported_while_the_other_rank_waits(pool: RayResourcePool, tmp_path: Path) -> None:
    group = started(pool, tmp_path)
    began = time.monotonic()
    with pytest.raises(WorkerDiedError, match=r"rank 1 of 2, Reporter\.end_process: its process died") as raised:
        group.end_process(1)
    assert time.monotonic() - began < 60
    assert raised.value.rank == 1
    assert "the last words of a rank" in raised.value.worker_traceback
    log = tmp_path / "reporter-rank1.log"
    assert str(raised.value).endswith(
        f"it was killed, as where memory runs out, or it crashed; its log {log} ends: the last words of a rank"
    )
    group.close()


def test_the_first_of_several_failures_is_reported(pool: RayResourcePool) -> None:
    group = started(pool)
    with pytest.raises(WorkerError, match=r"rank 1 of 2, Reporter\.fail_after: RuntimeError: after 0 seconds"):
        group.fail_after([0.5, 0.0])
    with pytest.raises(WorkerError, match=r"rank 0 of 2, Reporter\.fail: OSError: one of two"):
        group.fail(0, OSError("one of two"))
    assert group.first("still there") == (0, "still there")
    group.close()


def test_a_process_that_stands_still_is_reported(pool: RayResourcePool) -> None:
    group = started(pool, silent=2.0)
    stopped = group.process_id()[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        with pytest.raises(WorkerStalledError, match=r"rank 1 of 2, Reporter\.same: its process did not answer for"):
            group.same()
    finally:
        os.kill(stopped, signal.SIGCONT)
        group.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_columns_of_a_process_that_is_gone_or_stands_still_are_not_held(
    number: signal.Signals, pool: RayResourcePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentverl.protocol.ray_column_store._ANSWER_SECONDS", 2.0)
    group = started(pool)
    here, there = (blocks_of(column) for column in group.put_away())
    assert held([*here, *there]) == {*here, *there}
    os.kill(group.process_id()[1], number)
    began = time.monotonic()
    while held([*here, *there]) != set(here):
        assert time.monotonic() - began < 30
    group.restart(1)
    assert held([*here, *there]) == set(here)
    group.close()


def test_code_that_would_end_its_process_fails_its_call_alone(pool: RayResourcePool) -> None:
    group = started(pool)
    with pytest.raises(WorkerError, match=r"Reporter\.leave: SystemExit: done"):
        asyncio.run(group.leave())
    assert group.first("still there") == (0, "still there")
    group.close()


def test_a_rank_that_lags_far_behind_is_reported_with_where_it_stands(pool: RayResourcePool) -> None:
    group = started(pool, lag=3.0)
    with pytest.raises(WorkerStalledError, match=r"rank 0 of 2, Reporter\.wait: still works 3 seconds after") as raised:
        group.wait([600.0, 0.0])
    assert "time.sleep(seconds[self.rank])" in raised.value.worker_traceback
    group._hosts.kill()


async def test_a_process_that_dies_under_an_async_call_is_reported(pool: RayResourcePool) -> None:
    group = started(pool)
    victim = group.process_id()[0]
    threading.Timer(1.0, os.kill, (victim, signal.SIGKILL)).start()
    with pytest.raises(WorkerDiedError, match=r"rank 0 of 2, Reporter\.wait_softly: its process died"):
        await group.wait_softly(600)
    group.close()


def test_a_worker_that_cannot_be_made_is_reported(pool: RayResourcePool) -> None:
    with pytest.raises(WorkerError, match=r"rank 1 of 2, Reporter\.__init__: OSError: no device"):
        RayWorkerGroup(pool, WorkerClass(Reporter, kwargs={"fail_at": 1}), name_prefix="Reporter")


def test_what_does_not_pickle_is_named(pool: RayResourcePool) -> None:
    with pytest.raises(PluginError, match=r"Reporter: argument offset\['lock'\] \(_thread\.lock\) cannot be sent"):
        RayWorkerGroup(pool, WorkerClass(Reporter, kwargs={"offset": {"lock": threading.Lock()}}))


def test_more_places_than_there_are_say_what_is_missing(cluster: None) -> None:
    with pytest.raises(ResourceError, match=r"'many' asks for 1 node\(s\) of 9 x \(1 CPU\); no machine has 9 CPUs"):
        RayWorkerGroup(RayResourcePool([9], name_prefix="many"), WorkerClass(Reporter))
    with pytest.raises(ResourceError, match=r"the cluster has 4 of 6 CPUs: machines: .* free now: .*Lower trainer"):
        RayWorkerGroup(RayResourcePool([3, 3], name_prefix="many"), WorkerClass(Reporter))
    with pytest.raises(ResourceError, match=r"asks for 2 node\(s\) of 1 x \(1 CPU\), 9 x \(1 CPU\); no machine has 9"):
        RayWorkerGroup(RayResourcePool([1, 9], name_prefix="many"), WorkerClass(Reporter))
    with pytest.raises(ResourceError, match="no machine has 1 GPUs"):
        RayWorkerGroup(RayResourcePool([1], use_gpu=True), WorkerClass(Reporter))


def test_places_that_others_hold_are_waited_for_only_so_long(pool: RayResourcePool) -> None:
    pool.slots()
    late = RayResourcePool([3], name_prefix="late")
    with pytest.raises(ResourceError, match="others hold what it needs, and did not give it back within 1 seconds"):
        RayWorkerGroup(late, WorkerClass(Reporter), options=HostOptions(start_seconds=1.0))


def test_a_range_of_ports_that_are_taken_is_named(pool: RayResourcePool) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=rf"master_port_range=\[{port}, {port}\]: every port of it is taken"):
            RayWorkerGroup(pool, WorkerClass(Reporter), options=HostOptions(ports=(port, port)))


def test_a_closed_group_says_so(pool: RayResourcePool) -> None:
    group = started(pool)
    group.close()
    group.close()
    with pytest.raises(WorkerClassError, match="the group is closed"):
        group.same()


def test_a_rank_that_was_ended_can_be_restarted_and_closed(pool: RayResourcePool) -> None:
    group = started(pool)
    before = group.process_id()
    for _ in range(2):
        group.end_rank(1)
    with pytest.raises(WorkerDiedError, match=r"its process died: it was ended$"):
        group.same()
    group.restart(1)
    assert group.process_id()[1] != before[1]
    group.end_rank(0)
    group.close()
    group.end_rank(0)


def test_a_rank_that_is_lost_is_restarted_in_its_place(pool: RayResourcePool, tmp_path: Path) -> None:
    group = started(pool, tmp_path)
    before, names = group.process_id(), list(group.worker_names)
    os.kill(before[1], signal.SIGKILL)
    with pytest.raises(WorkerDiedError):
        group.same()
    group.restart(1)
    after = group.process_id()
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)
    assert (group.worker_names[0] == names[0], group.worker_names[1] == names[1]) == (True, False)
    assert [args for _, args, _ in group.same("both")] == [("both",), ("both",)]
    group.restart(0)
    assert group.process_id()[0] != before[0]
    group.close()
    with pytest.raises(WorkerClassError, match="before it closes it"):
        group.restart(0)
