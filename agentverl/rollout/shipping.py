"""Results made ready for another process: tokens and images go into a store, and references into their place."""

from collections.abc import Sequence
from dataclasses import replace

from agentverl.protocol.column_store import Block, ColumnStore, Stored, fetched
from agentverl.protocol.columns import object_array
from agentverl.rollout.episode import Episode, EpisodeResult
from agentverl.rollout.kept_sequences import Kept
from agentverl.trajectory import AgentLoopOutput


class Shipping:
    """Puts what trajectories leave into a store: at once for those without images, as each put takes a millisecond.

    Whoever needs one row fetches all that was put with it, so images are put alone.
    """

    def __init__(self, store: ColumnStore) -> None:
        self._store = store

    def ready(self, results: Sequence[EpisodeResult]) -> list[EpisodeResult]:
        """The results without tokens, images, messages, and without the row, which the controller has."""
        columns = [_columns(result) for result in results]
        together = [number for number, result in enumerate(results) if not _has_images(result)]
        alone = [[number] for number, result in enumerate(results) if _has_images(result)]
        blocks: dict[int, list[Block]] = {}
        for numbers in (together, *alone):
            values = [column for number in numbers for column in columns[number]]
            put = iter(self._store.put(values) if values else [])
            for number in numbers:
                blocks[number] = [Block(self._store, next(put)) for _ in columns[number]]
        return [_without_tokens(result, blocks[number]) for number, result in enumerate(results)]


def _columns(result: EpisodeResult) -> list[Stored]:
    """What is put into the store; of a result that has to be judged all of it."""
    if result.to_judge is not None:
        return [object_array([result])]
    blocks = [] if result.kept is None else list(result.kept.columns.values())
    columns = fetched(blocks)
    return [columns[block] for block in blocks]


def _has_images(result: EpisodeResult) -> bool:
    return any(output.multi_modal_data for output in result.outputs)


def _without_tokens(result: EpisodeResult, blocks: list[Block]) -> EpisodeResult:
    named = Episode(uid=result.episode.uid, sample=result.episode.sample, row={}, sampling_params={})
    if result.to_judge is not None:
        return EpisodeResult(episode=named, termination=result.termination, to_judge=blocks[0])
    kept = result.kept
    if kept is not None:
        kept = Kept(kept.sequences, dict(zip(kept.columns, blocks, strict=True)))
    return replace(result, episode=named, outputs=[_sequence(output) for output in result.outputs], kept=kept)


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
