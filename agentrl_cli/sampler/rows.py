"""Who holds which place of the KV cache: rows of trajectories, prompts of groups.

A place of the row store belongs to one trajectory from its first request until it is released. The rows
that generate ("active") have the first places; those that wait for a tool ("parked") follow without a gap.
The prompt of a group has a place in the prefix store for as long as a row uses it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from agentrl_cli.sampler.attention import CausalModel
from agentrl_cli.sampler.kv_cache import RowState, Store
from agentrl_cli.sampler.sampling import UniformStream
from agentrl_cli.types import Completion, FinishReason, SamplingParams, SessionKey


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


@dataclass(eq=False, slots=True)
class Prefix:
    """The prompt of a group."""

    group_id: str
    ids: list[int]
    place: int
    num_rows: int = 0
    hidden: torch.Tensor | None = None
    """Final hidden state of its last token, [hidden]; None until it is read."""


@dataclass(eq=False, slots=True)
class Row:
    """One place of the row store, and the trajectory that holds it."""

    place: int
    session: SessionKey | None
    prefix: Prefix | None = None
    length: int = 0
    """Tokens stored behind the prefix."""
    tokens: list[int] = field(default_factory=list)
    """These tokens; not kept up to date while the row is active."""
    unread: list[int] = field(default_factory=list)
    hidden: torch.Tensor | None = None
    """Final hidden state of the newest token that was read, [hidden]."""
    request: Request | None = None
    """Set while the row is active."""
    parked_at: int = 0

    @property
    def state(self) -> RowState:
        """Where the row stands, for a forward pass."""
        prefix = self.prefix
        if prefix is None:
            return RowState(self.place, self.length)
        return RowState(self.place, self.length, prefix.place, len(prefix.ids))

    @property
    def position(self) -> int:
        """Position of the next token to be read."""
        return self.length + (len(self.prefix.ids) if self.prefix else 0)

    def mark_read(self, count: int) -> None:
        """The next `count` unread tokens are stored now."""
        self.tokens += self.unread[:count]
        self.unread = self.unread[count:]
        self.length += count


class Places:
    """Rows and prefixes with their stores; moves what is stored when they change places."""

    def __init__(self, model: CausalModel, *, max_rows: int) -> None:
        self.row_store, self.prefix_store = Store(model), Store(model)
        self.prefixes: list[Prefix] = []
        self.num_evictions = 0
        self.version = 0
        """Changes whenever an active row, or a prefix, joins, leaves or moves."""
        self._max_rows = max_rows
        self._rows: list[Row] = []
        self._num_active = 0
        self._sessions: dict[str, Row] = {}
        self._groups: dict[str, Prefix] = {}
        self._clock = 0

    @property
    def active(self) -> list[Row]:
        """Rows that generate, in their places."""
        return self._rows[: self._num_active]

    @property
    def num_active(self) -> int:
        """Rows that generate."""
        return self._num_active

    def row_of(self, trajectory_id: str) -> Row | None:
        """Return the row of a trajectory, if it has one."""
        return self._sessions.get(trajectory_id)

    def expect(self, num_requests: int) -> None:
        """Make room for so many requests at once, so that the stores are not grown for each."""
        self.row_store.reserve(min(self._max_rows, len(self._rows) + num_requests), 1)

    def take(self, request: Request, *, queued: Collection[str]) -> Row | None:
        """Give a request a row and make it active: its trajectory's, a new one, or one of a parked trajectory.

        Args:
            request: The request; what of it is stored already is found out.
            queued: Trajectories with a queued request; their caches are given away last.

        Returns:
            The row, or None if every place is generating.
        """
        row = self.row_of(request.session.trajectory_id) if request.session is not None else None
        if row is None:
            if self._num_active == self._max_rows:
                return None
            if len(self._rows) == self._max_rows:
                self._evict(queued)
            row = self._add(request)
        row.request = request
        self._match(row, request)
        self._swap(row.place, self._num_active)
        self._num_active += 1
        self.version += 1
        return row

    def retire(self, row: Row) -> None:
        """Take a row out of the active ones: park it for its trajectory's next turn, or free it."""
        request = row.request
        assert request is not None
        if row.session is None:
            self.free(row)
            return
        row.tokens = (request.prompt_ids + request.ids)[-1 - row.length : -1]
        self._deactivate(row)
        self._clock += 1
        row.parked_at = self._clock

    def free(self, row: Row) -> None:
        """Forget a row; its prefix goes with the last of its rows."""
        if row.request is not None:
            self._deactivate(row)
        self._swap(row.place, len(self._rows) - 1)
        self._rows.pop()
        self._detach_prefix(row)
        if row.session is not None:
            del self._sessions[row.session.trajectory_id]

    def clear(self) -> None:
        """Forget everything and give the memory back."""
        self._rows, self._num_active, self._sessions = [], 0, {}
        self.prefixes, self._groups = [], {}
        self.version += 1
        self.row_store.clear()
        self.prefix_store.clear()

    def _add(self, request: Request) -> Row:
        row = Row(place=len(self._rows), session=request.session)
        self._rows.append(row)
        if request.session is not None:
            self._sessions[request.session.trajectory_id] = row
            self._attach_prefix(row, request.session.group_id, request.prompt_ids)
        return row

    def _evict(self, queued: Collection[str]) -> None:
        """Free the row that was parked first."""

        def rank(row: Row) -> tuple[bool, int]:
            return row.session is not None and row.session.trajectory_id in queued, row.parked_at

        self.free(min(self._rows[self._num_active :], key=rank))
        self.num_evictions += 1

    def _attach_prefix(self, row: Row, group_id: str, prompt_ids: list[int]) -> None:
        """Let a new row share its group's prompt, which the group's first row sets; `_match` checks that it fits."""
        if not group_id:
            return
        prefix = self._groups.get(group_id)
        if prefix is None:
            prefix = self._groups[group_id] = Prefix(group_id, prompt_ids, place=len(self.prefixes))
            self.prefixes.append(prefix)
        prefix.num_rows += 1
        row.prefix = prefix

    def _detach_prefix(self, row: Row) -> None:
        prefix, row.prefix = row.prefix, None
        if prefix is None:
            return
        prefix.num_rows -= 1
        if prefix.num_rows:
            return
        last = self.prefixes[-1]
        if last is not prefix:
            if last.hidden is not None:  # one that is not read yet has nothing stored, and maybe no place yet
                self.prefix_store.swap(prefix.place, last.place, width=len(last.ids))
            last.place, self.prefixes[prefix.place] = prefix.place, last
            self.version += 1
        self.prefixes.pop()
        del self._groups[prefix.group_id]

    def _match(self, row: Row, request: Request) -> None:
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

    def _deactivate(self, row: Row) -> None:
        row.request = None
        self._num_active -= 1
        self._swap(row.place, self._num_active)
        self.version += 1

    def _swap(self, a: int, b: int) -> None:
        """Exchange two rows, so that active and parked ones stay apart."""
        if a == b:
            return
        first, second = self._rows[a], self._rows[b]
        self.row_store.swap(a, b, width=max(first.length, second.length))
        first.place, second.place = b, a
        self._rows[a], self._rows[b] = second, first


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many first tokens two sequences have in common."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next(i for i in range(length) if a[i] != b[i])
