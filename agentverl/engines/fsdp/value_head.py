"""A value head: the model's output embedding gives way to one number a token."""

import torch
from transformers import PreTrainedModel

from agentverl.errors import BadInputError


def put_value_head(model: PreTrainedModel) -> None:
    """Replace the output embedding by one that gives a single number, 0 for all tokens until it is trained.

    So the model's weights, checkpoints and sharding stay those of any other model.

    Raises:
        BadInputError: the architecture has no output embedding to replace.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear) or model.base_model is model:
        raise BadInputError(f"{model.config.model_type} has no linear output embedding, so it cannot be a critic")
    for config in {id(one): one for one in (model.config, model.config.get_text_config(decoder=True))}.values():
        config.tie_word_embeddings = False
    value_head = torch.nn.Linear(head.in_features, 1, bias=False, device=head.weight.device, dtype=head.weight.dtype)
    torch.nn.init.zeros_(value_head.weight)
    model.set_output_embeddings(value_head)


def token_values(hidden: torch.Tensor, head: torch.nn.Linear) -> torch.Tensor:
    """(N) float32 values from final hidden states (N, H); computed in float32, as returns are compared with them."""
    return torch.mv(hidden.float(), head.weight.float()[0])
