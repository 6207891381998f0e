"""Which columns of a batch each call of the workers reads; no other has to be sent."""

from collections.abc import Sequence

from agentverl.protocol.data_proto import DataProto

MODEL_COLUMNS = ("prompts", "responses", "response_mask", "temperature", "multi_modal_data")
"""What a model's input is made of."""
ACTOR_COLUMNS = (
    *MODEL_COLUMNS,
    "advantages",
    "loss_weight",
    "old_log_probs",
    "ref_log_prob",
    "rollout_is_weights",
    "token_class",
)
CRITIC_COLUMNS = ("prompts", "responses", "response_mask", "multi_modal_data", "values", "returns", "loss_weight")


def model_inputs(batch: DataProto) -> DataProto:
    """The columns that a forward pass reads."""
    return selected(batch, MODEL_COLUMNS)


def actor_inputs(batch: DataProto) -> DataProto:
    """The columns that an update of the actor reads."""
    # Where there are no old log-probabilities, the server's are compared with the update's own.
    more = () if "old_log_probs" in batch.batch else ("rollout_log_probs",)
    return selected(batch, (*ACTOR_COLUMNS, *more))


def critic_inputs(batch: DataProto) -> DataProto:
    """The columns that the critic reads, for its values and for its update."""
    return selected(batch, CRITIC_COLUMNS)


def selected(batch: DataProto, names: Sequence[str]) -> DataProto:
    """Those of the named columns that the batch has, as values or references."""
    return batch.select(
        [name for name in names if name in batch.batch], [name for name in names if name in batch.non_tensor_batch]
    )
