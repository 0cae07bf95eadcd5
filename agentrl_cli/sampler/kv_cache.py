"""Keys and values that generation keeps: one block of slots for rows, and the prompts that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agentrl_cli.sampler.attention import Grid, Prefix, joined_attention, padding_bias

_GROWTH = 64
"""Tokens by which the slots grow when a row needs more."""


@dataclass(eq=False, slots=True)
class SharedPrompt:
    """A prompt that was computed once, with everything that its rows need of it."""

    ids: list[int]
    keys: list[torch.Tensor]
    """Per layer [K, Tp, D]."""
    values: list[torch.Tensor]
    last_state: torch.Tensor
    """Hidden state of its last token, [E]: the rows' first token is drawn from it."""
    num_rows: int = 0
    """Rows that hold on to it."""


class SlotCache:
    """Preallocated keys and values of the tokens after the prompt, [layers, 2, slots, K, S, D].

    S grows in steps up to what the longest row needs, so that memory follows use.
    """

    def __init__(self, slots: int, *, layers: int, kv_heads: int, head_dim: int, like: torch.Tensor) -> None:
        self._shape = (layers, 2, slots, kv_heads, head_dim)
        self._like = like
        self._data: torch.Tensor | None = None

    def reserve(self, length: int) -> None:
        """Make room for rows of `length` tokens."""
        if self._data is not None and self._data.shape[4] >= length:
            return
        layers, two, slots, kv_heads, head_dim = self._shape
        width = -(-length // _GROWTH) * _GROWTH
        grown = self._like.new_zeros((layers, two, slots, kv_heads, width, head_dim))
        if self._data is not None:
            grown[:, :, :, :, : self._data.shape[4]] = self._data
        self._data = grown

    def layer(self, layer: int) -> torch.Tensor:
        """Return [2, slots, K, S, D]."""
        assert self._data is not None
        return self._data[layer]

    def permute(self, slots: Sequence[int], sources: Sequence[int]) -> None:
        """Let each of `slots` hold what the slot beside it in `sources` held."""
        if self._data is not None and slots:
            self._data[:, :, list(slots)] = self._data[:, :, list(sources)]

    def drop(self) -> None:
        """Free the memory."""
        self._data = None


class PromptStack:
    """The prompts of the rows of a pass, stacked; built anew only when the set of prompts changes."""

    def __init__(self) -> None:
        self._prompts: list[SharedPrompt] = []
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._bias: torch.Tensor | None = None

    def prefix(self, prompts: Sequence[SharedPrompt]) -> Prefix:
        """Return what attention needs for rows with these prompts (one per row)."""
        distinct = list(dict.fromkeys(map(id, prompts)))
        if distinct != [id(p) for p in self._prompts]:
            self._stack(list({id(p): p for p in prompts}.values()))
        number = {key: i for i, key in enumerate(distinct)}
        device = self._keys[0].device
        grid = Grid.build([number[id(p)] for p in prompts], len(distinct), device)
        return Prefix(self._keys, self._values, self._bias, grid)

    def drop(self) -> None:
        """Free the memory."""
        self.__init__()  # type: ignore[misc]

    def _stack(self, prompts: list[SharedPrompt]) -> None:
        self._prompts = prompts
        layers = range(len(prompts[0].keys))
        self._keys = [_stacked([p.keys[layer] for p in prompts]) for layer in layers]
        self._values = [_stacked([p.values[layer] for p in prompts]) for layer in layers]
        lengths = torch.tensor([len(p.ids) for p in prompts], device=self._keys[0].device)
        self._bias = padding_bias(lengths, self._keys[0].shape[2], self._keys[0].dtype)


def _stacked(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack [K, T, D] of unequal T to [P, K, max T, D], zero on the right."""
    width = max(t.shape[1] for t in tensors)
    out = tensors[0].new_zeros((len(tensors), tensors[0].shape[0], width, tensors[0].shape[2]))
    for i, tensor in enumerate(tensors):
        out[i, :, : tensor.shape[1]] = tensor
    return out


@dataclass(frozen=True, slots=True)
class CachedPass:
    """New tokens [B, T] of rows that lie in the cache: they are written there, then attended to with the rest."""

    cache: SlotCache
    slots: slice | torch.Tensor
    """A leading slice (decoding) or the rows' slots [B]."""
    start: torch.Tensor
    """Own tokens that each row has already, [B]."""
    own_bias: torch.Tensor
    """[B, 1, T, S], -inf where a new token must not look."""
    prefix: Prefix

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Write the new keys and values behind each row's own, then join them with the prompt."""
        store = self.cache.layer(layer)
        rows, _, steps, _ = key.shape
        width = self.own_bias.shape[-1]
        slots = torch.arange(rows, device=key.device) if isinstance(self.slots, slice) else self.slots
        at = self.start[:, None] + torch.arange(steps, device=key.device)
        store[0].transpose(1, 2)[slots[:, None], at] = key.transpose(1, 2)
        store[1].transpose(1, 2)[slots[:, None], at] = value.transpose(1, 2)
        own = store[:, self.slots, :, :width]
        return joined_attention(query * scaling, own[0], own[1], self.own_bias, self.prefix, layer=layer)


def own_bias(start: torch.Tensor, steps: int, dtype: torch.dtype) -> torch.Tensor:
    """Return [B, 1, T, S]: new token t of a row sees its row's tokens up to start + t."""
    width = int(start.max()) + steps
    at = start[:, None, None] + torch.arange(steps, device=start.device)[None, :, None]
    hidden = torch.arange(width, device=start.device)[None, None] > at
    bias = torch.zeros(hidden.shape, dtype=dtype, device=start.device).masked_fill(hidden, -torch.inf)
    return bias[:, None]
