"""Tokens a second of our sampler beside a bare decode loop, on the same weights and prompts.

The bare loop is what a machine can do at most with this model through torch: right-aligned prompts of one
batch in a preallocated KV cache, one token for every row in each pass, nothing else (no stops, no seeds per
row, no logprobs kept, nobody joins or leaves). Ours runs as in training, its prompts unshared (as in the
bare loop) and in groups of eight that share theirs. Reading the prompts counts on no side.

Prints one JSON object: tokens a second of each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from agentrl_cli.config.schema import TransformersSamplerConfig
from agentrl_cli.sampler.transformers import TransformersSampler
from agentrl_cli.types import SamplingParams, SessionKey


class BareLoop:
    """A decode loop over a Qwen3 module's own layers."""

    def __init__(self, model: PreTrainedModel, prompts: list[list[int]], *, num_tokens: int) -> None:
        self.model = model
        self.batch, self.width = len(prompts), max(map(len, prompts))
        config = model.config
        shape = (self.batch, config.num_key_value_heads, self.width + num_tokens, config.head_dim)
        self.caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in model.model.layers]
        self.ids = torch.tensor([[0] * (self.width - len(p)) + p for p in prompts])
        lengths = torch.tensor([len(p) for p in prompts])
        self.is_real = torch.arange(self.width + num_tokens) >= (self.width - lengths)[:, None]
        self.positions = (torch.arange(self.width) - (self.width - lengths)[:, None]).clamp(min=0)
        self.num_tokens = num_tokens

    def step(self, ids: torch.Tensor, positions: torch.Tensor, start: int) -> torch.Tensor:
        """Read [B, T] tokens that stand at `start` of the cache; return the logits after the last, [B, V]."""
        body, end = self.model.model, start + ids.shape[1]
        x = body.embed_tokens(ids)
        cos, sin = (part[:, None] for part in body.rotary_emb(x, positions))
        mask = self.is_real[:, None, None, :end]
        if ids.shape[1] > 1:
            mask = mask & torch.ones(ids.shape[1], end, dtype=torch.bool).tril(start)
        for layer, (keys, values) in zip(body.layers, self.caches, strict=True):
            attention = layer.self_attn
            hidden = layer.input_layernorm(x)
            split = (*ids.shape, -1, attention.head_dim)
            queries = rotate(attention.q_norm(attention.q_proj(hidden).view(split)).transpose(1, 2), cos, sin)
            keys[:, :, start:end] = rotate(
                attention.k_norm(attention.k_proj(hidden).view(split)).transpose(1, 2), cos, sin
            )
            values[:, :, start:end] = attention.v_proj(hidden).view(split).transpose(1, 2)
            mixed = torch.nn.functional.scaled_dot_product_attention(
                queries, keys[:, :, :end], values[:, :, :end], attn_mask=mask, enable_gqa=True
            )
            x = x + attention.o_proj(mixed.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.model.lm_head(body.norm(x[:, -1]))

    @torch.inference_mode()
    def tokens_per_s(self) -> float:
        """Read the prompts, then time the decoding."""
        logits = self.step(self.ids, self.positions, 0)
        positions = self.positions[:, -1:]
        start = time.perf_counter()
        for i in range(self.num_tokens):
            drawn = torch.multinomial(torch.softmax(logits, -1), 1)
            positions = positions + 1
            logits = self.step(drawn, positions, self.width + i)
        return self.batch * self.num_tokens / (time.perf_counter() - start)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Apply rotary position embeddings to [B, H, T, D]."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


def our_tokens_per_s(model: PreTrainedModel, prompts: list[list[int]], *, num_tokens: int) -> float:
    """Time the same number of tokens through our sampler: the time of a run less that of its first tokens."""
    long, short = (sample(model, prompts, num_tokens=n) for n in (num_tokens + 1, 1))
    return len(prompts) * num_tokens / (long - short)


def sample(model: PreTrainedModel, prompts: list[list[int]], *, num_tokens: int) -> float:
    """Return the seconds that one completion of every prompt takes; equal prompts form a group."""
    sampler = TransformersSampler(
        model,
        config=TransformersSamplerConfig(max_batch=len(prompts)),
        max_length=max(map(len, prompts)) + num_tokens,
        pad_token_id=0,
    )
    groups = {tuple(prompt): str(i) for i, prompt in enumerate(prompts)}

    async def all_at_once() -> None:
        calls = [
            sampler.generate(
                prompt, SamplingParams(num_tokens, seed=i), session=SessionKey(str(i), groups[tuple(prompt)])
            )
            for i, prompt in enumerate(prompts)
        ]
        done = await asyncio.gather(*calls)
        assert all(len(completion.ids) == num_tokens for completion in done)

    start = time.perf_counter()
    asyncio.run(all_at_once())
    return time.perf_counter() - start


def main() -> None:
    """Take the sides in turn, three times after a warm-up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", type=Path)
    job = json.loads(parser.parse_args().job.read_text())
    torch.set_num_threads(job["threads"])
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    batch, num_tokens = job["decode_batch"], job["decode_tokens"]
    texts = [problem["prompt"] for problem in job["problems"]][:batch]
    assert len(set(texts)) == batch, "the unshared arm needs as many problems as the batch has rows"
    unshared = [prompt_ids(tokenizer, text) for text in texts]
    shared = [prompt for prompt in unshared[: batch // 8] for _ in range(8)]
    rates: dict[str, list[float]] = {"bare loop": [], "agentrl": [], "agentrl, groups of 8": []}
    for _ in range(4):
        rates["bare loop"].append(BareLoop(model, unshared, num_tokens=num_tokens).tokens_per_s())
        rates["agentrl"].append(our_tokens_per_s(model, unshared, num_tokens=num_tokens))
        rates["agentrl, groups of 8"].append(our_tokens_per_s(model, shared, num_tokens=num_tokens))
    print(json.dumps({name: statistics.median(values[1:]) for name, values in rates.items()}))


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a conversation's start."""
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
    )
    return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])


if __name__ == "__main__":
    main()
