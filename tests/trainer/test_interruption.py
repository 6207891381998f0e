"""SIGTERM is noticed while a run is under way, and only then."""

import os
import signal
import threading

from agentverl.trainer.interruption import Interruption


def test_sigterm_is_noticed_and_the_handler_before_comes_back() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    try:
        with Interruption() as interruption:
            assert not interruption.requested
            os.kill(os.getpid(), signal.SIGTERM)
            assert interruption.requested
        assert not seen
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_it_interrupts_what_waits_for_another_thread() -> None:
    """The main thread of a run waits for rollouts in another."""
    done = threading.Event()
    with Interruption() as interruption:
        threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGTERM)).start()
        threading.Timer(0.1, done.set).start()
        done.wait()
        assert interruption.requested


def test_outside_the_main_thread_nothing_changes() -> None:
    requested: list[bool] = []

    def work() -> None:
        with Interruption() as interruption:
            requested.append(interruption.requested)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert requested == [False]
    assert signal.getsignal(signal.SIGTERM) is before
