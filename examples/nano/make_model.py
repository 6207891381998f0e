"""Write the nano model's folder before training: its tokenizer, its chat template and random weights."""

import argparse
import json
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

import agentverl.data

CHAT_TEMPLATE = Path(agentverl.data.__file__).parent / "nano" / "chat_template.jinja"
END_OF_TURN, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"
CONTROL_TOKENS = [END_OF_TEXT, "<|im_start|>", END_OF_TURN]
TAG_TOKENS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
VOCABULARY = 480  # beside the control tokens: the 256 bytes and the words that demonstrations are made of


def build_tokenizer(demonstrations: Path) -> Qwen2Tokenizer:
    """Byte-level BPE with Qwen2's rules for what a word is: digits stand alone, and any text can be encoded."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = Qwen2Tokenizer().backend_tokenizer.pre_tokenizer
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(_texts(demonstrations), trainer)
    model = json.loads(trained.to_str())["model"]
    tokenizer = Qwen2Tokenizer(
        vocab=model["vocab"],
        merges=[tuple(merge) for merge in model["merges"]],
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE.read_text(),
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in TAG_TOKENS])
    return tokenizer


def _texts(demonstrations: Path) -> Iterator[str]:
    """The demonstrations as the model sees them, cut at control tokens."""
    renderer = Qwen2Tokenizer(chat_template=CHAT_TEMPLATE.read_text())
    control = re.compile("|".join(re.escape(token) for token in CONTROL_TOKENS + TAG_TOKENS))
    with demonstrations.open(encoding="utf-8") as file:
        for line in islice(file, 4000):
            row = json.loads(line)
            yield from control.split(renderer.apply_chat_template(row["messages"], tools=row["tools"], tokenize=False))


def build_model(tokenizer: Qwen2Tokenizer, seed: int) -> Qwen2ForCausalLM:
    """A Qwen2 of about 390 000 parameters with random weights."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        # A short base: all frequencies tell near positions apart, so copying is learnt five times sooner.
        rope_parameters={"rope_type": "default", "rope_theta": 300.0},
        initializer_range=0.05,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def main() -> None:
    """Write the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--demonstrations", type=Path, required=True, help="what the tokenizer learns its words from")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    tokenizer = build_tokenizer(arguments.demonstrations)
    tokenizer.save_pretrained(arguments.folder)
    build_model(tokenizer, arguments.seed).save_pretrained(arguments.folder)


if __name__ == "__main__":
    main()
