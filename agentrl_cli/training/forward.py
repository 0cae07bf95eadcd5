"""Log-probabilities and entropies of trajectories under a model, with a gradient.

A group's prompt is computed once and its rows continue it (`agentrl_cli.sampler.attention`). Only
positions that train are sent through the head, in chunks that are recomputed in the backward pass, so
that logits [tokens, V] never exist for a whole batch.

Shapes: P prompts of Tp tokens, B rows of T tokens after their prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch.utils.checkpoint import checkpoint

from agentrl_cli.sampler.attention import (
    ContinuationPass,
    Grid,
    Prefix,
    PromptPass,
    RowPass,
    decoder_of,
    padding_bias,
    run_decoder,
)
from agentrl_cli.types import Trajectory

HEAD_CHUNK_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Rows with the prompts that they continue; everything is right-padded."""

    prompt_ids: torch.Tensor
    """[P, Tp]."""
    prompt_len: torch.Tensor
    """[P]."""
    prompt_index: torch.Tensor
    """Which prompt each row continues, [B]."""
    ids: torch.Tensor
    """[B, T]."""
    length: torch.Tensor
    """[B]."""
    mask: torch.Tensor
    """Tokens that the policy generated, bool [B, T]."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Per token of a batch; 0 where the mask is 0."""

    logp: torch.Tensor
    """log p of each token under logits / temperature, float32 [B, T]."""
    entropy: torch.Tensor | None
    """Entropy in nats of the full softmax at temperature 1, float32 [B, T], without a gradient."""


def build_group_batch(trajectories: Sequence[Trajectory], *, pad_id: int, device: torch.device) -> GroupBatch:
    """Lay out trajectories; neighbours of one group share their prompt."""
    prompts: list[list[int]] = []
    index: list[int] = []
    for _, members in groupby(trajectories, key=lambda t: t.group_id):
        rows = list(members)
        assert all(row.prompt_ids == rows[0].prompt_ids for row in rows), f"group {rows[0].group_id} mixes prompts"
        index += [len(prompts)] * len(rows)
        prompts.append(rows[0].prompt_ids)
    return _batch(
        prompts, index, [t.ids for t in trajectories], [t.mask for t in trajectories], pad_id=pad_id, device=device
    )


def build_row_batch(
    rows: Sequence[tuple[list[int], list[int], list[int]]], *, pad_id: int, device: torch.device
) -> GroupBatch:
    """Lay out rows (prompt ids, continuation ids, mask) that share nothing."""
    prompts, ids, masks = (list(part) for part in zip(*rows, strict=True))
    return _batch(prompts, list(range(len(rows))), ids, masks, pad_id=pad_id, device=device)


def score_tokens(
    model: torch.nn.Module,
    batch: GroupBatch,
    *,
    temperature: float,
    with_entropy: bool = True,
    chunk_tokens: int = HEAD_CHUNK_TOKENS,
) -> TokenScores:
    """Return log-probabilities (and entropies) of a batch's generated tokens.

    Under gradient checkpointing each row recomputes its own prompt: keys shared across checkpointed
    layers would outlive them.
    """
    decoder, head = decoder_of(model)
    is_checkpointed = model.training and getattr(model, "is_gradient_checkpointing", False)
    every_row_alone = len(batch.prompt_ids) == len(batch.ids)
    run = _row_states if is_checkpointed or every_row_alone else _shared_states
    before = run(decoder, batch)[batch.mask]
    targets = batch.ids[batch.mask]
    logps, entropies = [], []
    for states, ids in zip(before.split(chunk_tokens), targets.split(chunk_tokens), strict=True):
        logp, entropy = checkpoint(
            _score_chunk, head, states, ids, temperature, with_entropy, use_reentrant=False, preserve_rng_state=False
        )
        logps.append(logp)
        entropies.append(entropy)
    zeros = torch.zeros(batch.ids.shape, dtype=torch.float32, device=batch.ids.device)
    if not logps:
        return TokenScores(zeros, zeros if with_entropy else None)
    logp_BT = zeros.masked_scatter(batch.mask, torch.cat(logps))
    return TokenScores(logp_BT, zeros.masked_scatter(batch.mask, torch.cat(entropies)) if with_entropy else None)


def _score_chunk(
    head: torch.nn.Module, states: torch.Tensor, ids: torch.Tensor, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log p and entropy of N tokens from the hidden states before them, [N] each."""
    logits = head(states).float()
    logp = torch.log_softmax(logits / temperature, dim=-1).gather(1, ids[:, None]).squeeze(1)
    with torch.no_grad():
        if not with_entropy:
            return logp, logp.detach()
        log_p = torch.log_softmax(logits, dim=-1)
        return logp, -(log_p.exp() * log_p).sum(-1)


def _shared_states(decoder: torch.nn.Module, batch: GroupBatch) -> torch.Tensor:
    """Return the hidden state before each token [B, T, E]; each prompt is computed once."""
    device = batch.ids.device
    width, steps = batch.prompt_ids.shape[1], batch.ids.shape[1]
    prompts = PromptPass()
    positions = torch.arange(width, device=device).expand(batch.prompt_ids.shape)
    prompt_states = run_decoder(decoder, batch.prompt_ids, positions, prompts)
    prefix = Prefix(
        prompts.keys,
        prompts.values,
        padding_bias(batch.prompt_len, width, prompt_states.dtype),
        Grid.build(batch.prompt_index.tolist(), len(batch.prompt_ids), device),
    )
    future = torch.full((steps, steps), -torch.inf, dtype=prompt_states.dtype, device=device).triu(1)
    positions = batch.prompt_len[batch.prompt_index, None] + torch.arange(steps, device=device)
    states = run_decoder(decoder, batch.ids, positions, ContinuationPass(prefix, future[None, None]))
    last = prompt_states[torch.arange(len(batch.prompt_len), device=device), batch.prompt_len - 1]
    return torch.cat([last[batch.prompt_index, None], states[:, :-1]], dim=1)


def _row_states(decoder: torch.nn.Module, batch: GroupBatch) -> torch.Tensor:
    """Return the hidden state before each token [B, T, E]; each row computes its own prompt."""
    device = batch.ids.device
    prompt_len = batch.prompt_len[batch.prompt_index]
    steps = batch.ids.shape[1]
    width = int((prompt_len + batch.length).max())
    at = torch.arange(width, device=device).expand(len(batch.ids), width)
    offset = at - prompt_len[:, None]
    prompts = batch.prompt_ids[batch.prompt_index].gather(1, at.clamp(max=batch.prompt_ids.shape[1] - 1))
    rows = torch.where(offset < 0, prompts, batch.ids.gather(1, offset.clamp(0, steps - 1)))
    states = run_decoder(decoder, rows, at, RowPass())
    before = (prompt_len[:, None] - 1 + torch.arange(steps, device=device)).clamp(max=width - 1)
    return states.gather(1, before[..., None].expand(-1, -1, states.shape[-1]))


def _batch(
    prompts: Sequence[Sequence[int]],
    index: Sequence[int],
    ids: Sequence[Sequence[int]],
    masks: Sequence[Sequence[int]],
    *,
    pad_id: int,
    device: torch.device,
) -> GroupBatch:
    for row, mask in zip(ids, masks, strict=True):
        assert len(row) == len(mask), (len(row), len(mask))
    return GroupBatch(
        prompt_ids=_padded(prompts, pad_id).to(device),
        prompt_len=torch.tensor([len(p) for p in prompts], device=device),
        prompt_index=torch.tensor(index, device=device),
        ids=_padded(ids, pad_id).to(device),
        length=torch.tensor([len(row) for row in ids], device=device),
        mask=_padded(masks, 0).bool().to(device),
    )


def _padded(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    width = max(1, max(map(len, rows)))
    out = torch.full((len(rows), width), value, dtype=torch.long)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    return out
