"""What a loop says was sampled, held against what the server sampled: tokens are true or the trajectory is failed."""

from collections.abc import Sequence

from agentverl.rollout.record import Sampled
from agentverl.trajectory import AgentLoopOutput


def mismatch(outputs: Sequence[AgentLoopOutput], record: Sequence[Sampled], vocabulary: int) -> str | None:
    """Why the outputs are not true to the record; None if they are.

    Each run of mask-1 tokens must be what the server answered, in the context it was sampled in, with its
    log-probabilities; an answer may be cut short at its end, and carries loss in one place only. Other tokens have ids
    from 0 to below `vocabulary`, or such as were sampled: a model may have more tokens than its tokenizer.
    """
    unused = list(record)
    largest = max((max(sampled.token_ids, default=0) for sampled in record), default=0)
    for output in outputs:
        ids = output.prompt_ids + output.response_ids
        if ids and (min(ids) < 0 or max(ids) >= max(vocabulary, largest + 1)):
            return f"sequence {output.sequence_index}: token ids from {min(ids)} to {max(ids)}; there are {vocabulary}"
        reason = _explain(output, ids, unused)
        if reason is not None:
            return f"sequence {output.sequence_index}: {reason}"
    return None


def _runs(mask: list[int]) -> list[tuple[int, int]]:
    """[start, stop) of each run of ones; `index` searches at the speed of C."""
    runs: list[tuple[int, int]] = []
    stop = 0
    while True:
        try:
            start = mask.index(1, stop)
        except ValueError:
            return runs
        try:
            stop = mask.index(0, start)
        except ValueError:
            return [*runs, (start, len(mask))]
        runs.append((start, stop))


def _explain(output: AgentLoopOutput, ids: list[int], unused: list[Sampled]) -> str | None:
    """Take out of `unused` the answers that make up the runs of a sequence; the reason where none does."""
    first = len(output.prompt_ids)
    checked: tuple[Sampled, int] | None = None
    for begin, stop in _runs(output.response_mask):
        start = begin
        while start < stop:
            run = output.response_ids[start:stop]
            alike = (index for index, sampled in enumerate(unused) if _begins(run, sampled.token_ids))
            found = next((index for index in alike if unused[index].stands_at(ids, first + start, checked)), None)
            if found is None:
                if any(_begins(run, sampled.token_ids) for sampled in unused):
                    return f"response_ids[{start}:{stop}] were sampled after other tokens than stand before them"
                return f"response_ids[{start}:{stop}] have mask 1 but were not sampled, or carry loss twice"
            sampled = unused.pop(found)
            count = min(len(sampled.token_ids), len(run))
            said, known = output.response_logprobs, sampled.log_probs
            if said is not None and known is not None and said[start : start + count] != known[:count]:
                return f"response_logprobs[{start}:{start + count}] are not what the server answered"
            start += count
            checked = (sampled, first + start) if count == len(sampled.token_ids) else None
    return None


def _begins(run: list[int], token_ids: list[int]) -> bool:
    """Whether a run begins with an answer, or is the beginning of one."""
    count = min(len(token_ids), len(run))
    return count > 0 and token_ids[:count] == run[:count]


def rebuilt(record: Sequence[Sampled], trajectory_id: str) -> list[AgentLoopOutput]:
    """Sequences made from the record alone, for a loop that was cut short and kept its tokens to itself."""
    outputs: list[AgentLoopOutput] = []
    for sampled in record:
        last = outputs[-1] if outputs else None
        known = [] if last is None else last.prompt_ids + last.response_ids
        if last is None or sampled.prompt_ids[: len(known)] != known:
            last = AgentLoopOutput(
                prompt_ids=sampled.prompt_ids,
                response_ids=[],
                response_mask=[],
                response_logprobs=[],
                trajectory_id=trajectory_id,
                sequence_index=len(outputs),
            )
            outputs.append(last)
            known = sampled.prompt_ids
        between, tokens = sampled.prompt_ids[len(known) :], sampled.token_ids
        last.response_ids += between + tokens
        last.response_mask += [0] * len(between) + [1] * len(tokens)
        if last.response_logprobs is not None and sampled.log_probs is not None:
            last.response_logprobs += [0.0] * len(between) + sampled.log_probs
        else:
            last.response_logprobs = None
    return outputs
