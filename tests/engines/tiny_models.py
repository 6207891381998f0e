"""Random models of several architectures, a few thousand parameters each, and batches for them."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, Gemma2Config, GPTNeoXConfig, LlamaConfig, PreTrainedConfig, Qwen2Config

from agentverl.engines.fsdp.engine import FSDPEngine
from agentverl.engines.settings import EngineSettings, MicroBatchSettings, OptimizerSettings
from agentverl.protocol.columns import Columns
from agentverl.protocol.data_proto import DataProto
from agentverl.protocol.ragged import Ragged

VOCABULARY = 61
_SIZE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen2": Qwen2Config(**_SIZE, num_key_value_heads=2, tie_word_embeddings=True),
    "qwen2_sliding": Qwen2Config(
        **_SIZE, num_key_value_heads=2, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "llama": LlamaConfig(**_SIZE, num_key_value_heads=4, tie_word_embeddings=False),
    "gemma2": Gemma2Config(
        **_SIZE, num_key_value_heads=2, head_dim=8, sliding_window=6, attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
    ),
    "gpt_neox": GPTNeoXConfig(**_SIZE, attention_dropout=0.3, hidden_dropout=0.3),
}  # fmt: skip


def engine_of(
    name: str = "qwen2",
    *,
    max_tokens: int | None = None,
    max_sequences: int | None = None,
    optimizer: OptimizerSettings | None = None,
    **settings: Any,
) -> FSDPEngine:
    """An engine that is ready, with the same random weights for the same architecture."""
    limits = MicroBatchSettings(max_tokens=max_tokens, max_sequences=max_sequences)
    engine = FSDPEngine(
        EngineSettings(
            model=CONFIGS[name],
            optimizer=optimizer or OptimizerSettings(lr=1e-2),
            train_micro_batch=limits,
            infer_micro_batch=limits,
            **settings,
        )
    )
    engine.initialize()
    return engine


def padded_reference(engine: FSDPEngine) -> Any:
    """transformers' own model with the engine's weights and its eager attention."""
    config = engine.model.model.config
    model = AutoModelForCausalLM.from_config(type(config).from_dict(config.to_dict()), attn_implementation="eager")
    model.load_state_dict(engine.model.model.state_dict())
    return model.eval()


def batch_of(lengths: list[tuple[int, int]], seed: int = 0, **columns: Ragged) -> DataProto:
    """Rows with these prompt and response lengths: random ids, masks, temperatures, advantages and weights."""
    random = torch.Generator().manual_seed(seed)

    def tokens(sizes: list[int]) -> Ragged:
        return Ragged.from_lengths(torch.randint(0, VOCABULARY, (sum(sizes),), generator=random), sizes)

    prompts, responses = tokens([prompt for prompt, _ in lengths]), tokens([response for _, response in lengths])
    total = len(responses.values)
    mask = (torch.rand(total, generator=random) < 0.7).long()
    choices = torch.tensor([0.6, 1.0, 1.3])[torch.randint(0, 3, (total,), generator=random)]
    return DataProto(
        Columns(
            {
                "prompts": prompts,
                "responses": responses,
                "response_mask": responses.like(mask),
                "temperature": responses.like(torch.where(mask != 0, choices, 1.0)),
                "advantages": responses.like(torch.randn(total, generator=random)),
                "loss_weight": responses.like(mask / max(1, int(mask.sum()))),
                **columns,
            }
        )
    )


def reference_log_probs(model: Any, data: DataProto) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies (B, T) from one padded forward pass with an attention mask."""
    rows = [torch.cat([*row]) for row in zip(data.batch.ragged("prompts"), data.batch.ragged("responses"), strict=True)]
    ids = Ragged.from_list(rows)
    padded = ids.to_padded()
    attention_mask = (torch.arange(padded.shape[1]) < ids.lengths[:, None]).long()
    logits = model(input_ids=padded, attention_mask=attention_mask).logits
    responses, mask = data.batch.ragged("responses"), data.batch.ragged("response_mask").to_padded()
    temperature = data.batch.ragged("temperature").to_padded(1.0)
    width = int(responses.lengths.max())
    start_b = data.batch.ragged("prompts").lengths - 1
    index = (start_b[:, None] + torch.arange(width)).clamp(max=padded.shape[1] - 1)
    predicting = logits.gather(1, index[..., None].expand(-1, -1, logits.shape[-1]))
    log_softmax = torch.log_softmax(predicting / temperature[..., None], -1)
    log_probs = log_softmax.gather(2, responses.to_padded()[..., None])[..., 0]
    entropy = -(log_softmax.exp() * log_softmax).sum(-1)
    return torch.where(mask != 0, log_probs, 0.0), torch.where(mask != 0, entropy, 0.0)
