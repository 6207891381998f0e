"""Seconds spent in each phase of a step, under verl's names `timing_s/<phase>`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

# Phases whose time is also given per token; generation by response tokens, the others by all tokens.
_PER_TOKEN = ("gen", "ref", "values", "adv", "update_critic", "update_actor")


class Stopwatch:
    """Sums the seconds of named phases; phases may nest."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def metrics(self, *, total_tokens: int, response_tokens: int) -> dict[str, float]:
        """`timing_s/*`, `timing_per_token_ms/*` and throughput of one step."""
        metrics = {f"timing_s/{name}": seconds for name, seconds in self.seconds.items()}
        for name in _PER_TOKEN:
            tokens = response_tokens if name == "gen" else total_tokens
            if name in self.seconds and tokens:
                metrics[f"timing_per_token_ms/{name}"] = self.seconds[name] * 1000 / tokens
        step_seconds = self.seconds.get("step", 0.0)
        metrics["perf/total_num_tokens"] = total_tokens
        metrics["perf/time_per_step"] = step_seconds
        if step_seconds:
            metrics["perf/throughput"] = total_tokens / step_seconds
        return metrics
