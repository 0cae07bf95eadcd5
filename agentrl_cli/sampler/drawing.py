"""Draws tokens from logits, each row by its own stream of numbers.

A row's n-th number depends on its seed and n alone (Philox, a counter-based generator), so what is
drawn never depends on what else is in the batch. The token is where the cumulative distribution passes
that number.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from agentrl_cli.types import SamplingParams

_BLOCK = 256


class UniformStream:
    """Numbers in [0, 1) for one completion."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=seed))
        self._block: list[float] = []
        self._next = 0

    def take(self) -> float:
        """Return the next number."""
        if self._next == len(self._block):
            self._block, self._next = self._generator.random(_BLOCK).tolist(), 0
        self._next += 1
        return self._block[self._next - 1]


def draw(
    logits: torch.Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Return one token per row and its log p under logits / temperature over the full vocabulary.

    Greedy rows (temperature 0) take the largest logit and report log p at temperature 1.

    Args:
        logits: [B, V].
        params: B settings.
        uniforms: B numbers in [0, 1); those of greedy rows are not looked at.
    """
    device = logits.device
    is_greedy = torch.tensor([p.temperature == 0.0 for p in params], device=device)
    temperature = torch.tensor([p.temperature or 1.0 for p in params], device=device)
    logp = torch.log_softmax(logits.float() / temperature[:, None], dim=-1)
    allowed = _restrict(logp, params)
    # float64: with a large vocabulary, float32 sums would swallow rare tokens
    cumulative = allowed.double().exp().cumsum(-1)
    target = torch.tensor(uniforms, dtype=torch.float64, device=device) * cumulative[:, -1]
    drawn = torch.searchsorted(cumulative, target[:, None], right=True).squeeze(1).clamp(max=logits.shape[-1] - 1)
    tokens = torch.where(is_greedy, logits.argmax(-1), drawn)
    chosen = logp.gather(1, tokens[:, None]).squeeze(1)
    return tokens.tolist(), chosen.tolist()


def _restrict(logp: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """Return log p with -inf where top_k or top_p cut a token off."""
    if all(p.top_p >= 1.0 and p.top_k == 0 for p in params):
        return logp
    ranked, order = logp.sort(-1, descending=True)
    top_p = torch.tensor([p.top_p for p in params], dtype=torch.float64, device=logp.device)
    top_k = torch.tensor([p.top_k or logp.shape[-1] for p in params], device=logp.device)
    # a token stays while those before it hold less than top_p, so the first one always does
    before = ranked.double().exp().cumsum(-1) - ranked.double().exp()
    cut = (before >= top_p[:, None]) | (torch.arange(logp.shape[-1], device=logp.device)[None] >= top_k[:, None])
    cut[:, 0] = False
    return logp.masked_fill(torch.zeros_like(cut).scatter(1, order, cut), -torch.inf)
