"""The embedded rollout server against a bare decode loop and against padded `model.generate`; the last line is JSON.

Usage: python benchmarks/hf_server.py [--rounds 3]

- `equal_lengths`: 64 requests of 24 + 64 tokens, against a loop that does nothing but decode with transformers' own
  cache and sample with `torch.multinomial`.
- `log_normal_lengths`: 256 requests of 24 tokens, at most 64 at a time, answers log-normal (median 32, sigma 1.0, at
  most 256), against `generate` on padded batches of 64.

Both sides run in turns in one process, on 2 threads; a case is the ratio of the medians of useful tokens a second.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from comparison import Case, report
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig, Qwen2Config

from agentverl.rollout.hf.replica import HFReplica
from agentverl.rollout.hf.settings import HFSettings

PROMPT_TOKENS, ANSWER_TOKENS, BATCH, VOCABULARY, THREADS = 24, 64, 64, 4096, 2

CONFIG = Qwen2Config(
    vocab_size=VOCABULARY,
    hidden_size=256,
    intermediate_size=768,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)


def prompts(count: int, random: np.random.Generator) -> list[list[int]]:
    return random.integers(0, VOCABULARY, (count, PROMPT_TOKENS)).tolist()


def answer_lengths(count: int, random: np.random.Generator) -> list[int]:
    return np.clip(random.lognormal(np.log(32), 1.0, count).round(), 1, 256).astype(int).tolist()


@torch.inference_mode()
def bare_loop(model: Any, batch: list[list[int]], tokens: int) -> None:
    """Decode with transformers' own cache, nothing else."""
    cache = DynamicCache(config=model.config)
    ids = torch.tensor(batch)
    for _ in range(tokens):
        logits = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1].float()
        log_probs = torch.log_softmax(logits, dim=-1)
        ids = torch.multinomial(log_probs.exp(), 1)
        log_probs.gather(1, ids).tolist()


@torch.inference_mode()
def padded_generate(model: Any, batch: list[list[int]], lengths: Sequence[int]) -> None:
    """`generate` until the longest answer of each batch of 64 is done."""
    for start in range(0, len(batch), BATCH):
        ids = torch.tensor(batch[start : start + BATCH])
        longest = max(lengths[start : start + BATCH])
        how = GenerationConfig(
            do_sample=True, max_new_tokens=longest, min_new_tokens=longest, pad_token_id=0, top_k=0, use_cache=True
        )
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=how)


def serve(replica: HFReplica, loop: asyncio.AbstractEventLoop, batch: list[list[int]], lengths: Sequence[int]) -> None:
    async def all_requests() -> None:
        outputs = await asyncio.gather(
            *(
                replica.generate(
                    str(number),
                    prompt_ids=ids,
                    sampling_params={"max_tokens": length, "ignore_eos": True, "seed": number},
                )
                for number, (ids, length) in enumerate(zip(batch, lengths, strict=True))
            )
        )
        assert [len(output.token_ids) for output in outputs] == list(lengths)

    loop.run_until_complete(all_requests())


def in_turns(ours: Callable[[], None], other: Callable[[], None], rounds: int, tokens: int) -> tuple[float, float]:
    """Median tokens a second of both sides, which run in turns."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for times, side in zip(taken, (ours, other), strict=True):
            start = time.perf_counter()
            side()
            times.append(time.perf_counter() - start)
    return tokens / statistics.median(taken[0]), tokens / statistics.median(taken[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    model = AutoModelForCausalLM.from_config(CONFIG, attn_implementation="sdpa").eval()
    loop = asyncio.new_event_loop()
    replica = HFReplica(CONFIG, settings=HFSettings(max_num_seqs=BATCH))
    loop.run_until_complete(replica.init_standalone())
    loop.run_until_complete(replica.update_weights(model.named_parameters(), 1))

    equal = prompts(BATCH, random)
    uneven, lengths = prompts(4 * BATCH, random), answer_lengths(4 * BATCH, random)
    serve(replica, loop, equal, [4] * BATCH)
    bare_loop(model, equal, 4)
    padded_generate(model, equal, [4] * BATCH)

    rates = in_turns(
        lambda: serve(replica, loop, equal, [ANSWER_TOKENS] * BATCH),
        lambda: bare_loop(model, equal, ANSWER_TOKENS),
        3 * rounds,  # short turns, which a busy machine disturbs most
        BATCH * ANSWER_TOKENS,
    )
    cases = [Case.of_rates("equal_lengths", *rates, "tokens/s", 0.85)]
    rates = in_turns(
        lambda: serve(replica, loop, uneven, lengths),
        lambda: padded_generate(model, uneven, lengths),
        rounds,
        sum(lengths),
    )
    cases.append(Case.of_rates("log_normal_lengths", *rates, "tokens/s", 2.5))
    loop.run_until_complete(replica.shutdown())
    loop.close()
    report(cases)


if __name__ == "__main__":
    main()
