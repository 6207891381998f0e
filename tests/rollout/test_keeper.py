"""A trajectory is written down and its tokens are put away where it was played."""

import pickle
from collections.abc import Hashable, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from agentverl.protocol.column_store import MemoryColumnStore, Stored, resolve
from agentverl.protocol.columns import equal_values
from agentverl.rollout.batching import assemble
from agentverl.rollout.episode import Episode, EpisodeResult, Failure, Group
from agentverl.rollout.keeper import Keeper
from agentverl.rollout.kept_sequences import KeptSequence
from agentverl.rollout.shipping import Shipping
from agentverl.tracking.journal import Journal
from tests.agent_loops.scripted import byte_tokenizer
from tests.tracking.episodes import output


def result(*, validation: bool = False, failure: Failure | None = None) -> EpisodeResult:
    episode = Episode(uid="0-1", sample=0, row={}, sampling_params={}, validation=validation, step=7)
    image = {"images": [b"pixels"]}
    return EpisodeResult(episode=episode, outputs=[output(multi_modal_data=image)], score=1.0, failure=failure)


def test_what_is_trained_on_is_put_into_the_store_and_the_journal(tmp_path: Path) -> None:
    kept = result()
    Keeper(journal=Journal(tmp_path)).keep(kept)
    assert kept.written is not None
    record = kept.written.read()
    assert (record["step"], record["outputs"][0]["response_ids"]) == (7, output().response_ids)
    values = resolve(assemble([Group(uid="0-1", row={}, results=[kept], failures=[])]))
    assert values.batch.ragged("prompts")[0].tolist() == output().prompt_ids
    assert values.non_tensor_batch["multi_modal_data"][0] == {"images": [b"pixels"]}
    assert kept.texts is None


@pytest.mark.parametrize(("validation", "keeps_texts"), [(True, False), (False, True)])
def test_texts_are_made_for_validations_and_where_samples_are_dumped(validation: bool, keeps_texts: bool) -> None:
    kept = result(validation=validation)
    Keeper(tokenizer=byte_tokenizer(), keeps_texts=keeps_texts).keep(kept)
    assert kept.texts is not None
    assert (kept.kept is None) == validation


def test_a_failed_trajectory_is_only_written_down(tmp_path: Path) -> None:
    kept = result(failure=Failure(boundary="tool", message="gone"))
    Keeper(journal=Journal(tmp_path)).keep(kept)
    assert kept.kept is None
    assert kept.written is not None
    assert kept.written.read()["error"] == "tool: gone"


@pytest.mark.parametrize("token", [-1, 2**40])
def test_ids_that_a_loop_made_up_end_nothing(token: int) -> None:
    kept = result(validation=True, failure=Failure(boundary="agent", message="not what was sampled"))
    tokenizer = byte_tokenizer()
    kept.outputs[0].response_ids = [*tokenizer.encode("h"), token, *tokenizer.encode("i")]
    Keeper(tokenizer=tokenizer).keep(kept)
    assert kept.texts is not None
    assert kept.texts[1] == "h\N{REPLACEMENT CHARACTER}i"


def test_a_journal_that_takes_nothing_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Full(Journal):
        def trajectory(self, record: object) -> None:
            raise MemoryError("no room")

    kept = result()
    Keeper(journal=Full(tmp_path)).keep(kept)
    assert kept.kept is not None
    assert "no room" in caplog.text


class Counting(MemoryColumnStore):
    """Counts how often something is put into it."""

    def __init__(self) -> None:
        self.puts: list[int] = []

    def put(self, columns: Sequence[Stored]) -> list[Hashable]:
        self.puts.append(len(columns))
        return super().put(columns)


def test_what_is_sent_to_the_controller_keeps_turns_and_loses_tokens() -> None:
    kept = result()
    Keeper().keep(kept)
    (sent,) = Shipping(store := Counting()).ready([kept]).opened()
    (sequence,) = sent.outputs
    assert (sequence.turns, sequence.version_spans) == (output().turns, output().version_spans)
    assert [*sequence.prompt_ids, *sequence.response_ids, *sequence.messages] == []
    assert sequence.multi_modal_data is None
    assert store.puts == [3]
    assert kept.outputs[0].response_ids == output().response_ids


def test_trajectories_are_put_together_but_for_those_with_images() -> None:
    shipping, results = Shipping(store := Counting()), [result() for _ in range(8)]
    for number, one in enumerate(results):
        image = {"images": [b"pixels"]} if number == 3 else None
        one.outputs = [output(response_ids=[number] * 7, multi_modal_data=image)]
        Keeper().keep(one)
    sent = shipping.ready(results).opened()
    assert store.puts == [3 * 7, 3]
    values = resolve(assemble([Group(uid="", row={}, results=sent, failures=[])])).batch.ragged("responses")
    assert [row.tolist() for row in values] == [[number] * 7 for number in range(8)]


def test_fields_that_do_not_pickle_travel_as_they_are() -> None:
    kept, other = result(), result()
    kept.outputs[0].extra_fields["call"] = lambda: 7
    for one in (kept, other):
        Keeper().keep(one)
    parcel = Shipping(MemoryColumnStore()).ready([kept, other])
    sent, _ = parcel.opened()
    assert not isinstance(parcel.items, bytes)
    assert sent.outputs[0].extra_fields["call"]() == 7
    assert isinstance(Shipping(MemoryColumnStore()).ready([other]).items, bytes)


def test_episodes_and_sequences_travel_with_all_their_fields() -> None:
    episode = Episode(uid="7", sample=3, row={"a": 1}, sampling_params={"temperature": 2}, validation=True, step=5)
    assert pickle.loads(pickle.dumps(episode)) == episode
    sequence = KeptSequence.of(output())
    found = pickle.loads(pickle.dumps(sequence))
    assert all(equal_values(getattr(found, field.name), getattr(sequence, field.name)) for field in fields(sequence))
