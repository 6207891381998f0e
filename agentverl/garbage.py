"""How much of the heap Python's garbage collector looks at, which stops all else in a process meanwhile."""

import gc

_SMALL_STEPS = (20_000, 1, 1_000)


def leave_alone_what_is_there() -> None:
    """Look no more at the objects that live now, such as imported modules.

    A full collection would walk through all of them each time: a third of a second with torch and transformers.
    """
    gc.collect()
    gc.freeze()


def look_at_all_again() -> None:
    """Undo `leave_alone_what_is_there`, for processes that go on to something else."""
    gc.unfreeze()


def collect_in_small_steps() -> None:
    """Let collections be short rather than rare, and full ones happen only after millions of new objects.

    For processes whose objects form no circles: those are freed without the collector.
    """
    gc.set_threshold(*_SMALL_STEPS)
