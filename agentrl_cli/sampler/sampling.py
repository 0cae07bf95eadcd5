"""Draws tokens from logits, each request from its own stream of random numbers.

The uniform number of a token depends on its request's seed and its position in the completion alone;
it is turned into a token by inverting the distribution function. So what else is in the batch changes
nothing (beyond the last bits of the logits).

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from agentrl_cli.types import SamplingParams

_CHUNK = 64
_NO_LIMIT = 2**31


class UniformStream:
    """Uniform numbers in [0, 1) of one request, by position; counter-based (Philox), made in chunks."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.Philox(key=seed % 2**128))
        self._numbers: list[float] = []

    def at(self, position: int) -> float:
        """Return the number of a position, from 0."""
        while position >= len(self._numbers):
            self._numbers += self._generator.random(_CHUNK).tolist()
        return self._numbers[position]


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """How the rows of a batch are drawn; None where no row departs from plain sampling at temperature 1."""

    temperature_B1: torch.Tensor | None
    """Temperatures, 1 for greedy rows."""
    greedy_B: torch.Tensor | None
    top_p_B1: torch.Tensor | None
    top_k_B1: torch.Tensor | None
    """Tokens to keep; no limit is a number above any V."""

    @classmethod
    def of(cls, params: Sequence[SamplingParams], *, device: torch.device) -> DrawSettings:
        """Collect the settings of a batch."""

        def column(values: Sequence[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)

        temperatures = [p.temperature or 1.0 for p in params]
        greedy = [p.temperature == 0.0 for p in params]
        top_p = [p.top_p for p in params]
        top_k = [p.top_k or _NO_LIMIT for p in params]
        return cls(
            column(temperatures, torch.float32) if any(t != 1.0 for t in temperatures) else None,
            torch.tensor(greedy, device=device) if any(greedy) else None,
            column(top_p, torch.float32) if any(p < 1.0 for p in top_p) else None,
            column(top_k, torch.int64) if any(k < _NO_LIMIT for k in top_k) else None,
        )


def draw(logits: torch.Tensor, uniform_B: torch.Tensor, *, settings: DrawSettings) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row.

    Args:
        logits: [B, V].
        uniform_B: Numbers in [0, 1), float64.
        settings: Of the rows.

    Returns:
        Token ids [B], and their log-probabilities [B] in float32 under the full softmax of
        logits / temperature: top_p and top_k decide what may be drawn, not what is reported.
    """
    scaled = logits.float()
    if settings.temperature_B1 is not None:
        scaled = scaled / settings.temperature_B1
    logp = torch.log_softmax(scaled, dim=-1)
    weights = logp.exp()
    if settings.top_p_B1 is not None or settings.top_k_B1 is not None:
        weights = _keep_likely(weights, settings)
    cdf = weights.cumsum(dim=-1, dtype=torch.float64)
    # the first entry above u * total: never one of weight 0, since u < 1; only logits that are not finite reach the
    # clamp, and their log-probability says so
    target = uniform_B.unsqueeze(1) * cdf[:, -1:]
    ids = torch.searchsorted(cdf, target, right=True).clamp_(max=logits.shape[1] - 1)
    if settings.greedy_B is not None:
        ids = torch.where(settings.greedy_B.unsqueeze(1), logits.argmax(dim=-1, keepdim=True), ids)
    return ids.squeeze(1), logp.gather(1, ids).squeeze(1)


def _keep_likely(weights: torch.Tensor, settings: DrawSettings) -> torch.Tensor:
    """Set to 0 what top_k, and then top_p of the rest, leave out; the likeliest token always stays."""
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    if settings.top_k_B1 is not None:
        rank = torch.arange(weights.shape[1], device=weights.device)
        ordered = ordered.masked_fill(rank >= settings.top_k_B1, 0.0)
    if settings.top_p_B1 is not None:
        before = ordered.cumsum(dim=-1) - ordered
        ordered = ordered.masked_fill(before >= settings.top_p_B1 * ordered.sum(dim=-1, keepdim=True), 0.0)
    return torch.zeros_like(weights).scatter_(1, order, ordered)
