"""Continuous batching: requests join and leave at any step, and what was computed for a trajectory is kept.

A place of the row store belongs to one trajectory from its first request until it is released. The
places that generate are the first ones (`_num_active`); those that wait for a tool ("parked") follow.
One step takes in what is queued, in order, reads all their new tokens together, and draws one token
for every active row.

Nothing here knows about asyncio; `agentrl_cli.sampler.transformers` is the asynchronous surface.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from agentrl_cli.errors import SamplerError
from agentrl_cli.sampler.attention import CausalModel
from agentrl_cli.sampler.kv_cache import CachedAttention, Fold, PromptAttention, RowState, Store
from agentrl_cli.sampler.sampling import DrawSettings, UniformStream, draw
from agentrl_cli.types import Completion, FinishReason, SamplingParams, SessionKey

MAX_PASS_TOKENS = 4096
"""Tokens that are read in one forward pass; bounds activations."""
MAX_PIECE_TOKENS = 512
"""Tokens that one row reads at once against its cache; bounds the scores of that pass."""


@dataclass(eq=False, slots=True)
class Request:
    """One completion being made."""

    number: int
    """Submission order."""
    prompt_ids: list[int]
    params: SamplingParams
    session: SessionKey | None
    limit: int
    """Most tokens to draw."""
    uniforms: UniformStream
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def is_finished(self) -> bool:
        """The last drawn token ends the completion."""
        return bool(self.ids) and (self.ids[-1] in self.params.stop_token_ids or len(self.ids) >= self.limit)

    def completion(self, *, weight_version: int) -> Completion:
        """Return the result."""
        stopped = self.ids[-1] in self.params.stop_token_ids
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Completion(self.ids, self.logprobs, reason, weight_version)


@dataclass(slots=True)
class Usage:
    """What the engine has done since it was made."""

    tokens_read: int = 0
    """Tokens of prompts and tool results that went through the model (cached ones do not)."""
    tokens_drawn: int = 0
    num_passes: int = 0
    """Decoding steps."""
    num_evictions: int = 0
    """Parked trajectories whose cache was given to another one."""


@dataclass(eq=False, slots=True)
class _Prefix:
    """The prompt of a group."""

    group_id: str
    ids: list[int]
    place: int
    num_rows: int = 0
    hidden: torch.Tensor | None = None
    """Final hidden state of its last token, [hidden]; None until it is read."""


@dataclass(eq=False, slots=True)
class _Row:
    """One place of the row store, and the trajectory that holds it."""

    place: int
    session: SessionKey | None
    prefix: _Prefix | None = None
    length: int = 0
    """Tokens stored behind the prefix."""
    tokens: list[int] = field(default_factory=list)
    """These tokens; not kept up to date while the row is active."""
    unread: list[int] = field(default_factory=list)
    hidden: torch.Tensor | None = None
    """Final hidden state of the newest token that was read, [hidden]."""
    request: Request | None = None
    parked_at: int = 0

    @property
    def state(self) -> RowState:
        prefix = self.prefix
        if prefix is None:
            return RowState(self.place, self.length)
        return RowState(self.place, self.length, prefix.place, len(prefix.ids))

    @property
    def position(self) -> int:
        """Position of the next token to be read."""
        return self.length + (len(self.prefix.ids) if self.prefix else 0)


@dataclass(slots=True)
class _Batch:
    """Tensors of the active rows; stays valid while no row joins or leaves."""

    ids: torch.Tensor
    """[B, 1], the tokens drawn last."""
    positions: torch.Tensor
    context: CachedAttention
    settings: DrawSettings


class Engine:
    """The rows, the prefixes, the queue, and the step."""

    def __init__(self, model: CausalModel, *, max_batch: int, pad_id: int) -> None:
        self.usage = Usage()
        self._model = model
        self._max_batch = max_batch
        self._pad_id = pad_id
        self._device = model.weight.device
        self._row_store, self._prefix_store = Store(model), Store(model)
        self._queue: deque[Request] = deque()
        self._rows: list[_Row] = []
        self._num_active = 0
        self._sessions: dict[str, _Row] = {}
        self._prefixes: list[_Prefix] = []
        self._groups: dict[str, _Prefix] = {}
        self._batch: _Batch | None = None
        self._clock = 0

    @property
    def has_work(self) -> bool:
        """Something is queued or generating."""
        return bool(self._queue or self._num_active)

    @property
    def cache_bytes(self) -> int:
        """Memory of both stores."""
        return self._row_store.num_bytes + self._prefix_store.num_bytes

    def requests(self) -> list[Request]:
        """Return everything queued or generating, in order of submission."""
        active = [row.request for row in self._rows if row.request is not None]
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
        for row in self._rows[: self._num_active]:
            if row.request is request:
                self._free(row)
                return

    def release(self, trajectory_id: str) -> Request | None:
        """Free the place of a trajectory, unless it has none; returns the request that this cut off."""
        request = self._request_of(trajectory_id)
        if request is not None and request in self._queue:
            self._queue.remove(request)
        if (row := self._sessions.get(trajectory_id)) is not None:
            self._free(row)
        return request

    def drop_caches(self, *, restart: bool) -> None:
        """Give all memory back; requests under way are queued again, from their first token if `restart`."""
        requests = self.requests()
        if restart:
            for request in requests:
                request.ids, request.logprobs = [], []
        self._queue = deque(requests)
        self._rows, self._num_active, self._sessions = [], 0, {}
        self._prefixes, self._groups = [], {}
        self._batch = None
        self._row_store.clear()
        self._prefix_store.clear()

    def clear(self) -> list[Request]:
        """Forget everything; returns the requests that were under way."""
        requests = self.requests()
        self._queue.clear()
        for row in self._rows:
            row.request = None
        self.drop_caches(restart=False)
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
        if self._num_active:
            finished += self._decode()
        return finished

    def _request_of(self, trajectory_id: str) -> Request | None:
        """Return what a trajectory has under way."""
        row = self._sessions.get(trajectory_id)
        if row is not None and row.request is not None:
            return row.request
        queued = (r for r in self._queue if r.session is not None and r.session.trajectory_id == trajectory_id)
        return next(queued, None)

    # --- places -------------------------------------------------------------------------------------------

    def _admit(self) -> list[_Row]:
        """Give places to queued requests, in order, and make their rows active."""
        joining: list[_Row] = []
        if self._queue:
            self._row_store.reserve(min(self._max_batch, len(self._rows) + len(self._queue)), 1)
        while self._queue:
            row = self._place_for(self._queue[0])
            if row is None:
                break
            row.request = self._queue.popleft()
            self._match(row, row.request)
            self._swap(row.place, self._num_active)
            self._num_active += 1
            joining.append(row)
        return joining

    def _place_for(self, request: Request) -> _Row | None:
        """Return the row of a request: its trajectory's, a new one, or one taken from a parked trajectory."""
        session = request.session
        if session is not None and session.trajectory_id in self._sessions:
            return self._sessions[session.trajectory_id]
        if len(self._rows) == self._max_batch:
            if self._num_active == len(self._rows):
                return None
            self._evict()
        row = _Row(place=len(self._rows), session=session)
        self._rows.append(row)
        if session is not None:
            self._sessions[session.trajectory_id] = row
            self._attach_prefix(row, request, session.group_id)
        return row

    def _evict(self) -> None:
        """Free the place that was parked first; one whose trajectory is queued to go on is taken last."""
        queued = {r.session.trajectory_id for r in self._queue if r.session is not None}

        def rank(row: _Row) -> tuple[bool, int]:
            return row.session is not None and row.session.trajectory_id in queued, row.parked_at

        self._free(min(self._rows[self._num_active :], key=rank))
        self.usage.num_evictions += 1

    def _attach_prefix(self, row: _Row, request: Request, group_id: str) -> None:
        """Let a new row share its group's prompt, if its own begins with it; the first row of a group sets it."""
        if not group_id:
            return
        prefix = self._groups.get(group_id)
        if prefix is None:
            prefix = _Prefix(group_id, request.prompt_ids, place=len(self._prefixes))
            self._prefixes.append(prefix)
            self._groups[group_id] = prefix
        elif request.prompt_ids[: len(prefix.ids)] != prefix.ids:
            return
        prefix.num_rows += 1
        row.prefix = prefix

    def _match(self, row: _Row, request: Request) -> None:
        """Find what of the request's sequence is stored, and what is still to be read."""
        sequence = request.prompt_ids + request.ids
        if row.prefix is not None:
            shared = len(row.prefix.ids)
            if sequence[:shared] != row.prefix.ids:
                self._detach_prefix(row)
                row.tokens, row.length, shared = [], 0, 0
            sequence = sequence[shared:]
        common = _common_length(row.tokens, sequence)
        if common == len(sequence) and common:
            common -= 1  # something must be read to have logits
        row.length = common
        row.tokens = row.tokens[:common]
        row.unread = sequence[common:]
        row.hidden = None

    def _detach_prefix(self, row: _Row) -> None:
        prefix, row.prefix = row.prefix, None
        if prefix is None:
            return
        prefix.num_rows -= 1
        if prefix.num_rows:
            return
        last = self._prefixes[-1]
        if last is not prefix:
            self._prefix_store.swap(prefix.place, last.place, width=self._prefix_store.width)
            last.place, self._prefixes[prefix.place] = prefix.place, last
            self._batch = None
        self._prefixes.pop()
        del self._groups[prefix.group_id]

    def _retire(self, row: _Row) -> None:
        """Take a row out of the active ones: park it for its trajectory's next turn, or free it."""
        request = row.request
        assert request is not None
        if row.session is None:
            self._free(row)
            return
        row.tokens = (request.prompt_ids + request.ids)[-1 - row.length : -1]
        self._deactivate(row)
        self._clock += 1
        row.parked_at = self._clock

    def _deactivate(self, row: _Row) -> None:
        row.request = None
        self._num_active -= 1
        self._swap(row.place, self._num_active)
        self._batch = None

    def _free(self, row: _Row) -> None:
        if row.request is not None:
            self._deactivate(row)
        self._swap(row.place, len(self._rows) - 1)
        self._rows.pop()
        self._detach_prefix(row)
        if row.session is not None:
            del self._sessions[row.session.trajectory_id]

    def _swap(self, a: int, b: int) -> None:
        """Exchange two rows, so that active, parked and free places stay apart."""
        if a == b:
            return
        first, second = self._rows[a], self._rows[b]
        self._row_store.swap(a, b, width=max(first.length, second.length))
        first.place, second.place = b, a
        self._rows[a], self._rows[b] = second, first

    # --- reading ------------------------------------------------------------------------------------------

    def _join(self, rows: Sequence[_Row]) -> list[Request]:
        """Read all new tokens of rows that join and draw their first tokens; returns requests done by that."""
        self._batch = None
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

    def _read_prompts(self, rows: Sequence[_Row]) -> None:
        """Read the prompts that nothing is stored of, end to end: new prefixes, and rows without one."""
        prompts: list[tuple[_Prefix | _Row, list[int]]] = [(p, p.ids) for p in self._prefixes if p.hidden is None]
        prompts += [(r, r.unread) for r in rows if r.prefix is None and not r.length]
        if not prompts:
            return
        self._prefix_store.reserve(len(self._prefixes), max((len(p.ids) for p in self._prefixes), default=0))
        self._row_store.reserve(0, max((len(ids) for owner, ids in prompts if isinstance(owner, _Row)), default=0))
        start = 0
        while start < len(prompts):
            end, size = start + 1, len(prompts[start][1])
            while end < len(prompts) and size + len(prompts[end][1]) <= MAX_PASS_TOKENS:
                size += len(prompts[end][1])
                end += 1
            self._read_packed(prompts[start:end])
            start = end

    def _read_packed(self, prompts: Sequence[tuple[_Prefix | _Row, list[int]]]) -> None:
        lengths = [len(ids) for _, ids in prompts]
        stores = [self._prefix_store if isinstance(owner, _Prefix) else self._row_store for owner, _ in prompts]
        context = PromptAttention(lengths, [(s, owner.place) for s, (owner, _) in zip(stores, prompts, strict=True)])
        ids = torch.tensor([[token for _, ids in prompts for token in ids]], device=self._device)
        positions = torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0).to(self._device)
        hidden = self._model.hidden_states(ids, positions, context=context)[0]
        self.usage.tokens_read += len(hidden)
        end = 0
        for owner, read in prompts:
            end += len(read)
            owner.hidden = hidden[end - 1].clone()  # a view would keep all of them
            if isinstance(owner, _Row):
                _mark_read(owner, len(read))

    def _read_pieces(self, rows: Sequence[_Row]) -> None:
        """Read the next piece of each row against its cache, padded to the longest."""
        pieces = [row.unread[:MAX_PIECE_TOKENS] for row in rows]
        longest = max(map(len, pieces))
        self._row_store.reserve(0, max(row.length for row in rows) + longest)
        states = [row.state for row in rows]
        context = self._context(states, num_new=longest)
        ids = torch.tensor([piece + [self._pad_id] * (longest - len(piece)) for piece in pieces], device=self._device)
        positions = torch.tensor([[row.position] for row in rows]) + torch.arange(longest)
        hidden = self._model.hidden_states(ids, positions.to(self._device), context=context)
        for i, (row, piece) in enumerate(zip(rows, pieces, strict=True)):
            row.hidden = hidden[i, len(piece) - 1]
            _mark_read(row, len(piece))
            self.usage.tokens_read += len(piece)

    def _context(self, states: Sequence[RowState], *, num_new: int) -> CachedAttention:
        fold = Fold.of(states, device=self._device)
        return CachedAttention(
            states, num_new=num_new, row_store=self._row_store, prefix_store=self._prefix_store, fold=fold
        )

    # --- drawing ------------------------------------------------------------------------------------------

    def _decode(self) -> list[Request]:
        """Read the token that each active row drew last, and draw the next."""
        rows = self._rows[: self._num_active]
        batch = self._batch or self._build_batch(rows)
        hidden = self._model.hidden_states(batch.ids, batch.positions, context=batch.context)
        for row in rows:
            row.length += 1
        self.usage.num_passes += 1
        drawn = self._draw(rows, hidden[:, 0], batch.settings)
        self._batch = batch
        finished = self._retire_finished(rows)
        # leaving rows took the batch away; a full store means that it must be built on a larger one
        if self._batch is not None and batch.context.longest + 2 <= self._row_store.width:
            batch.ids = drawn.unsqueeze(1)
            batch.positions += 1
            batch.context.advance()
        else:
            self._batch = None
        return finished

    def _build_batch(self, rows: Sequence[_Row]) -> _Batch:
        self._row_store.reserve(0, max(row.length for row in rows) + 1)
        last = [[row.request.ids[-1]] for row in rows if row.request is not None]
        return _Batch(
            ids=torch.tensor(last, device=self._device),
            positions=torch.tensor([[row.position] for row in rows], device=self._device),
            context=self._context([row.state for row in rows], num_new=1),
            settings=DrawSettings.of(_params(rows), device=self._device),
        )

    def _draw(self, rows: Sequence[_Row], hidden: torch.Tensor, settings: DrawSettings) -> torch.Tensor:
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
        self.usage.tokens_drawn += len(requests)
        return ids

    def _retire_finished(self, rows: Sequence[_Row]) -> list[Request]:
        finished = []
        for row in rows:
            if row.request is not None and row.request.is_finished:
                finished.append(row.request)
                self._retire(row)
        return finished


def _params(rows: Sequence[_Row]) -> list[SamplingParams]:
    return [row.request.params for row in rows if row.request is not None]


def _mark_read(row: _Row, count: int) -> None:
    row.tokens += row.unread[:count]
    row.unread = row.unread[count:]
    row.length += count


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many first tokens two sequences have in common."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next(i for i in range(length) if a[i] != b[i])


def _cut(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Cut rows, sorted by what they read, into passes of at most MAX_PASS_TOKENS padded tokens."""
    passes: list[list[_Row]] = []
    for row in rows:
        length = min(len(row.unread), MAX_PIECE_TOKENS)
        if passes and length * (len(passes[-1]) + 1) <= MAX_PASS_TOKENS:
            passes[-1].append(row)
        else:
            passes.append([row])
    return passes
