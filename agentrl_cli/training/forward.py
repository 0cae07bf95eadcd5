"""Log-probabilities and entropies of trajectories under a model: the forward pass that everything trains through.

All sequences lie end to end in one packed row without padding; rows of a group follow one copy of their
prompt (see `agentrl_cli.sampler.attention`), so a prompt is computed once per group, and gradients of all
its rows meet in it. This holds with gradient checkpointing too. Tokens behind a row's last trainable one
are left out. Only hidden states that predict a trainable token go through the head, in chunks whose
logits are computed again in the backward pass: [tokens, V] never exists for a whole batch.

Shapes: B rows, T tokens of the longest continuation, P prompts, S tokens of the longest prompt,
M trainable tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint

from agentrl_cli.sampler.attention import CausalModel, PackedAttention, Segment, open_causal_model
from agentrl_cli.types import Trajectory

MAX_KEPT_LOGITS = 2**22
"""Logits of a chunk up to this many are kept for the backward pass: computing them again would cost more."""


@dataclass(frozen=True, slots=True)
class GroupBatch:
    """Rows to score, and the prompts that they continue."""

    prompt_ids: torch.Tensor
    """[P, S], right-padded."""
    prompt_length: torch.Tensor
    """[P], at least 1."""
    prompt_index: torch.Tensor
    """[B], the prompt that each row continues; rows of one prompt stand together, prompts in order."""
    ids: torch.Tensor
    """[B, T], right-padded continuations."""
    length: torch.Tensor
    """[B]."""
    mask: torch.Tensor
    """[B, T] bool: tokens that the policy generated."""


@dataclass(frozen=True, slots=True)
class TokenScores:
    """What the model says about each token of the rows."""

    logp: torch.Tensor
    """[B, T] float32, log p under logits / temperature; 0 outside the mask. Carries gradients."""
    entropy: torch.Tensor
    """[B, T] float32, nats, full softmax at temperature 1; 0 outside the mask, and everywhere if not asked
    for. No gradients."""


def build_group_batch(
    trajectories: Sequence[Trajectory], pad_id: int, *, device: torch.device | None = None
) -> GroupBatch:
    """Batch trajectories; neighbours of one group share their prompt if it is the same.

    Args:
        trajectories: Rows in their order; groups stand together.
        pad_id: Any id; padding is never read.
        device: Where the batch goes; the CPU if not given (`score_tokens` brings it to the model).
    """
    prompts: list[list[int]] = []
    index: list[int] = []
    previous = None
    for trajectory in trajectories:
        if previous is None or previous.group_id != trajectory.group_id or previous.prompt_ids != trajectory.prompt_ids:
            prompts.append(trajectory.prompt_ids)
        index.append(len(prompts) - 1)
        previous = trajectory
    rows = [(t.ids, t.mask) for t in trajectories]
    return _batch(prompts, index, rows, pad_id=pad_id, device=device)


def build_row_batch(
    rows: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int]]],
    *,
    pad_id: int,
    device: torch.device | None = None,
) -> GroupBatch:
    """Batch rows of (prompt ids, continuation ids, mask of the continuation), each with a prompt of its own.

    What all prompts begin with (a system message, the tools) is laid out as one shared prompt, and the rest of
    each prompt as masked tokens of its row: the same numbers for less work.
    """
    assert rows, "no rows to batch"
    common = _common_start([prompt for prompt, _, _ in rows])
    if len(rows) == 1 or not common:
        prompts, index, start = [prompt for prompt, _, _ in rows], list(range(len(rows))), None
    else:
        prompts, index, start = [common], [0] * len(rows), len(common)
    laid_out = [
        ([*rest, *ids], [*[0] * len(rest), *mask])
        for rest, ids, mask in ((prompt[start:] if start else [], ids, mask) for prompt, ids, mask in rows)
    ]
    return _batch(prompts, index, laid_out, pad_id=pad_id, device=device)


def _common_start(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return the longest list that all rows begin with."""
    low, high = min(map(list, rows)), max(map(list, rows))
    differs = (i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b)
    return list(low[: next(differs, min(len(low), len(high)))])


def score_tokens(
    model: torch.nn.Module,
    batch: GroupBatch,
    *,
    temperature: float,
    chunk_tokens: int = 4096,
    with_entropy: bool = True,
) -> TokenScores:
    """Score the masked tokens of a batch; the first one of a row is predicted by the prompt's last token.

    Dropout of attention is never applied; other dropout acts as the module's mode says.

    Args:
        model: A Hugging Face causal language model, adapters included.
        batch: On any device; results come back on the same one.
        temperature: Of the log-probabilities.
        chunk_tokens: Trainable tokens that go through the head at once.
        with_entropy: Compute entropies as well.

    Raises:
        ModelError: the architecture is not supported.
    """
    causal = open_causal_model(model)
    layout = _pack(batch)
    rows, columns = layout.rows, layout.columns
    logp = torch.zeros(batch.ids.shape, dtype=torch.float32, device=batch.ids.device)
    entropy = torch.zeros_like(logp)
    if not len(rows):
        return TokenScores(logp, entropy)
    device = causal.weight.device
    hidden = causal.hidden_states(
        layout.ids.to(device), layout.positions.to(device), context=PackedAttention(layout.segments)
    )
    trainable = hidden[0].index_select(0, layout.predictors.to(device))
    targets = batch.ids[rows, columns].to(device)
    scores = [
        _score_chunk(causal, states, chosen, temperature=temperature, with_entropy=with_entropy)
        for states, chosen in zip(torch.split(trainable, chunk_tokens), torch.split(targets, chunk_tokens), strict=True)
    ]
    logp = logp.index_put((rows, columns), torch.cat([chunk[0] for chunk in scores]).to(logp.device))
    entropy[rows, columns] = torch.cat([chunk[1] for chunk in scores]).to(entropy.device)
    return TokenScores(logp, entropy)


@dataclass(frozen=True, slots=True)
class _Layout:
    """A batch as one packed row of N tokens."""

    ids: torch.Tensor
    """[1, N]."""
    positions: torch.Tensor
    """[1, N], position of each token in its sequence."""
    segments: list[Segment]
    predictors: torch.Tensor
    """[M], packed index of the token that predicts each trainable one."""
    rows: torch.Tensor
    """[M], and [M] columns: where the trainable tokens stand in the batch."""
    columns: torch.Tensor


def _pack(batch: GroupBatch) -> _Layout:
    """Lay prompts and rows end to end: a prompt, then all its rows, up to each row's last predictor."""
    rows, columns = batch.mask.cpu().nonzero(as_tuple=True)
    num_rows = len(batch.ids)
    fed = [0] * num_rows
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        fed[row] = column  # ascending: the last one stays
    ids, prompts = batch.ids.cpu(), batch.prompt_ids.cpu()
    members: list[list[int]] = [[] for _ in prompts]
    for row, prompt in enumerate(batch.prompt_index.tolist()):
        members[prompt].append(row)
    pieces: list[torch.Tensor] = []
    positions: list[torch.Tensor] = []
    segments: list[Segment] = []
    prompt_end = torch.zeros(num_rows, dtype=torch.int64)
    row_start = torch.zeros(num_rows, dtype=torch.int64)
    offset = 0
    for prompt, length in enumerate(batch.prompt_length.tolist()):
        parent = len(segments)
        segments.append(Segment(length))
        pieces.append(prompts[prompt, :length])
        positions.append(torch.arange(length))
        offset += length
        end = offset
        for row in members[prompt]:
            prompt_end[row], row_start[row] = end - 1, offset
            if not fed[row]:
                continue
            if len(members[prompt]) == 1:
                segments[parent] = Segment(length + fed[row])  # alone with its prompt: one causal segment
            else:
                segments.append(Segment(fed[row], parent))
            pieces.append(ids[row, : fed[row]])
            positions.append(torch.arange(length, length + fed[row]))
            offset += fed[row]
    predictors = torch.where(columns == 0, prompt_end[rows], row_start[rows] + columns - 1)
    return _Layout(
        torch.cat(pieces).unsqueeze(0),
        torch.cat(positions).unsqueeze(0),
        segments,
        predictors,
        rows.to(batch.ids.device),
        columns.to(batch.ids.device),
    )


def _score_chunk(
    model: CausalModel, hidden: torch.Tensor, targets: torch.Tensor, *, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities and entropies [m] of targets [m] predicted by hidden states [m, hidden]."""

    def compute(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model.head(states).float()
        tempered = torch.log_softmax(logits / temperature, dim=-1)
        logp = tempered.gather(1, targets.unsqueeze(1)).squeeze(1)
        if not with_entropy:
            return logp, torch.zeros_like(logp)
        with torch.no_grad():
            plain = tempered if temperature == 1.0 else torch.log_softmax(logits, dim=-1)
            entropy = -(plain.exp() * plain).sum(dim=-1)
        return logp, entropy

    vocab_size = int(model.head.weight.shape[0])  # type: ignore[index]
    if not torch.is_grad_enabled() or len(hidden) * vocab_size <= MAX_KEPT_LOGITS:
        return compute(hidden)
    result: tuple[torch.Tensor, torch.Tensor] = checkpoint(compute, hidden, use_reentrant=False)
    return result


def _batch(
    prompts: Sequence[Sequence[int]],
    index: Sequence[int],
    rows: Sequence[tuple[Sequence[int], Sequence[int]]],
    *,
    pad_id: int,
    device: torch.device | None,
) -> GroupBatch:
    assert all(prompts), "every row needs a prompt: its last token predicts the first of the row"
    assert all(len(ids) == len(mask) for ids, mask in rows), [(len(ids), len(mask)) for ids, mask in rows]
    return GroupBatch(
        prompt_ids=_pad(prompts, pad_id, device),
        prompt_length=torch.tensor([len(p) for p in prompts], device=device),
        prompt_index=torch.tensor(index, device=device),
        ids=_pad([ids for ids, _ in rows], pad_id, device),
        length=torch.tensor([len(ids) for ids, _ in rows], device=device),
        mask=_pad([mask for _, mask in rows], 0, device).bool(),
    )


def _pad(rows: Sequence[Sequence[int]], fill: int, device: torch.device | None) -> torch.Tensor:
    """Right-pad to [len(rows), longest] int64."""
    longest = max(map(len, rows), default=0)
    return torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], dtype=torch.int64, device=device)
