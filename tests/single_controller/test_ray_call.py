"""What is said of a call that did not come back."""

import pytest
import ray

from agentverl.single_controller.ray_call import died

BEGINNING = "The actor died unexpectedly before finishing this task.\n\tclass_name: Reporter\n\tip: 192.0.2.2\n"


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
            "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: ...",
            "it was killed, as where memory runs out, or it crashed",
        ),
        ("The actor died because its node has died. Node Id: 7368 the actor's node was ...", "its machine is gone"),
        ("The actor is dead because it was killed by `ray.kill`.", "it was ended"),
        ("A reason that is new.\nWith more", "A reason that is new. With more"),
        ("word " * 100, f"{'word ' * 39}[...]"),
    ],
)
def test_why_a_process_died_is_said_in_a_few_words(said: str, reason: str) -> None:
    error = died(ray.exceptions.RayActorError("f7e1", BEGINNING + said), "rank 1 of 2, Reporter.same", 1, None)
    assert str(error) == f"rank 1 of 2, Reporter.same: its process died: {reason}"
