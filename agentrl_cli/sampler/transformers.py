"""Continuous batching on a transformers model inside this process, on the trainer's own weights.

A trajectory keeps its place in the key-value cache from turn to turn, so each turn feeds only its new
tokens. The prompt of a group is computed once. Rows that generate lie together at the front of the
cache, so that a decoding step works on views; rows whose trajectory waits for a tool are parked behind
them, and give up their place (to be computed again later) when it is needed.

One step of the engine: admit requests, compute prompts that are new, feed rows that have several new
tokens, decode one token for all rows that generate.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import PreTrainedModel

from agentrl_cli.config.schema import TransformersSamplerConfig
from agentrl_cli.errors import SamplerError
from agentrl_cli.sampler.attention import PromptPass, decoder_of, run_decoder, use_shared_attention
from agentrl_cli.sampler.drawing import UniformStream, draw
from agentrl_cli.sampler.kv_cache import CachedPass, PromptStack, SharedPrompt, SlotCache, own_bias
from agentrl_cli.types import Completion, FinishReason, SamplingParams, SessionKey

_PREFILL_TOKENS = 8192
"""Most tokens, padding included, of one pass over prompts or over rows with several new tokens."""


@dataclass(eq=False, slots=True)
class _Request:
    """A completion under way."""

    prompt_ids: list[int]
    params: SamplingParams
    session: SessionKey | None
    done: asyncio.Future[Completion]
    uniforms: UniformStream
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Row:
    """One slot's content: a shared prompt, the row's own tokens in the cache, and what is still to be fed."""

    prompt: SharedPrompt
    cached: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    request: _Request | None = None
    trajectory_id: str = ""
    parked_at: int = 0


class TransformersSampler:
    """Generates with a model that the trainer also trains; see the module's text."""

    def __init__(
        self, model: PreTrainedModel, *, config: TransformersSamplerConfig, max_length: int, pad_token_id: int
    ) -> None:
        """Take over a model's attention.

        Args:
            model: Any causal model with full attention; adapters are fine.
            config: The [sampler] section.
            max_length: Most tokens of a sequence, prompt included.
            pad_token_id: Any id; padding is never looked at.

        Raises:
            ModelError: the model has attention layers that are not supported.
        """
        base = model.get_base_model() if hasattr(model, "peft_config") else model
        use_shared_attention(base)
        text = base.config.get_text_config()
        self._model = model
        self._decoder, self._head = decoder_of(model)
        self._max_length = max_length
        self._pad = pad_token_id
        self._slots = config.max_batch
        self._device = next(model.parameters()).device
        self._cache = SlotCache(
            config.max_batch,
            layers=text.num_hidden_layers,
            kv_heads=text.num_key_value_heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
            like=self._head.weight.detach(),
        )
        self._stack = PromptStack()
        self._queue: deque[_Request] = deque()
        self._rows: list[_Row] = []
        """Rows by slot: those that generate, then parked ones."""
        self._num_active = 0
        self._prompts: dict[str, SharedPrompt] = {}
        self._driver: asyncio.Task[None] | None = None
        self._version = 0
        self._clock = 0
        self.fed_tokens = 0
        """Tokens that went through the model so far, shared prompts counted once."""

    @property
    def weight_version(self) -> int:
        """Version of the weights that the next completion is made with."""
        return self._version

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: SessionKey | None = None
    ) -> Completion:
        """Continue a sequence; see `Sampler.generate`."""
        if len(prompt_ids) + params.max_tokens > self._max_length:
            raise SamplerError(
                f"{len(prompt_ids)} prompt tokens and max_tokens={params.max_tokens} exceed the engine's "
                f"{self._max_length}"
            )
        done = asyncio.get_running_loop().create_future()
        request = _Request(list(prompt_ids), params, session, done, UniformStream(params.seed))
        self._queue.append(request)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.create_task(self._drive())
        try:
            return await done
        finally:
            if not done.done() or done.cancelled():
                self._abandon(request)

    async def release(self, trajectory_id: str) -> None:
        """Forget a trajectory's cache."""
        for slot, row in enumerate(self._rows):
            if row.trajectory_id == trajectory_id and row.request is None:
                self._free(slot)
                return

    async def update_weights(self, version: int) -> None:
        """Drop everything that the old weights computed; the weights themselves are the trainer's own."""
        assert not self._num_active and not self._queue, "weights change while sequences generate"
        self._version = version
        self._forget()

    async def pause(self) -> None:
        """Give the cache's memory back until the next request."""
        assert not self._num_active and not self._queue, "paused while sequences generate"
        self._forget()
        self._cache.drop()

    async def resume(self) -> None:
        """Nothing to do: memory comes back as it is needed."""

    async def close(self) -> None:
        """Fail what still waits and free the cache."""
        self._fail(SamplerError("the sampler was closed"))
        self._cache.drop()

    def _forget(self) -> None:
        self._rows.clear()
        self._prompts.clear()
        self._stack.drop()

    async def _drive(self) -> None:
        """Step until nothing is left to do, letting other coroutines run between steps."""
        while self._queue or self._num_active:
            try:
                self._step()
            except Exception as error:
                # whatever the model raised, it is the engine that failed, not a trajectory
                failure = SamplerError(f"generation failed: {type(error).__name__}: {error}")
                failure.__cause__ = error
                self._fail(failure)
                return
            await asyncio.sleep(0)

    @torch.inference_mode()
    def _step(self) -> None:
        self._admit()
        self._feed_long_rows()
        ready = self._rows[: self._num_active]
        if ready:
            self._cache.reserve(max(len(row.cached) for row in ready) + 1)
            self._advance(ready, slice(0, len(ready)))

    # --- admission ---------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give queued requests a slot, in their order, as long as there are any."""
        admitted: list[_Row] = []
        fresh: list[tuple[_Request, str]] = []
        while self._queue and self._num_active + len(admitted) + len(fresh) < self._slots:
            request = self._queue.popleft()
            row = self._resumed_row(request)
            if row is not None:
                admitted.append(row)
                self._activate(row)
                continue
            fresh.append((request, self._prompt_key(request)))
        if fresh:
            self._admit_fresh(fresh)

    def _resumed_row(self, request: _Request) -> _Row | None:
        """Return the parked row that this request continues, if what it has cached is a prefix of the request."""
        if request.session is None:
            return None
        for slot in range(self._num_active, len(self._rows)):
            row = self._rows[slot]
            if row.trajectory_id != request.session.trajectory_id:
                continue
            have = len(row.prompt.ids) + len(row.cached)
            is_prefix = request.prompt_ids[:have] == row.prompt.ids + row.cached
            if is_prefix and have < len(request.prompt_ids):
                row.pending = request.prompt_ids[have:]
                row.request = request
                return row
            self._free(slot)
            return None
        return None

    def _prompt_key(self, request: _Request) -> str:
        """Return the group whose prompt this request may share, or a name of its own."""
        group = request.session.group_id if request.session else ""
        return f"group:{group}" if group else f"request:{id(request)}"

    def _admit_fresh(self, fresh: Sequence[tuple[_Request, str]]) -> None:
        missing: dict[str, list[int]] = {}
        for request, key in fresh:
            known = self._prompts[key].ids if key in self._prompts else missing.get(key)
            if known is None:
                missing[key] = request.prompt_ids
            elif request.prompt_ids[: len(known)] != known:
                missing[f"request:{id(request)}"] = request.prompt_ids
        self._compute_prompts(missing)
        for request, key in fresh:
            alone = f"request:{id(request)}"
            prompt = self._prompts[alone] if alone in missing else self._prompts[key]
            self._make_room()
            row = _Row(prompt, pending=request.prompt_ids[len(prompt.ids) :], request=request)
            row.trajectory_id = request.session.trajectory_id if request.session else ""
            prompt.num_rows += 1
            self._rows.append(row)
            self._activate(row)
        # requests of their own never come again under that name
        self._prompts = {key: p for key, p in self._prompts.items() if not key.startswith("request:")}
        at_start = [row for row in self._rows[: self._num_active] if not row.pending]
        self._draw_first(at_start)

    def _draw_first(self, rows: Sequence[_Row]) -> None:
        """Draw the first token of rows that stand right behind their prompt."""
        rows = [row for row in rows if row.request is not None and not row.request.ids]
        if rows:
            self._draw(rows, torch.stack([row.prompt.last_state for row in rows]))

    def _compute_prompts(self, prompts: dict[str, list[int]]) -> None:
        """Compute prompts in padded batches, shortest first."""
        order = sorted(prompts, key=lambda key: len(prompts[key]))
        while order:
            width = 0
            batch: list[str] = []
            for key in order:
                if batch and (len(batch) + 1) * len(prompts[key]) > _PREFILL_TOKENS:
                    break
                batch.append(key)
                width = len(prompts[key])
            order = order[len(batch) :]
            ids = torch.tensor(
                [prompts[key] + [self._pad] * (width - len(prompts[key])) for key in batch], device=self._device
            )
            context = PromptPass()
            states = self._run(ids, torch.arange(width, device=self._device).expand(ids.shape), context)
            for i, key in enumerate(batch):
                length = len(prompts[key])
                self._prompts[key] = SharedPrompt(
                    prompts[key],
                    [k[i, :, :length].clone() for k in context.keys],
                    [v[i, :, :length].clone() for v in context.values],
                    states[i, length - 1].clone(),
                )

    # --- slots -------------------------------------------------------------------------------------

    def _activate(self, row: _Row) -> None:
        """Move a row behind those that generate."""
        self._swap(self._rows.index(row), self._num_active)
        self._num_active += 1

    def _park(self, row: _Row) -> None:
        """Move a row out of those that generate; one without a trajectory is freed."""
        self._num_active -= 1
        slot = self._rows.index(row)
        self._swap(slot, self._num_active)
        row.request = None
        row.pending = []
        self._clock += 1
        row.parked_at = self._clock
        if not row.trajectory_id:
            self._free(self._num_active)

    def _make_room(self) -> None:
        """Evict the trajectory that has been parked longest if all slots are taken."""
        if len(self._rows) == self._slots:
            parked = range(self._num_active, len(self._rows))
            self._free(min(parked, key=lambda slot: self._rows[slot].parked_at))

    def _free(self, slot: int) -> None:
        """Forget a parked row; the last one takes its slot."""
        assert slot >= self._num_active, (slot, self._num_active)
        row = self._rows[slot]
        self._swap(slot, len(self._rows) - 1)
        self._rows.pop()
        row.prompt.num_rows -= 1
        if not row.prompt.num_rows:
            self._prompts = {key: p for key, p in self._prompts.items() if p is not row.prompt}

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        self._rows[a], self._rows[b] = self._rows[b], self._rows[a]
        with torch.inference_mode():
            self._cache.permute([a, b], [b, a])

    # --- passes ------------------------------------------------------------------------------------

    def _feed_long_rows(self) -> None:
        """Feed rows that have several new tokens (a tool's result), in padded batches, shortest first."""
        rows = [r for r in self._rows[: self._num_active] if len(r.pending) > 1]
        rows.sort(key=lambda r: len(r.pending))
        while rows:
            batch: list[_Row] = []
            for row in rows:
                if batch and (len(batch) + 1) * len(row.pending) > _PREFILL_TOKENS:
                    break
                batch.append(row)
            rows = rows[len(batch) :]
            steps = len(batch[-1].pending)
            self._cache.reserve(max(len(row.cached) for row in batch) + steps)
            slots = torch.tensor([self._rows.index(row) for row in batch], device=self._device)
            self._advance(batch, slots)

    def _advance(self, rows: Sequence[_Row], slots: slice | torch.Tensor) -> None:
        """Feed the rows' pending tokens and draw the next one of each."""
        steps = max(len(row.pending) for row in rows)
        ids = torch.tensor([r.pending + [self._pad] * (steps - len(r.pending)) for r in rows], device=self._device)
        start = torch.tensor([len(row.cached) for row in rows], device=self._device)
        prompt_len = torch.tensor([len(row.prompt.ids) for row in rows], device=self._device)
        positions = (prompt_len + start)[:, None] + torch.arange(steps, device=self._device)
        bias = own_bias(start, steps, self._head.weight.dtype)
        prefix = self._stack.prefix([row.prompt for row in rows])
        states = self._run(ids, positions, CachedPass(self._cache, slots, start, bias, prefix))
        last = torch.tensor([len(row.pending) - 1 for row in rows], device=self._device)
        for row in rows:
            row.cached += row.pending
            row.pending = []
        self._draw(rows, states[torch.arange(len(rows), device=self._device), last])

    def _run(self, ids: torch.Tensor, positions: torch.Tensor, context: PromptPass | CachedPass) -> torch.Tensor:
        assert not self._model.training, "call model.eval() before generating"
        self.fed_tokens += ids.numel()
        return run_decoder(self._decoder, ids, positions, context)

    def _draw(self, rows: Sequence[_Row], states: torch.Tensor) -> None:
        """Draw each row's next token from its hidden state [B, E]; finished rows hand over their completion."""
        requests = [row.request for row in rows]
        assert all(requests)
        live: list[_Request] = [r for r in requests if r is not None]
        uniforms = [r.uniforms.take() if r.params.temperature else 0.0 for r in live]
        tokens, logprobs = draw(self._head(states), [r.params for r in live], uniforms)
        for row, request, token, logprob in zip(rows, live, tokens, logprobs, strict=True):
            request.ids.append(token)
            request.logprobs.append(logprob)
            row.pending = [token]
            is_stop = token in request.params.stop_token_ids
            if is_stop or len(request.ids) == request.params.max_tokens:
                self._finish(row, request, FinishReason.STOP if is_stop else FinishReason.LENGTH)

    # --- endings -----------------------------------------------------------------------------------

    def _finish(self, row: _Row, request: _Request, reason: FinishReason) -> None:
        self._park(row)
        if not request.done.done():
            request.done.set_result(Completion(request.ids, request.logprobs, reason, self._version))

    def _abandon(self, request: _Request) -> None:
        """Take a cancelled request out of the queue or of its slot."""
        if request in self._queue:
            self._queue.remove(request)
            return
        for slot, row in enumerate(self._rows):
            if row.request is request:
                self._park(row)
                if row in self._rows:
                    self._free(self._rows.index(row))
                return

    def _fail(self, error: SamplerError) -> None:
        """Hand an error to everyone who waits, and start from nothing."""
        waiting = [row.request for row in self._rows if row.request is not None] + list(self._queue)
        self._queue.clear()
        self._num_active = 0
        self._forget()
        for request in waiting:
            if not request.done.done():
                request.done.set_exception(error)
