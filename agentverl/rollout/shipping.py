"""Results made ready for another process: tokens and images go into a store, and references into their place."""

import pickle
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from agentverl.protocol.column_store import Block, ColumnStore, Stored, fetched
from agentverl.protocol.columns import object_array
from agentverl.rollout.episode import Episode, EpisodeResult
from agentverl.rollout.kept_sequences import Kept, KeptSequence
from agentverl.trajectory import AgentLoopOutput

_WHOLE = "whole"
"""The name of a result that has to be judged among its columns."""


class _Item(NamedTuple):
    """A result without what the store keeps of it."""

    result: EpisodeResult
    sequences: list[KeptSequence] | None
    names: list[str]
    """Of its columns in the store."""


@dataclass(slots=True)
class Parcel:
    """Results on their way, in a form that is quicker to write and to read than what Ray would make of them."""

    items: bytes | list[_Item]
    """Pickled; as they are where only the way itself can pickle them."""
    keys: list[Hashable]
    """Of all columns in the store, in order."""
    store: ColumnStore

    def opened(self) -> list[EpisodeResult]:
        """The results; their columns are references."""
        items: list[_Item] = pickle.loads(self.items) if isinstance(self.items, bytes) else self.items
        keys = iter(self.keys)
        for result, sequences, names in items:
            blocks = {name: Block(self.store, next(keys)) for name in names}
            if sequences is not None:
                result.kept = Kept(sequences, blocks)
            elif _WHOLE in blocks:
                result.to_judge = blocks[_WHOLE]
        return [item.result for item in items]


class Shipping:
    """Puts what trajectories leave into a store: at once for those without images, as each put takes a millisecond.

    Whoever needs one row fetches all that was put with it, so images are put alone.
    """

    def __init__(self, store: ColumnStore) -> None:
        self._store = store

    def ready(self, results: Sequence[EpisodeResult]) -> Parcel:
        """The results without tokens, images, messages, and without the row, which the controller has."""
        columns = [_columns(result) for result in results]
        together = [number for number, result in enumerate(results) if not _has_images(result)]
        alone = [[number] for number, result in enumerate(results) if _has_images(result)]
        keys: dict[int, list[Hashable]] = {}
        for numbers in (together, *alone):
            values = [column for number in numbers for column in columns[number].values()]
            put = iter(self._store.put(values) if values else [])
            for number in numbers:
                keys[number] = [next(put) for _ in columns[number]]
        items = [_item(result, list(named)) for result, named in zip(results, columns, strict=True)]
        return Parcel(_pickled(items), [key for number in range(len(items)) for key in keys[number]], self._store)


def _columns(result: EpisodeResult) -> dict[str, Stored]:
    """What is put into the store; of a result that has to be judged all of it."""
    if result.to_judge is not None:
        return {_WHOLE: object_array([result])}
    blocks = {} if result.kept is None else result.kept.columns
    columns = fetched(list(blocks.values()))
    return {name: columns[block] for name, block in blocks.items()}


def _has_images(result: EpisodeResult) -> bool:
    return any(output.multi_modal_data for output in result.outputs)


def _item(result: EpisodeResult, names: list[str]) -> _Item:
    named = Episode(uid=result.episode.uid, sample=result.episode.sample, row={}, sampling_params={})
    if result.to_judge is not None:
        return _Item(EpisodeResult(episode=named, termination=result.termination), None, names)
    light = replace(result, episode=named, outputs=[_sequence(output) for output in result.outputs], kept=None)
    return _Item(light, None if result.kept is None else result.kept.sequences, names)


def _pickled(items: list[_Item]) -> bytes | list[_Item]:
    try:
        return pickle.dumps(items, pickle.HIGHEST_PROTOCOL)
    except Exception:  # an agent loop may add fields of any kind, such as objects of a script's own classes
        return items


def _sequence(output: AgentLoopOutput) -> AgentLoopOutput:
    """How a sequence went, and nothing that is as large as the model's inputs."""
    return output.model_copy(
        update={
            "prompt_ids": [],
            "response_ids": [],
            "response_mask": [],
            "response_logprobs": None,
            "routed_experts": None,
            "multi_modal_data": None,
            "mm_processor_kwargs": None,
            "mm_processor_output": None,
            "messages": [],
        }
    )
