"""Continuous batching: requests join and leave at any step, and what was computed for a trajectory is kept.

One step takes in what is queued, in order, reads all their new tokens together, and draws one token for
every active row. Nothing here knows about asyncio; `agentrl_cli.sampler.transformers` is the asynchronous
surface, `agentrl_cli.sampler.rows` knows who holds which place of the cache.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from agentrl_cli.errors import SamplerError
from agentrl_cli.sampler.attention import CausalModel
from agentrl_cli.sampler.kv_cache import CachedAttention, Fold, PromptAttention, RowState
from agentrl_cli.sampler.rows import Places, Prefix, Request, Row
from agentrl_cli.sampler.sampling import DrawSettings, draw
from agentrl_cli.types import SamplingParams

MAX_PASS_TOKENS = 4096
"""Tokens that are read in one forward pass; bounds activations."""
MAX_PIECE_TOKENS = 512
"""Tokens that one row reads at once against its cache; bounds the scores of that pass."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What an engine has done since it was made."""

    tokens_read: int
    """Tokens of prompts and tool results that went through the model (cached ones do not)."""
    tokens_drawn: int
    num_passes: int
    """Decoding steps."""
    num_evictions: int
    """Parked trajectories whose cache was given to another one."""


@dataclass(slots=True)
class _Batch:
    """Tensors of the active rows."""

    version: int
    """Of the places; the batch is stale once they have another one."""
    ids: torch.Tensor
    """[B, 1], the tokens drawn last."""
    positions: torch.Tensor
    context: CachedAttention
    settings: DrawSettings


class Engine:
    """The queue, and the step."""

    def __init__(self, model: CausalModel, *, max_batch: int, pad_id: int) -> None:
        self._model = model
        self._pad_id = pad_id
        self._device = model.weight.device
        self._places = Places(model, max_rows=max_batch)
        self._queue: deque[Request] = deque()
        self._batch: _Batch | None = None
        self._tokens_read = self._tokens_drawn = self._num_passes = 0

    @property
    def has_work(self) -> bool:
        """Something is queued or generating."""
        return bool(self._queue or self._places.num_active)

    @property
    def usage(self) -> Usage:
        """What was done so far."""
        return Usage(self._tokens_read, self._tokens_drawn, self._num_passes, self._places.num_evictions)

    @property
    def cache_bytes(self) -> int:
        """Memory of the caches."""
        return self._places.row_store.num_bytes + self._places.prefix_store.num_bytes

    def requests(self) -> list[Request]:
        """Return everything queued or generating, in order of submission."""
        active = [row.request for row in self._places.active if row.request is not None]
        return sorted([*active, *self._queue], key=lambda request: request.number)

    def submit(self, request: Request) -> None:
        """Queue a request.

        Raises:
            SamplerError: its trajectory has a request already.
        """
        if request.session is not None and self._request_of(request.session.trajectory_id) is not None:
            raise SamplerError(f"trajectory {request.session.trajectory_id!r} is generating already")
        self._queue.append(request)

    def cancel(self, request: Request) -> None:
        """Forget a request and free its place; one that is done already is ignored."""
        if request in self._queue:
            self._queue.remove(request)
        for row in self._places.active:
            if row.request is request:
                self._places.free(row)

    def release(self, trajectory_id: str) -> Request | None:
        """Free the place of a trajectory, unless it has none; returns the request that this cut off."""
        request = self._request_of(trajectory_id)
        if request is not None and request in self._queue:
            self._queue.remove(request)
        if (row := self._places.row_of(trajectory_id)) is not None:
            self._places.free(row)
        return request

    def drop_caches(self, *, restart: bool) -> None:
        """Give all memory back; requests under way are queued again, from their first token if `restart`."""
        requests = self.requests()
        if restart:
            for request in requests:
                request.ids, request.logprobs = [], []
        self._queue = deque(requests)
        self._places.clear()
        self._batch = None

    def clear(self) -> list[Request]:
        """Forget everything; returns the requests that were under way."""
        self.drop_caches(restart=False)
        requests = list(self._queue)
        self._queue.clear()
        return requests

    @torch.no_grad()
    def step(self) -> list[Request]:
        """Take in queued requests and draw one token for every active row; returns the requests that are done.

        Raises:
            SamplerError: the logits are not finite.
        """
        finished: list[Request] = []
        if joining := self._admit():
            finished += self._join(joining)
        if self._places.num_active:
            finished += self._decode()
        return finished

    def _request_of(self, trajectory_id: str) -> Request | None:
        """Return what a trajectory has under way."""
        row = self._places.row_of(trajectory_id)
        if row is not None and row.request is not None:
            return row.request
        queued = (r for r in self._queue if r.session is not None and r.session.trajectory_id == trajectory_id)
        return next(queued, None)

    def _admit(self) -> list[Row]:
        """Give places to queued requests, in order; returns their rows."""
        joining: list[Row] = []
        if self._queue:
            self._places.expect(len(self._queue))
        queued = {r.session.trajectory_id for r in self._queue if r.session is not None}
        while self._queue and (row := self._places.take(self._queue[0], queued=queued)) is not None:
            self._queue.popleft()
            joining.append(row)
        return joining

    # --- reading ------------------------------------------------------------------------------------------

    def _join(self, rows: Sequence[Row]) -> list[Request]:
        """Read all new tokens of rows that join and draw their first tokens; returns requests done by that."""
        self._read_prompts(rows)
        while unread := [row for row in rows if row.unread]:
            unread.sort(key=lambda row: (min(len(row.unread), MAX_PIECE_TOKENS), row.place))
            for batch in _cut(unread):
                self._read_pieces(batch)
        hidden = []
        for row in rows:
            newest = row.hidden if row.hidden is not None or row.prefix is None else row.prefix.hidden
            assert newest is not None
            hidden.append(newest)
        settings = DrawSettings.of(_params(rows), device=self._device)
        self._draw(rows, torch.stack(hidden), settings)
        for row in rows:
            row.hidden = None
        return self._retire_finished(rows)

    def _read_prompts(self, rows: Sequence[Row]) -> None:
        """Read the prompts that nothing is stored of, end to end: new prefixes, and rows without one."""
        prompts: list[tuple[Prefix | Row, list[int]]] = [(p, p.ids) for p in self._places.prefixes if p.hidden is None]
        prompts += [(r, r.unread) for r in rows if r.prefix is None and not r.length]
        if not prompts:
            return
        self._places.prefix_store.reserve(
            len(self._places.prefixes), max((len(p.ids) for p in self._places.prefixes), default=0)
        )
        self._places.row_store.reserve(
            0, max((len(ids) for owner, ids in prompts if isinstance(owner, Row)), default=0)
        )
        start = 0
        while start < len(prompts):
            end, size = start + 1, len(prompts[start][1])
            while end < len(prompts) and size + len(prompts[end][1]) <= MAX_PASS_TOKENS:
                size += len(prompts[end][1])
                end += 1
            self._read_packed(prompts[start:end])
            start = end

    def _read_packed(self, prompts: Sequence[tuple[Prefix | Row, list[int]]]) -> None:
        lengths = [len(ids) for _, ids in prompts]
        stores = [
            self._places.prefix_store if isinstance(owner, Prefix) else self._places.row_store for owner, _ in prompts
        ]
        context = PromptAttention(lengths, [(s, owner.place) for s, (owner, _) in zip(stores, prompts, strict=True)])
        ids = torch.tensor([[token for _, ids in prompts for token in ids]], device=self._device)
        positions = torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0).to(self._device)
        hidden = self._model.hidden_states(ids, positions, context=context)[0]
        self._tokens_read += len(hidden)
        end = 0
        for owner, read in prompts:
            end += len(read)
            owner.hidden = hidden[end - 1].clone()  # a view would keep all of them
            if isinstance(owner, Row):
                owner.mark_read(len(read))

    def _read_pieces(self, rows: Sequence[Row]) -> None:
        """Read the next piece of each row against its cache, padded to the longest."""
        pieces = [row.unread[:MAX_PIECE_TOKENS] for row in rows]
        longest = max(map(len, pieces))
        self._places.row_store.reserve(0, max(row.length for row in rows) + longest)
        states = [row.state for row in rows]
        context = self._context(states, num_new=longest)
        ids = torch.tensor([piece + [self._pad_id] * (longest - len(piece)) for piece in pieces], device=self._device)
        positions = torch.tensor([[row.position] for row in rows]) + torch.arange(longest)
        hidden = self._model.hidden_states(ids, positions.to(self._device), context=context)
        for i, (row, piece) in enumerate(zip(rows, pieces, strict=True)):
            row.hidden = hidden[i, len(piece) - 1]
            row.mark_read(len(piece))
            self._tokens_read += len(piece)

    def _context(self, states: Sequence[RowState], *, num_new: int) -> CachedAttention:
        fold = Fold.of(states, device=self._device)
        return CachedAttention(
            states, num_new=num_new, row_store=self._places.row_store, prefix_store=self._places.prefix_store, fold=fold
        )

    # --- drawing ------------------------------------------------------------------------------------------

    def _decode(self) -> list[Request]:
        """Read the token that each active row drew last, and draw the next."""
        rows = self._places.active
        if self._batch is None or self._batch.version != self._places.version:
            self._batch = self._build_batch(rows)
        batch = self._batch
        hidden = self._model.hidden_states(batch.ids, batch.positions, context=batch.context)
        for row in rows:
            row.length += 1
        self._num_passes += 1
        drawn = self._draw(rows, hidden[:, 0], batch.settings)
        finished = self._retire_finished(rows)
        # the next pass needs a new batch if rows have left, or if it must grow the store
        if batch.version == self._places.version and batch.context.longest + 2 <= self._places.row_store.width:
            batch.ids = drawn.unsqueeze(1)
            batch.positions += 1
            batch.context.advance()
        else:
            self._batch = None
        return finished

    def _build_batch(self, rows: Sequence[Row]) -> _Batch:
        self._places.row_store.reserve(0, max(row.length for row in rows) + 1)
        last = [[row.request.ids[-1]] for row in rows if row.request is not None]
        return _Batch(
            version=self._places.version,
            ids=torch.tensor(last, device=self._device),
            positions=torch.tensor([[row.position] for row in rows], device=self._device),
            context=self._context([row.state for row in rows], num_new=1),
            settings=DrawSettings.of(_params(rows), device=self._device),
        )

    def _draw(self, rows: Sequence[Row], hidden: torch.Tensor, settings: DrawSettings) -> torch.Tensor:
        """Draw a token for each row from hidden states [B, hidden] and note it; returns the ids [B]."""
        requests = [row.request for row in rows if row.request is not None]
        numbers = [request.uniforms.at(len(request.ids)) for request in requests]
        uniform = torch.tensor(numbers, dtype=torch.float64).to(self._device)
        ids, logp = draw(self._model.head(hidden), uniform, settings=settings)
        logps = logp.tolist()
        if not math.isfinite(math.fsum(logps)):
            raise SamplerError("the logits are not finite", hint="the weights are broken; go back to a checkpoint")
        for request, token, value in zip(requests, ids.tolist(), logps, strict=True):
            request.ids.append(token)
            request.logprobs.append(value)
        self._tokens_drawn += len(requests)
        return ids

    def _retire_finished(self, rows: Sequence[Row]) -> list[Request]:
        finished = []
        for row in rows:
            if row.request is not None and row.request.is_finished:
                finished.append(row.request)
                self._places.retire(row)
        return finished


def _params(rows: Sequence[Row]) -> list[SamplingParams]:
    return [row.request.params for row in rows if row.request is not None]


def _cut(rows: Sequence[Row]) -> list[list[Row]]:
    """Cut rows, sorted by what they read, into passes of at most MAX_PASS_TOKENS padded tokens."""
    passes: list[list[Row]] = []
    for row in rows:
        length = min(len(row.unread), MAX_PIECE_TOKENS)
        if passes and length * (len(passes[-1]) + 1) <= MAX_PASS_TOKENS:
            passes[-1].append(row)
        else:
            passes.append([row])
    return passes
