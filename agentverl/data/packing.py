"""Cut a batch of sequences into micro-batches: few, balanced, and within a budget of tokens or sequences."""

import heapq
from collections.abc import Sequence

from agentverl.errors import BadInputError


def micro_batches(
    lengths: Sequence[int], *, max_tokens: int | None, max_sequences: int | None, count_at_least: int = 1
) -> list[list[int]]:
    """Indices of `lengths` in micro-batches, each index in exactly one.

    A micro-batch holds at most `max_tokens` tokens and `max_sequences` sequences; None sets no bound. There are at
    least `count_at_least` micro-batches, empty ones where there are not enough sequences, so that ranks can run in
    lockstep. The largest comes first, so that too little memory shows at once; indices in one ascend. The longest
    sequences are dealt out first, each to the micro-batch that holds the fewest tokens (Graham's LPT rule).

    Raises:
        BadInputError: a sequence is longer than `max_tokens`, or a bound is below 1.
    """
    for name, bound in (("max_tokens", max_tokens), ("max_sequences", max_sequences)):
        if bound is not None and bound < 1:
            raise BadInputError(f"{name} is {bound}; a micro-batch holds at least 1")
    if max_tokens is not None and lengths and max(lengths) > max_tokens:
        raise BadInputError(
            f"a sequence of {max(lengths)} tokens does not fit into a micro-batch of at most {max_tokens} tokens; "
            "raise the token budget or shorten prompts and responses"
        )
    by_length = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    count = max(
        1,
        count_at_least,
        -(-sum(lengths) // max_tokens) if max_tokens else 1,
        -(-len(lengths) // max_sequences) if max_sequences else 1,
    )
    while (dealt := _deal(by_length, lengths, count, max_tokens, max_sequences)) is None:
        count += 1
    return dealt


def _deal(
    by_length: Sequence[int], lengths: Sequence[int], count: int, max_tokens: int | None, max_sequences: int | None
) -> list[list[int]] | None:
    """That many balanced micro-batches; None if they cannot hold all sequences."""
    batches: list[list[int]] = [[] for _ in range(count)]
    tokens = [0] * count
    open_batches = [(0, number) for number in range(count)]
    for index in by_length:
        if not open_batches:
            return None
        held, number = heapq.heappop(open_batches)
        if max_tokens is not None and held + lengths[index] > max_tokens:
            return None
        batches[number].append(index)
        tokens[number] = held + lengths[index]
        if max_sequences is None or len(batches[number]) < max_sequences:
            heapq.heappush(open_batches, (tokens[number], number))
    largest_first = sorted(range(count), key=lambda number: (-tokens[number], number))
    return [sorted(batches[number]) for number in largest_first]
