"""Attention in which the rows of a group share their prompt's keys and values.

One attention function is registered with transformers under the name `agentrl`; what it does in a
forward pass is decided by the context that travels through the model as the keyword `agentrl`. Sampler
and trainer use the same arithmetic: a row's new tokens attend to its group's prompt (read once per
group: the rows of a group are folded into the query dimension) and to the row's own tokens, and the two
parts are joined in one softmax by their maxima and sums.

Shapes: B rows, P prompts, G most rows of one prompt, T new tokens, S own tokens, H heads, K key-value
heads, R = H / K, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from agentrl_cli.errors import ModelError

NAME = "agentrl"
_CONTEXT = "agentrl"


class AttentionContext(Protocol):
    """What attention does in one forward pass of the model."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Return [B, T, H, D] from query [B, H, T, D] and the new tokens' key and value [B, K, T, D]."""
        ...


def use_shared_attention(model: PreTrainedModel) -> None:
    """Switch a model to this attention for all its passes.

    Raises:
        ModelError: the model has layers that this attention does not cover.
    """
    AttentionInterface.register(NAME, _attention)
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise ModelError(
            f"{model.config.model_type} has layers of kinds {sorted(kinds)}; only full attention is supported",
            hint="use a model with full attention in every layer (Qwen2.5, Qwen3, Llama, SmolLM2)",
        )
    model.set_attn_implementation(NAME)


def decoder_of(model: torch.nn.Module) -> tuple[torch.nn.Module, torch.nn.Module]:
    """Return the stack of layers that ends in hidden states, and the head that turns them into logits."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    return base.get_decoder(), base.get_output_embeddings()


def run_decoder(
    decoder: torch.nn.Module, ids: torch.Tensor, positions: torch.Tensor, context: AttentionContext
) -> torch.Tensor:
    """Return hidden states [B, T, E] of ids [B, T] at positions [B, T] under a context."""
    output = decoder(input_ids=ids, position_ids=positions, use_cache=False, **{_CONTEXT: context})
    return output.last_hidden_state


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Serve transformers' call; extra keywords belong to other implementations."""
    assert dropout == 0.0, "attention dropout would change log-probabilities from pass to pass"
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    context: AttentionContext = kwargs[_CONTEXT]
    return context.attend(int(module.layer_idx), query, key, value, factor), None


@dataclass(slots=True)
class PromptPass:
    """Causal attention over right-padded rows; keeps keys and values of every layer.

    Padding stands after a row's tokens, so causality alone hides it.
    """

    keys: list[torch.Tensor] = field(default_factory=list)
    """Per layer [P, K, Tp, D]."""
    values: list[torch.Tensor] = field(default_factory=list)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Attend causally."""
        assert layer == len(self.keys), (layer, len(self.keys))
        self.keys.append(key)
        self.values.append(value)
        return _causal(query, key, value, scaling)


class RowPass:
    """Causal attention over right-padded rows; keeps nothing (and so bears gradient checkpointing)."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Attend causally."""
        return _causal(query, key, value, scaling)


def _causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float) -> torch.Tensor:
    out = functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Grid:
    """Lays rows out as [P, G] by their prompt, so that a group's queries meet its prompt in one product."""

    num_prompts: int
    width: int
    cells: torch.Tensor | None
    """Row of each cell [P * G] (an empty cell repeats row 0); None where rows already lie so."""
    places: torch.Tensor | None
    """Cell of each row [B]; None where rows already lie so."""

    @classmethod
    def build(cls, prompt_of_row: Sequence[int], num_prompts: int, device: torch.device) -> Grid:
        """Lay out rows by the number of their prompt."""
        members: list[list[int]] = [[] for _ in range(num_prompts)]
        for row, prompt in enumerate(prompt_of_row):
            members[prompt].append(row)
        width = max(map(len, members))
        cells, places = [0] * (num_prompts * width), [0] * len(prompt_of_row)
        for prompt, rows in enumerate(members):
            for i, row in enumerate(rows):
                cells[prompt * width + i] = row
                places[row] = prompt * width + i
        if cells == places:
            return cls(num_prompts, width, None, None)
        return cls(num_prompts, width, torch.tensor(cells, device=device), torch.tensor(places, device=device))

    def fold(self, rows: torch.Tensor) -> torch.Tensor:
        """[B, K, N, D] -> [P, K, G * N, D]."""
        if self.cells is not None:
            rows = rows[self.cells]
        _, heads, n, size = rows.shape
        grid = rows.view(self.num_prompts, self.width, heads, n, size).transpose(1, 2)
        return grid.reshape(self.num_prompts, heads, self.width * n, size)

    def unfold(self, grid: torch.Tensor) -> torch.Tensor:
        """[P, K, G * N, D] -> [B, K, N, D]."""
        _, heads, n, size = grid.shape
        rows = grid.view(self.num_prompts, heads, self.width, n // self.width, size).transpose(1, 2)
        rows = rows.reshape(self.num_prompts * self.width, heads, n // self.width, size)
        return rows if self.places is None else rows[self.places]


@dataclass(frozen=True, slots=True)
class Prefix:
    """The prompts that the rows of a pass continue."""

    keys: Sequence[torch.Tensor]
    """Per layer [P, K, Tp, D]."""
    values: Sequence[torch.Tensor]
    bias: torch.Tensor | None
    """[P, 1, 1, Tp], -inf on padding; None where nothing is padded."""
    grid: Grid


def padding_bias(lengths: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor | None:
    """Return [P, 1, 1, width] with -inf from each length on, or None if all lengths equal the width."""
    if bool((lengths == width).all()):
        return None
    hidden = torch.arange(width, device=lengths.device)[None] >= lengths[:, None]
    bias = torch.zeros(hidden.shape, dtype=dtype, device=lengths.device).masked_fill(hidden, -torch.inf)
    return bias[:, None, None]


@dataclass(frozen=True, slots=True)
class ContinuationPass:
    """Rows [B, T] that follow a shared prompt, attending to it and causally to themselves (training)."""

    prefix: Prefix
    own_bias: torch.Tensor
    """[1, 1, T, T], -inf above the diagonal."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Join prompt and own tokens."""
        return joined_attention(
            query * scaling, key, value, self.own_bias, self.prefix, layer=layer
        )


def joined_attention(
    query: torch.Tensor,
    own_key: torch.Tensor,
    own_value: torch.Tensor,
    own_bias: torch.Tensor,
    prefix: Prefix,
    *,
    layer: int,
) -> torch.Tensor:
    """Return attention over prompt and own tokens as one softmax, [B, T, H, D].

    Args:
        query: Scaled, [B, H, T, D].
        own_key: [B, K, S, D]; own_value likewise.
        own_bias: Added to the scores of own tokens, broadcast to [B, 1, T, S].
        prefix: The prompts; `layer` picks their keys and values.
    """
    rows, heads, steps, size = query.shape
    kv_heads = own_key.shape[1]
    repeats = heads // kv_heads
    flat = query.reshape(rows, kv_heads, repeats * steps, size)
    own_scores = flat @ own_key.transpose(-1, -2)
    own_scores = own_scores.view(rows, kv_heads, repeats, steps, -1) + own_bias[:, :, None]
    own = _partial(own_scores.view(rows, kv_heads, repeats * steps, -1), own_value)
    scores = prefix.grid.fold(flat) @ prefix.keys[layer].transpose(-1, -2)
    if prefix.bias is not None:
        scores = scores + prefix.bias
    shared = tuple(prefix.grid.unfold(part) for part in _partial(scores, prefix.values[layer]))
    out = _join(own, shared)
    return out.view(rows, heads, steps, size).transpose(1, 2)


_Partial = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _partial(scores: torch.Tensor, values: torch.Tensor) -> _Partial:
    """Return (unnormalised output, sum, maximum) of a softmax over one part of the keys."""
    top = scores.detach().amax(-1, keepdim=True)
    weights = torch.exp(scores - top)
    return weights @ values, weights.sum(-1, keepdim=True), top


def _join(a: _Partial, b: tuple[torch.Tensor, ...]) -> torch.Tensor:
    top = torch.maximum(a[2], b[2])
    scale_a, scale_b = torch.exp(a[2] - top), torch.exp(b[2] - top)
    return (a[0] * scale_a + b[0] * scale_b) / (a[1] * scale_a + b[1] * scale_b)
