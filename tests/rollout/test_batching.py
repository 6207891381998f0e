"""Trajectories become rows: every token in place, each score once."""

from typing import Any

from agentverl.protocol.column_store import resolve
from agentverl.rollout.batching import assemble
from agentverl.rollout.episode import Episode, EpisodeResult, Group
from agentverl.rollout.keeper import Keeper
from agentverl.trajectory import AgentLoopOutput, Termination, Turn


def output(mask: list[int], **fields: Any) -> AgentLoopOutput:
    count = len(mask)
    values: dict[str, Any] = {
        "prompt_ids": [1, 2],
        "response_ids": list(range(10, 10 + count)),
        "response_mask": mask,
        "response_logprobs": [-0.5 * bit for bit in mask],
        "trajectory_id": "0-1/0",
        "turns": [Turn(role="assistant", start=0, stop=2, temperature=0.5, reward=0.25)],
        "extra_fields": {"num_tool_calls": 1},
        "version_spans": [(count, 3)],
    }
    return AgentLoopOutput(**{**values, **fields})


def batch_of(*outputs: AgentLoopOutput, score: float | None = 1.0, **row: Any) -> Any:
    episode = Episode(uid="0-1", sample=0, row={"data_source": "sums", **row}, sampling_params={})
    result = EpisodeResult(
        episode=episode, outputs=list(outputs), score=score, termination=Termination.MAX_TURNS, components={"acc": 1.0}
    )
    Keeper().keep(result)
    return resolve(
        assemble([Group(uid="0-1", row=episode.row, results=[result], failures=[])], meta_info={"global_steps": 4})
    )


def test_a_sequence_becomes_a_row() -> None:
    batch = batch_of(output([1, 1, 0, 1, 0]))
    assert batch.batch["prompts"][0].tolist() == [1, 2]
    assert batch.batch["responses"][0].tolist() == [10, 11, 12, 13, 14]
    assert batch.batch["response_mask"][0].tolist() == [1, 1, 0, 1, 0]
    assert batch.batch["rollout_log_probs"][0].tolist() == [-0.5, -0.5, 0.0, -0.5, 0.0]
    assert batch.batch["temperature"][0].tolist() == [0.5, 0.5, 1.0, 1.0, 1.0]
    assert batch.batch["token_level_scores"][0].tolist() == [0.0, 0.25, 0.0, 1.0, 0.0]
    fields = {name: column[0] for name, column in batch.non_tensor_batch.items()}
    assert fields["uid"] == "0-1"
    assert fields["data_source"] == "sums"
    assert fields["termination"] == "max_turns"
    assert (fields["tool_call_count"], fields["min_weight_version"]) == (1, 3)
    assert fields["reward_components"] == {"acc": 1.0}
    assert batch.meta_info["global_steps"] == 4


def test_the_score_lands_once_in_each_role_on_its_last_policy_token() -> None:
    batch = batch_of(
        output([1, 1], sequence_index=1, turns=[]),
        output([1, 1], sequence_index=0, turns=[]),
        output([0, 0], sequence_index=2, turns=[]),
        output([1, 0], sequence_index=3, turns=[], role="critic", parent="0-1/0/1"),
    )
    assert list(batch.non_tensor_batch["sequence_index"]) == [0, 1, 2, 3]
    rows = [row.tolist() for row in batch.batch["token_level_scores"].unbind()]
    assert rows == [[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]


def test_greedy_turns_count_as_temperature_one_and_others_stay_out() -> None:
    greedy = output([1, 1], turns=[Turn(role="assistant", start=0, stop=2, temperature=0.0)], response_logprobs=None)
    batch = batch_of(greedy, output([1], sequence_index=1, trainable=False))
    assert len(batch) == 1
    assert batch.batch["temperature"][0].tolist() == [1.0, 1.0]
    assert batch.batch["rollout_log_probs"][0].tolist() == [0.0, 0.0]


def test_an_empty_response_and_an_empty_batch_are_batches_too() -> None:
    batch = batch_of(output([], turns=[]), score=0.5)
    assert batch.batch["responses"].lengths.tolist() == [0]
    assert batch.non_tensor_batch["score"][0] == 0.5
    assert len(resolve(assemble([])).batch["response_mask"]) == 0
    untrained = batch_of(output([1], trainable=False))
    assert len(untrained) == 0
    assert len(untrained.batch["responses"]) == 0
