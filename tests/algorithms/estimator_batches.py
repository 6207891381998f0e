"""Random batches with all columns that an advantage estimator may ask for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentverl.algorithms.estimation import estimate_advantages

COLUMNS = ("token_level_rewards", "values", "old_log_probs", "sum_pi_squared", "rollout_is_weights")
"""Inputs of (B, T) besides the mask and `turn_index`."""
CONFIG = {"gamma": 0.9, "gdpo_reward_keys": ["acc", "format"], "gdpo_reward_weights": [1.0, 0.5]}


@dataclass
class EstimatorBatch:
    """Columns (B, T) by name, and fields with one entry a row; some rows have no token, some groups one row."""

    columns: dict[str, Tensor]
    fields: dict[str, list[Any]]

    @classmethod
    def random(cls, seed: int, dtype: torch.dtype = torch.float64) -> "EstimatorBatch":
        random = np.random.default_rng(seed)
        rows, width = int(random.integers(1, 9)), int(random.integers(1, 12))

        def noise() -> Tensor:
            return torch.from_numpy(random.normal(size=(rows, width))).to(dtype)

        mask = torch.from_numpy((random.random((rows, width)) < random.choice([0.3, 0.7, 1.0])).astype(np.int64))
        columns = {name: noise() for name in COLUMNS}
        columns["old_log_probs"] = -columns["old_log_probs"].abs()
        columns["sum_pi_squared"] = columns["sum_pi_squared"].abs().clamp(max=1)
        columns["rollout_is_weights"] = columns["rollout_is_weights"].exp()
        columns["response_mask"] = mask
        columns["turn_index"] = torch.from_numpy(random.integers(0, 2, (rows, width)).cumsum(axis=1))
        fields: dict[str, list[Any]] = {
            "index": [(f"uid{random.integers(3)}", "main") for _ in range(rows)],
            "reward_baselines": random.normal(size=rows).tolist(),
            "state_keys": [[f"s{state}" for state in random.integers(0, 2, width + 1)] for _ in range(rows)],
            "acc": random.integers(0, 2, rows).astype(float).tolist(),
            "format": random.normal(size=rows).tolist(),
        }
        return cls(columns, fields)

    def __len__(self) -> int:
        return len(self.fields["index"])

    @property
    def mask(self) -> Tensor:
        return self.columns["response_mask"] != 0

    def mapped(self, change: Callable[[str, Tensor], Tensor]) -> "EstimatorBatch":
        """Each column as `change` makes it from its name and values."""
        return EstimatorBatch({name: change(name, column) for name, column in self.columns.items()}, self.fields)

    def rows(self, numbers: Sequence[int]) -> "EstimatorBatch":
        """The chosen rows, in that order."""
        chosen = torch.tensor(list(numbers), dtype=torch.int64)
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return EstimatorBatch(columns, {name: [field[row] for row in numbers] for name, field in self.fields.items()})

    def estimate(self, name: str, **others: Any) -> tuple[Tensor, Tensor]:
        """Advantages and returns (B, T) by the estimator of that name."""
        like = self.columns["token_level_rewards"]
        inputs: dict[str, Any] = {
            **self.columns,
            "index": self.fields["index"],
            "state_keys": self.fields["state_keys"],
            "reward_baselines": torch.tensor(self.fields["reward_baselines"], dtype=like.dtype),
            "non_tensor_batch": {key: np.array(self.fields[key]) for key in ("acc", "format")},
            "gamma": CONFIG["gamma"],
            "lam": 0.8,
            "config": CONFIG,
        }
        return estimate_advantages(name, inputs | others)
