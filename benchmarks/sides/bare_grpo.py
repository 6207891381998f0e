"""Side of `step_vs_trl`: a bare PyTorch loop that decodes with a KV cache and takes one optimiser step a turn."""

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from turns import serve

MODEL, ROWS, PROMPTS, MICRO_BATCH = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
DTYPE = getattr(torch, sys.argv[5])
SAMPLES, NEW_TOKENS = 8, 64

tokenizer = AutoTokenizer.from_pretrained(MODEL)
model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
rows = [json.loads(line)["prompt"] for line in Path(ROWS).read_text().splitlines()]
encoded = tokenizer.apply_chat_template(rows, add_generation_prompt=True, return_tensors="pt", padding=True)
prompts = encoded["input_ids"]
cursor = itertools.count()


def autocast() -> Any:
    return torch.autocast("cpu", DTYPE, enabled=torch.float32 != DTYPE)


@torch.inference_mode()
def generate(input_ids: torch.Tensor) -> torch.Tensor:
    cache, sampled, step_input = DynamicCache(), [], input_ids
    for _ in range(NEW_TOKENS):
        logits = model(input_ids=step_input, past_key_values=cache, logits_to_keep=1).logits[:, -1].float()
        step_input = torch.multinomial(logits.softmax(-1), 1)
        sampled.append(step_input)
    return torch.cat(sampled, 1)


def rewards(tokens: torch.Tensor) -> torch.Tensor:
    texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return torch.tensor([sum(character.isdigit() for character in text) / max(len(text), 1) for text in texts])


def turn() -> dict[str, Any]:
    start = time.perf_counter()
    chosen = [next(cursor) % len(prompts) for _ in range(PROMPTS)]
    batch = prompts[chosen].repeat_interleave(SAMPLES, 0)
    model.eval()
    with autocast():
        completions = generate(batch)
    generated = time.perf_counter()
    scores = rewards(completions).view(PROMPTS, SAMPLES)
    advantages = ((scores - scores.mean(1, keepdim=True)) / (scores.std(1, keepdim=True) + 1e-6)).flatten()
    model.train()
    for part in torch.arange(len(batch)).split(MICRO_BATCH):
        ids = torch.cat([batch[part], completions[part]], 1).clone()
        with autocast():
            logits = model(input_ids=ids, logits_to_keep=NEW_TOKENS + 1).logits[:, :-1].float()
        log_probs = logits.log_softmax(-1).gather(-1, completions[part].clone()[..., None])[..., 0]
        ratio = (log_probs - log_probs.detach()).exp()
        loss = -(ratio * advantages[part, None]).sum() / completions.numel()
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "tokens": completions.numel(), "generation_seconds": generated - start}


if __name__ == "__main__":
    serve(turn)
