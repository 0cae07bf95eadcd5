"""A small random model, and what the tests of the transformers sampler do with it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl_cli.config.schema import TransformersSamplerConfig
from agentrl_cli.sampler.transformers import TransformersSampler
from agentrl_cli.types import Completion, SessionKey

VOCAB = 97
STOP = 1


def build_model() -> Qwen3ForCausalLM:
    """A random two-layer model whose distributions are far from flat."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            initializer_range=0.2,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        return Qwen3ForCausalLM(config).eval()


def make(model: torch.nn.Module, *, max_batch: int = 128, max_length: int = 400) -> TransformersSampler:
    config = TransformersSamplerConfig(max_batch=max_batch)
    return TransformersSampler(model, config=config, max_length=max_length, pad_token_id=0)


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2, VOCAB) for _ in range(count)]


def key(trajectory: object, group: object = "") -> SessionKey:
    return SessionKey(str(trajectory), str(group))


def run(job: Coroutine[Any, Any, Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(60):
            return await job

    return asyncio.run(limited())


async def together(*jobs: Coroutine[Any, Any, Completion]) -> list[Completion]:
    return await asyncio.gather(*jobs)


@torch.no_grad()
def plain_logprobs(
    model: torch.nn.Module, prompt: Sequence[int], ids: Sequence[int], temperature: float
) -> list[float]:
    """Log-probabilities of a continuation from one plain forward pass over the whole sequence."""
    logits = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float() / temperature, -1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()
