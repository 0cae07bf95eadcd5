"""The `transformers` engine: generates in process, on the trainer's own module, with continuous batching.

The engine works as a task of the running event loop: one step, then the loop's other tasks get a turn.
The task starts with the first request and ends when nothing is left to do, so one sampler lives through
any number of event loops. Requests are admitted in the order in which they were submitted: requests
submitted together give the same bits every time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch

from agentrl_cli.config.schema import TransformersSamplerConfig
from agentrl_cli.errors import AgentRLError, OutOfMemoryError, SamplerError, explain_out_of_memory
from agentrl_cli.sampler.attention import open_causal_model
from agentrl_cli.sampler.engine import Engine, Usage
from agentrl_cli.sampler.rows import Request
from agentrl_cli.sampler.sampling import UniformStream
from agentrl_cli.types import Completion, SamplingParams, SessionKey

_LOWER = "sampler.max_batch, then agent.max_completion_length"
"""What makes generation need less memory."""


class TransformersSampler:
    """A `Sampler` on a Hugging Face module; see the module's docstring."""

    def __init__(
        self, model: torch.nn.Module, *, config: TransformersSamplerConfig, max_length: int, pad_token_id: int
    ) -> None:
        """Prepare to sample.

        Args:
            model: A causal language model, adapters included; it stays shared with whoever trains it.
            config: The [sampler] section.
            max_length: Most tokens of a sequence, prompt included.
            pad_token_id: Any id; padding is masked.

        Raises:
            ModelError: the architecture is not supported.
        """
        self._model = model
        self._max_length = max_length
        self._engine = Engine(open_causal_model(model), max_batch=config.max_batch, pad_id=pad_token_id)
        self._futures: dict[Request, asyncio.Future[Completion]] = {}
        self._task: asyncio.Task[None] | None = None
        self._num_submitted = 0
        self._weight_version = 0
        self._is_paused = False
        self._is_closed = False

    @property
    def weight_version(self) -> int:
        """Version of the weights that the next completion is made with."""
        return self._weight_version

    @property
    def usage(self) -> Usage:
        """What was computed so far."""
        return self._engine.usage

    @property
    def cache_bytes(self) -> int:
        """Memory that the KV caches take now."""
        return self._engine.cache_bytes

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: SessionKey | None = None
    ) -> Completion:
        """Continue `prompt_ids`; see `Sampler.generate`.

        A sequence that reaches `max_length` ends as if by `max_tokens`.

        Raises:
            SamplerError: the prompt does not fit, or the engine failed.
        """
        self._check(prompt_ids, params)
        request = Request(
            number=self._num_submitted,
            prompt_ids=list(prompt_ids),
            params=params,
            session=session,
            limit=min(params.max_tokens, self._max_length - len(prompt_ids)),
            uniforms=UniformStream(params.seed),
        )
        self._engine.submit(request)
        self._num_submitted += 1
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._futures[request] = future
        self._wake()
        try:
            return await future
        except asyncio.CancelledError:
            self._engine.cancel(request)
            raise
        finally:
            del self._futures[request]

    async def release(self, trajectory_id: str) -> None:
        """Forget a trajectory's KV cache; unknown ids are ignored."""
        request = self._engine.release(trajectory_id)
        if request is not None and not (future := self._futures[request]).done():
            future.set_exception(SamplerError(f"trajectory {trajectory_id!r} was released"))

    async def update_weights(self, version: int) -> None:
        """Drop all caches: the module has its new weights already. Completions under way start over."""
        self._engine.drop_caches(restart=True)
        self._weight_version = version

    async def pause(self) -> None:
        """Stop generating and free the caches; completions under way go on after `resume`."""
        self._is_paused = True
        self._engine.drop_caches(restart=False)

    async def resume(self) -> None:
        """Undo `pause`."""
        self._is_paused = False
        self._wake()

    async def close(self) -> None:
        """Fail what is under way and free everything."""
        self._is_closed = True
        self._fail(SamplerError("the sampler was closed"))
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.exception()  # an exit that ended the task was passed on: asyncio need not report it again

    def _check(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        if self._is_closed:
            raise SamplerError("the sampler was closed")
        if not 0 < len(prompt_ids) < self._max_length:
            raise SamplerError(
                f"a prompt of {len(prompt_ids)} tokens does not fit: the engine takes 1 to {self._max_length - 1}"
            )
        if params.max_tokens < 1:
            raise SamplerError(f"max_tokens={params.max_tokens} leaves nothing to generate")

    def _wake(self) -> None:
        """Start the engine's task unless it runs on this event loop, or has nothing to do."""
        loop = asyncio.get_running_loop()
        is_running = self._task is not None and not self._task.done() and self._task.get_loop() is loop
        if not is_running and not self._is_paused and self._engine.has_work:
            self._task = loop.create_task(self._run(), name="transformers-sampler")

    async def _run(self) -> None:
        was_training = self._model.training
        self._model.eval()
        try:
            while self._engine.has_work and not self._is_paused:
                with explain_out_of_memory("generating", lower=_LOWER):
                    finished = self._engine.step()
                for request in finished:
                    completion = request.completion(weight_version=self._weight_version)
                    future = self._futures[request]
                    if not future.done():
                        future.set_result(completion)
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._fail(SamplerError("the engine's task was cancelled"))
            raise
        except Exception as error:
            self._fail(error)
        finally:
            self._model.train(was_training)

    def _fail(self, cause: Exception) -> None:
        """End all requests with an error and forget every cache: none can be trusted."""
        for request in self._engine.clear():
            future = self._futures[request]
            if not future.done():
                error: AgentRLError
                if isinstance(cause, OutOfMemoryError):
                    error = OutOfMemoryError(cause.message, hint=cause.hint)
                else:
                    error = SamplerError(f"generation failed: {cause}")
                error.__cause__ = cause
                future.set_exception(error)
