"""Attention in which the trajectories of a group share the keys and values of their prompt.

One function is registered with transformers under the name "agentrl". A forward pass hands it a context
through the model's keyword arguments, and the context does the attending:

- `PackedAttention`, for training and for reading prompts: all sequences lie end to end in one row, no
  padding; a segment attends to itself and, if it has a parent, to all of its parent. A group is one
  parent (the prompt) and its members, so the prompt passes through every layer once, and gradients of
  all members meet in it. Nothing travels between layers, so gradient checkpointing needs no care.
- `agentrl_cli.sampler.kv_cache.CachedAttention`, for generating against a cache.

Without a context the function is transformers' own sdpa, masks included: a model that was switched to
"agentrl" still works for everybody else. Attention dropout is never applied under a context: all
log-probabilities that meet in a ratio come from the same function.

Shapes: B rows, T tokens of a row, N packed tokens, H query heads, K key/value heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from agentrl_cli.errors import ModelError

IMPLEMENTATION = "agentrl"


class AttentionContext(Protocol):
    """What one forward pass attends to."""

    num_calls: int
    """Layers that have asked; a model that does not pass keyword arguments on leaves it at 0."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float
    ) -> torch.Tensor:
        """Return what the queries [B, H, T, D] read from keys and values [B, K, T, D], as [B, T, H, D]."""
        ...


@dataclass(frozen=True, slots=True)
class CausalModel:
    """The parts of a causal language model, adapters included, and the sizes that a cache needs."""

    decoder: torch.nn.Module
    """Token ids to final hidden states."""
    head: torch.nn.Module
    """Hidden states to logits."""
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def weight(self) -> torch.Tensor:
        """A weight, for its device and dtype."""
        return next(self.decoder.parameters())

    def hidden_states(self, ids: torch.Tensor, positions: torch.Tensor, *, context: AttentionContext) -> torch.Tensor:
        """Run the decoder on ids [B, T] at positions [B, T]; returns final hidden states [B, T, hidden].

        Raises:
            ModelError: the architecture does not hand the context to its attention.
        """
        context.num_calls = 0
        # a mask of four dimensions is taken as given: the model builds none, and ours is in the context
        no_mask = torch.empty(1, 1, 1, 1, device=ids.device)
        output = self.decoder(
            input_ids=ids, position_ids=positions, attention_mask=no_mask, use_cache=False, agentrl_attention=context
        )
        if context.num_calls < self.num_layers:
            raise ModelError(
                f"{type(self.decoder).__name__} hands its attention no context ({context.num_calls} of "
                f"{self.num_layers} layers asked)",
                hint="use an architecture like Qwen3, Qwen2 or Llama",
            )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden


def open_causal_model(model: torch.nn.Module) -> CausalModel:
    """Find decoder and head of a Hugging Face causal model, below adapters if it has any, and switch its attention.

    Raises:
        ModelError: the architecture does something with attention or logits that is not supported.
    """
    causal = model.get_base_model() if hasattr(model, "peft_config") else model  # type: ignore[operator]
    head = causal.get_output_embeddings() if isinstance(causal, PreTrainedModel) else None  # type: ignore[no-untyped-call]
    if not isinstance(causal, PreTrainedModel) or head is None:
        raise ModelError(f"{type(causal).__name__} is no causal language model of transformers")
    config = causal.config
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling", "attn_logit_softcapping"):
        if getattr(config, name, None) not in (None, 1.0):
            raise ModelError(f"{type(causal).__name__} has {name}={getattr(config, name)}, which is not supported")
    if other := set(getattr(config, "layer_types", None) or ()) - {"full_attention"}:
        raise ModelError(f"{type(causal).__name__} has layers of {sorted(other)}: only full attention is supported")
    if config._attn_implementation != IMPLEMENTATION:
        causal.set_attn_implementation(IMPLEMENTATION)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return CausalModel(
        decoder=causal.base_model,
        head=head,
        num_layers=config.num_hidden_layers,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
    )


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the packed row that attends to itself and to one earlier segment."""

    length: int
    parent: int = -1
    """Number of the segment that comes before this one in its sequence; -1 for none."""


class PackedAttention:
    """Attention of a packed row: each segment reads its parent and itself, causally."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        assert all(s.parent < i and s.length > 0 for i, s in enumerate(segments)), segments
        self.num_calls = 0
        self._segments = segments
        self._lengths = [s.length for s in segments]
        self._mask: torch.Tensor | None = None

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float
    ) -> torch.Tensor:
        """See `AttentionContext`; B is 1 and T the packed length."""
        # split has a backward pass that concatenates; slicing would write a full-size gradient per segment
        queries = torch.split(query, self._lengths, dim=2)
        keys, values = torch.split(key, self._lengths, dim=2), torch.split(value, self._lengths, dim=2)
        self.keep(layer, keys, values)
        outputs = []
        for i, segment in enumerate(self._segments):
            k, v, mask = keys[i], values[i], None
            if segment.parent >= 0:
                k = torch.cat([keys[segment.parent], k], dim=2)
                v = torch.cat([values[segment.parent], v], dim=2)
                mask = self._lower_right(segment, query)
            outputs.append(
                scaled_dot_product_attention(
                    queries[i], k, v, attn_mask=mask, is_causal=segment.parent < 0, scale=scale, enable_gqa=True
                )
            )
        return torch.cat(outputs, dim=2).transpose(1, 2)

    def keep(self, layer: int, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Hook for a cache: keys and values [1, K, length, D] of each segment."""

    def _lower_right(self, segment: Segment, query: torch.Tensor) -> torch.Tensor:
        """Return the mask of a segment behind its parent: query i sees keys 0 .. parent length + i."""
        prefix = self._lengths[segment.parent]
        if query.device.type != "cpu":
            return causal_lower_right(segment.length, prefix + segment.length)
        if self._mask is None:
            # on the diagonal j - i = widest; every (prefix, length) is a window into this one matrix
            widest = max(self._lengths[s.parent] for s in self._segments if s.parent >= 0)
            longest = max(s.length for s in self._segments if s.parent >= 0)
            mask = torch.full((longest, widest + longest), float("-inf"), dtype=query.dtype)
            self._mask = mask.triu_(widest + 1)
        start = self._mask.shape[1] - self._mask.shape[0] - prefix
        return self._mask[: segment.length, start : start + prefix + segment.length]


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    agentrl_attention: AttentionContext | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The function that transformers calls in every attention layer (its signature, hence the keyword arguments)."""
    if agentrl_attention is None:
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            sliding_window=sliding_window,
            **kwargs,
        )
    assert sliding_window is None, sliding_window
    agentrl_attention.num_calls += 1
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return agentrl_attention.attend(int(module.layer_idx), query, key, value, scale=scale), None  # type: ignore[arg-type]


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
