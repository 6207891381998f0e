"""The trajectories of one journal teach the same: to a plain loop of PyTorch, to the worker of the local launcher, and
to one, two and four ranks. `ppo_epochs` is 2, so that the ratio leaves 1."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentverl.data.model_folder import resolve_model_path
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged
from agentverl.settings.root import ActorRolloutRefSettings
from agentverl.single_controller.local import LocalWorkerGroup
from agentverl.single_controller.worker import WorkerClass
from agentverl.tracking.journal import read_journal
from agentverl.workers.actor_rollout_ref import ActorRolloutRefWorker, PolicyRun
from agentverl.workers.losses import loss_weight
from tests.engines.ranks import on_ranks

JOURNAL = Path(__file__).parent / "journal"
PROMPTS_A_STEP = 3
EPOCHS = 2
LEARNING_RATE, ENTROPY_COEFFICIENT, CLIP_RATIO, CLIP_RATIO_C, CLIP_GRAD = 1e-3, 0.01, 0.2, 3.0, 1.0
CONFIG = ActorRolloutRefSettings.model_validate(
    {
        "model": {"path": "nano"},
        "actor": {
            "ppo_max_token_len_per_gpu": 400,
            "entropy_coeff": ENTROPY_COEFFICIENT,
            "clip_ratio": CLIP_RATIO,
            "clip_ratio_c": CLIP_RATIO_C,
            "grad_clip": CLIP_GRAD,
            "optim": {"lr": LEARNING_RATE, "weight_decay": 0.0},
            "fsdp_config": {"dtype": "float32"},
        },
    }
)


@dataclass
class Learnt:
    """What is compared."""

    log_probs: torch.Tensor
    """Of all policy tokens of all steps, before each step's update."""
    entropy: list[float]
    grad_norm: list[float]
    loss: list[float]
    """One number an optimiser step."""
    weights: dict[str, torch.Tensor]


def sequences() -> list[list[dict[str, Any]]]:
    """Of each step the sequences, each with its advantage relative to the group."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in read_journal(JOURNAL):
        groups.setdefault(record["uid"], []).append(record)
    rows = []
    for _, group in sorted(groups.items()):
        rewards = torch.tensor([record["reward"] for record in group])
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        rows.append([{**r["outputs"][0], "advantage": float(a)} for r, a in zip(group, advantages, strict=True)])
    return [
        [row for group in rows[start : start + PROMPTS_A_STEP] for row in group]
        for start in range(0, len(rows), PROMPTS_A_STEP)
    ]


def batches() -> Iterator[DataProto]:
    """The same as batches of the workers."""
    for step in sequences():
        masks = Ragged.from_list([torch.tensor(row["response_mask"]) for row in step])
        advantage_b = torch.tensor([row["advantage"] for row in step])
        columns = {
            "prompts": Ragged.from_list([torch.tensor(row["prompt_ids"]) for row in step]),
            "responses": Ragged.from_list([torch.tensor(row["response_ids"]) for row in step]),
            "response_mask": masks,
            "advantages": masks.like(torch.repeat_interleave(advantage_b, masks.lengths) * masks.values),
        }
        batch = DataProto(Columns(columns))
        batch.batch["loss_weight"] = loss_weight(batch, "token-mean")
        yield batch


def plain_distribution(model: Any, row: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of a sequence's policy tokens."""
    prompt, response = row["prompt_ids"], row["response_ids"]
    logits = model(input_ids=torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    sampled = torch.tensor(row["response_mask"]) != 0
    log_softmax = torch.log_softmax(logits[sampled], -1)
    log_probs = log_softmax.gather(1, torch.tensor(response)[sampled, None])[:, 0]
    return log_probs, -(log_softmax.exp() * log_softmax).sum(-1)


def learnt_by_a_plain_loop() -> Learnt:
    model = AutoModelForCausalLM.from_pretrained(resolve_model_path("nano").path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    learnt = Learnt(torch.zeros(0), [], [], [], {})
    for step in sequences():
        with torch.no_grad():
            old = [plain_distribution(model, row)[0] for row in step]
        learnt.log_probs = torch.cat([learnt.log_probs, *old])
        for _ in range(EPOCHS):
            losses, entropies = [], []
            for row, old_log_probs in zip(step, old, strict=True):
                log_probs, entropy = plain_distribution(model, row)
                advantage, ratio = row["advantage"], (log_probs - old_log_probs).exp()
                clipped = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - CLIP_RATIO, 1 + CLIP_RATIO))
                if advantage < 0:
                    clipped = clipped.clamp(max=-advantage * CLIP_RATIO_C)
                losses.append(clipped)
                entropies.append(entropy)
            mean_entropy = torch.cat(entropies).mean()
            loss = torch.cat(losses).mean() - ENTROPY_COEFFICIENT * mean_entropy
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_GRAD)
            optimizer.step()
            for numbers, number in ((learnt.loss, loss), (learnt.entropy, mean_entropy), (learnt.grad_norm, norm)):
                numbers.append(float(number.detach()))
    learnt.weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return learnt


class OneRank:
    """The worker of one rank, which sees its share of each batch."""

    def __init__(self, worker: Any, rank: int, size: int) -> None:
        self.worker, self.rank, self.size = worker, rank, size

    def learn(self) -> Learnt:
        learnt = Learnt(torch.zeros(0), [], [], [], {})
        for batch in batches():
            mine = batch.chunk(self.size)[self.rank]
            mine.batch["old_log_probs"] = self.worker.compute_log_prob(mine).batch["log_probs"]
            sampled = mine.batch.ragged("response_mask").values != 0
            learnt.log_probs = torch.cat([learnt.log_probs, mine.batch.ragged("old_log_probs").values[sampled]])
            for _ in range(EPOCHS):
                metrics = self.worker.update_actor(mine)
                for name in ("loss", "entropy", "grad_norm"):
                    getattr(learnt, name).append(metrics[f"actor/{name}"])
        return learnt


def policy_run() -> PolicyRun:
    return PolicyRun(device="cpu")


def learnt_on_a_rank() -> Learnt:
    worker = ActorRolloutRefWorker(CONFIG, policy_run())
    worker.init_model()
    learnt = OneRank(worker, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])).learn()
    learnt.weights = dict(worker.actor.get_per_tensor_param())
    return learnt


def learnt_by_the_local_launcher() -> Learnt:
    group = LocalWorkerGroup(WorkerClass(ActorRolloutRefWorker, (CONFIG, policy_run())))
    group.init_model()
    learnt = OneRank(group, 0, 1).learn()
    learnt.weights = dict(group.workers[0].actor.get_per_tensor_param())
    return learnt


@pytest.fixture(scope="module")
def expected() -> Learnt:
    return learnt_by_a_plain_loop()


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Relative to the second."""
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


def assert_learnt_the_same(ours: Learnt, expected: Learnt) -> None:
    for name in ("entropy", "grad_norm", "loss"):
        assert getattr(ours, name) == pytest.approx(getattr(expected, name), rel=1e-4), name
    start = AutoModelForCausalLM.from_pretrained(resolve_model_path("nano").path, dtype=torch.float32)
    changes = [
        torch.cat(
            [(learnt.weights[name] - parameter.detach()).flatten() for name, parameter in start.named_parameters()]
        )
        for learnt in (ours, expected)
    ]
    assert float(changes[1].norm()) > 0.1
    assert distance(changes[0], changes[1]) <= 1e-3


def test_the_ratio_leaves_1(expected: Learnt) -> None:
    assert expected.loss[0] != pytest.approx(expected.loss[1], rel=1e-2)


def test_the_local_launcher_learns_what_a_plain_loop_learns(expected: Learnt) -> None:
    ours = learnt_by_the_local_launcher()
    assert distance(ours.log_probs, expected.log_probs) <= 1e-4
    assert_learnt_the_same(ours, expected)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_ranks_learn_what_a_plain_loop_learns(size: int, expected: Learnt) -> None:
    learnt = on_ranks(size, learnt_on_a_rank)
    for ours in learnt:
        assert_learnt_the_same(ours, expected)
    assert distance(in_order([ours.log_probs for ours in learnt]), expected.log_probs) <= 1e-4


def in_order(of_ranks: list[torch.Tensor]) -> torch.Tensor:
    """The policy tokens of all ranks, step by step in the order of the batches."""
    parts, start = [], [0] * len(of_ranks)
    for batch in batches():
        for rank, mine in enumerate(batch.chunk(len(of_ranks))):
            count = int(mine.batch.ragged("response_mask").values.sum())
            parts.append(of_ranks[rank][start[rank] : start[rank] + count])
            start[rank] += count
    return torch.cat(parts)
