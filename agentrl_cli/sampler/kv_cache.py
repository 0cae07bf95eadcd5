"""Keys and values of sequences that are being generated, and attention against them.

Two stores, each one tensor a layer: `prefixes` holds the prompt of each group once, `rows` what
follows it in each trajectory (or the whole sequence of a trajectory without a group). Both grow by
chunks. Rows that generate are the first n rows, so decoding reads slices, never gathers.

Attention folds the rows of a group into the query dimension of their prefix, so its keys and values are
read once per group, not once per row; scores of both stores meet in one softmax. Query heads that share
a key/value head are folded the same way, so nothing is repeated.

Shapes: B rows of a pass, T new tokens of a row, R rows of the store, K key/value heads, Q query heads per
key/value head, D head size, P prefixes, G most rows of one prefix in a pass, S and W columns of prefix and row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agentrl_cli.sampler.attention import CausalModel, PackedAttention, Segment

_CHUNK = 32


class Store:
    """Keys and values of numbered places, zeroed so that nothing unset is NaN."""

    def __init__(self, model: CausalModel) -> None:
        weight = model.weight
        nothing = torch.zeros(2, 0, model.num_kv_heads, 0, model.head_dim, dtype=weight.dtype, device=weight.device)
        self._nothing = nothing
        self._layers = [nothing] * model.num_layers
        """Per layer [2, places, K, width, D]."""
        self.keys: list[torch.Tensor] = []
        """Per layer [places, K, width, D]."""
        self.values: list[torch.Tensor] = []

    @property
    def width(self) -> int:
        """Tokens that a place can hold."""
        return int(self._layers[0].shape[3])

    @property
    def num_places(self) -> int:
        """Places that there are."""
        return int(self._layers[0].shape[1])

    @property
    def num_bytes(self) -> int:
        """Memory that is held."""
        return sum(layer.nbytes for layer in self._layers)

    def reserve(self, places: int, width: int) -> None:
        """Make room for so many places of so many tokens; what is stored stays."""
        if places <= self.num_places and width <= self.width:
            return
        # growing by half keeps the copies, all in all, below the tokens written
        if width > self.width:
            width = -(-max(width, self.width * 3 // 2) // _CHUNK) * _CHUNK
        if places > self.num_places:
            places = max(places, self.num_places * 3 // 2)
        places, width = max(places, self.num_places), max(width, self.width)
        # layer by layer, so that no more than one layer is held twice
        self.keys, self.values = [], []
        for i, old in enumerate(self._layers):
            grown = old.new_zeros(2, places, old.shape[2], width, old.shape[4])
            grown[:, : old.shape[1], :, : old.shape[3]] = old
            self._layers[i] = grown
        self.keys, self.values = ([layer[part] for layer in self._layers] for part in (0, 1))

    def swap(self, a: int, b: int, *, width: int) -> None:
        """Exchange two places, as far as their first `width` tokens."""
        if a == b or not width:
            return
        for layer in self._layers:
            layer[:, [a, b], :, :width] = layer[:, [b, a], :, :width]

    def clear(self) -> None:
        """Give the memory back."""
        self._layers = [self._nothing] * len(self._layers)
        self.keys, self.values = [], []


class PromptAttention(PackedAttention):
    """Reads prompts that lie end to end, and stores their keys and values from column 0 on."""

    def __init__(self, lengths: Sequence[int], targets: Sequence[tuple[Store, int]]) -> None:
        super().__init__([Segment(length) for length in lengths])
        self._targets = targets

    def keep(self, layer: int, keys: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Store the keys and values [1, K, length, D] of each prompt."""
        for (store, place), key, value in zip(self._targets, keys, values, strict=True):
            store.keys[layer][place, :, : key.shape[2]] = key[0]
            store.values[layer][place, :, : value.shape[2]] = value[0]


@dataclass(frozen=True, slots=True)
class RowState:
    """Where one row of a pass stands."""

    place: int
    """In the row store."""
    length: int
    """Tokens that are stored there."""
    prefix_place: int = -1
    """In the prefix store; -1 for none."""
    prefix_length: int = 0


@dataclass(frozen=True, slots=True)
class Fold:
    """How the rows of a pass are gathered under their prefixes."""

    prefixes: torch.Tensor | None
    """Places of the prefixes that are read; None reads the first `num_prefixes`."""
    num_prefixes: int
    width: int
    """Columns S that are read."""
    rows_PG: torch.Tensor
    """Row of the pass at each (prefix, member), flat; unused members repeat row 0."""
    slots_B: torch.Tensor
    """Where each row of the pass stands in `rows_PG`; 0 for rows without a prefix."""
    has_prefix: torch.Tensor | None
    """[B, 1, 1, 1], 1 for rows with a prefix, else 0; None if all have one."""

    @classmethod
    def of(cls, rows: Sequence[RowState], *, device: torch.device) -> Fold | None:
        """Gather rows under their prefixes; None if no row has one."""
        members: dict[int, list[int]] = {}
        for i, row in enumerate(rows):
            if row.prefix_place >= 0:
                members.setdefault(row.prefix_place, []).append(i)
        if not members:
            return None
        used = sorted(members)
        has_prefix = [row.prefix_place >= 0 for row in rows]
        # few of many: copying those costs less than attending to all
        gathers = 2 * len(used) <= used[-1] + 1
        read = used if gathers else list(range(used[-1] + 1))
        most = max(map(len, members.values()))
        rows_PG = [0] * (len(read) * most)
        slots_B = [0] * len(rows)
        for p, place in enumerate(read):
            for g, row_number in enumerate(members.get(place, ())):
                rows_PG[p * most + g] = row_number
                slots_B[row_number] = p * most + g
        return cls(
            prefixes=torch.tensor(used, device=device) if gathers else None,
            num_prefixes=len(read),
            width=max(row.prefix_length for row in rows),
            rows_PG=torch.tensor(rows_PG, device=device),
            slots_B=torch.tensor(slots_B, device=device),
            has_prefix=None if all(has_prefix) else torch.tensor(has_prefix, device=device).view(-1, 1, 1, 1),
        )

    def read(self, stored: torch.Tensor) -> torch.Tensor:
        """Return the prefixes' share of a layer's store as [P, K, S, D]."""
        picked = stored[: self.num_prefixes] if self.prefixes is None else stored.index_select(0, self.prefixes)
        return picked[:, :, : self.width]

    def fold(self, x: torch.Tensor) -> torch.Tensor:
        """[B, K, QT, X] under prefixes: [P, K, G·QT, X]."""
        _, heads, queries, size = x.shape
        grouped = x.index_select(0, self.rows_PG).view(self.num_prefixes, -1, heads, queries, size)
        return grouped.transpose(1, 2).reshape(self.num_prefixes, heads, -1, size)

    def unfold(self, x: torch.Tensor, *, queries: int) -> torch.Tensor:
        """[P, K, G·QT, X] back to rows: [B, K, QT, X]."""
        prefixes, heads, _, size = x.shape
        members = x.view(prefixes, heads, -1, queries, size).transpose(1, 2).reshape(-1, heads, queries, size)
        return members.index_select(0, self.slots_B)


class CachedAttention:
    """Attention of rows that have T new tokens each, against what is stored of them; stores the new ones too."""

    def __init__(
        self, rows: Sequence[RowState], *, num_new: int, row_store: Store, prefix_store: Store, fold: Fold | None
    ) -> None:
        """Prepare a pass.

        Args:
            rows: One per row of the pass, in order.
            num_new: T. Rows with fewer new tokens are padded on the right: what is stored of the padding
                lies behind their length and is overwritten by their next tokens.
            row_store, prefix_store: The row store must have room for T more tokens of each row.
            fold: `Fold.of(rows)`; it is the same for as long as the same rows are decoded.
        """
        self.num_calls = 0
        self._rows, self._prefixes, self._fold = row_store, prefix_store, fold
        device = row_store.keys[0].device
        places = [row.place for row in rows]
        is_slice = places == list(range(len(places)))
        self._picked = None if is_slice else torch.tensor(places, device=device)
        self._num_rows = len(rows)
        self._num_new = num_new
        self._lengths = torch.tensor([row.length for row in rows], device=device)
        self._longest = max(row.length for row in rows)
        columns = row_store.width * row_store.keys[0].shape[1]
        place_B = torch.tensor(places, device=device) * columns
        head_K = torch.arange(row_store.keys[0].shape[1], device=device) * row_store.width
        new_T = torch.arange(num_new, device=device)
        offset = (place_B + self._lengths)[:, None, None] + head_K[:, None] + new_T
        self._targets = offset.flatten()
        self._prefix_mask = self._mask_prefixes(rows, device) if fold is not None else None
        self._mask = self._join_masks()

    def advance(self) -> None:
        """Go on to the next token of each row; the pass must have one new token a row."""
        assert self._num_new == 1
        self._lengths += 1
        self._longest += 1
        self._targets += 1
        self._mask = self._join_masks()

    @property
    def longest(self) -> int:
        """Tokens stored of the longest row, before this pass."""
        return self._longest

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float
    ) -> torch.Tensor:
        """See `AttentionContext`."""
        keys, values = self._write_and_read(layer, key, value)
        rows, heads, new, size = query.shape
        kv_heads = key.shape[1]
        folded = (query * scale).reshape(rows, kv_heads, -1, size)
        scores = torch.matmul(folded, keys.transpose(-1, -2))
        fold, split = self._fold, 0
        if fold is not None:
            split, queries = fold.width, folded.shape[2]
            above = torch.matmul(fold.fold(folded), fold.read(self._prefixes.keys[layer]).transpose(-1, -2))
            scores = torch.cat([fold.unfold(above, queries=queries), scores], dim=-1)
        scores.view(rows, kv_heads, -1, new, scores.shape[-1]).add_(self._mask)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
        output = torch.matmul(weights[..., split:], values)
        if fold is not None:
            above = torch.matmul(fold.fold(weights[..., :split]), fold.read(self._prefixes.values[layer]))
            read = fold.unfold(above, queries=queries)
            output += read if fold.has_prefix is None else read * fold.has_prefix
        return output.view(rows, heads, new, size).transpose(1, 2)

    def _write_and_read(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values; returns all of the pass's rows, [B, K, W, D]."""
        width = self._longest + self._num_new
        result = []
        for stored, new in ((self._rows.keys[layer], key), (self._rows.values[layer], value)):
            size = stored.shape[-1]
            stored.view(-1, size).index_copy_(0, self._targets, new.reshape(-1, size))
            picked = stored[: self._num_rows] if self._picked is None else stored.index_select(0, self._picked)
            result.append(picked[:, :, :width])
        return result[0], result[1]

    def _mask_prefixes(self, rows: Sequence[RowState], device: torch.device) -> torch.Tensor:
        """[B, 1, 1, T, S], 0 where the row has that token of its prefix, else -inf."""
        assert self._fold is not None
        lengths = torch.tensor([row.prefix_length for row in rows], device=device)
        columns = torch.arange(self._fold.width, device=device)
        mask = _additive(columns < lengths[:, None], self._rows.keys[0].dtype)
        return mask[:, None, None, None, :].expand(-1, 1, 1, self._num_new, -1)

    def _join_masks(self) -> torch.Tensor:
        """[B, 1, 1, T, S + W]: the prefix's mask, then the row's own, causal over its new tokens."""
        device = self._lengths.device
        columns = torch.arange(self._longest + self._num_new, device=device)
        last = self._lengths[:, None] + torch.arange(self._num_new, device=device)
        own = _additive(columns <= last[:, :, None], self._rows.keys[0].dtype)[:, None, None]
        return own if self._prefix_mask is None else torch.cat([self._prefix_mask, own], dim=-1)


def _additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, float("-inf"))
