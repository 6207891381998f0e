"""Tiny models of several architectures, and what they say in transformers' own hands."""

import asyncio
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from agentverl.rollout.hf.replica import HFReplica
from agentverl.trajectory import TokenOutput

VOCABULARY = 96
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen2": Qwen2Config(**_SIZES),
    "llama": LlamaConfig(**_SIZES, tie_word_embeddings=True),
    # Every other layer looks back 8 tokens only, and attention scores are soft-capped.
    "gemma2": Gemma2Config(**_SIZES, head_dim=8, sliding_window=8, query_pre_attn_scalar=8),
}


@dataclass(frozen=True)
class Reference:
    """A model in transformers' own hands."""

    config: PreTrainedConfig
    model: Any

    @classmethod
    def make(cls, name: str, seed: int = 0) -> "Reference":
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(CONFIGS[name], attn_implementation="eager")
        return cls(CONFIGS[name], model.eval().requires_grad_(False))

    def weights(self) -> list[tuple[str, torch.Tensor]]:
        return list(self.model.named_parameters())

    def most_likely(self, prompt: list[int], answer: list[int]) -> list[int]:
        """The token of highest probability at each place of the answer, given those before it."""
        with torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([prompt + answer]), use_cache=False).logits[0]
        best: list[int] = logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()
        return best

    def log_probs(self, prompt: list[int], answer: list[int], temperature: float = 1.0) -> list[float]:
        """Of the answer's tokens, from one forward pass without any cache."""
        with torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([prompt + answer]), use_cache=False).logits[0]
        scaled = torch.log_softmax(logits[len(prompt) - 1 : -1].float() / temperature, dim=-1)
        picked: list[float] = scaled.gather(1, torch.tensor(answer)[:, None])[:, 0].tolist()
        return picked


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One printable character a token: id 2 is "!", id 34 is "A"."""
    pieces = ["<unk>", "<end>", *(chr(code) for code in range(33, 33 + VOCABULARY - 2))]
    backend = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="<unk>"))
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<end>")


async def steps_later(replica: HFReplica, count: int) -> None:
    """Wait until the server has done so many more steps."""
    target = (await replica.health())["steps"] + count
    for _ in range(10_000):
        if (await replica.health())["steps"] >= target:
            return
        await asyncio.sleep(0.001)
    raise TimeoutError(f"the server did not do {count} steps in 10 seconds")


async def generate(replica: HFReplica, request_id: str, prompt: list[int], **params: Any) -> TokenOutput:
    return await replica.generate(request_id, prompt_ids=prompt, sampling_params=params)
