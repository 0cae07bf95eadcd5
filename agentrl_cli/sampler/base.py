"""What an engine that generates must offer.

`Sampler` works on token ids and is what training needs; `ChatSampler` works on messages (any chat
endpoint, the scripted teacher) and is good for collecting, evaluating and judging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentrl_cli.types import ChatCompletion, Completion, Message, SamplingParams, SessionKey


class Sampler(Protocol):
    """Token ids in, token ids and their log-probabilities out."""

    @property
    def weight_version(self) -> int:
        """Version of the weights that the next completion is made with."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: SessionKey | None = None
    ) -> Completion:
        """Continue `prompt_ids`; with `session`, keep the KV cache for the trajectory's next turn.

        `prompt_ids` is always the whole sequence so far. A cancelled call frees its place at once.

        Raises:
            SamplerError: the engine failed.
        """
        ...

    async def release(self, trajectory_id: str) -> None:
        """Forget a trajectory's KV cache; unknown ids are ignored."""
        ...

    async def update_weights(self, version: int) -> None:
        """Make completions with the trainer's weights as they are now, called `version`."""
        ...

    async def pause(self) -> None:
        """Stop generating and drop what only generation needs (KV cache), so that training has the memory."""
        ...

    async def resume(self) -> None:
        """Undo `pause`."""
        ...

    async def close(self) -> None:
        """Free everything; the sampler can't be used afterwards."""
        ...


class ChatSampler(Protocol):
    """Messages in, one assistant message out; it has no token ids, so `rl` refuses it."""

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> ChatCompletion:
        """Return the next assistant message.

        Raises:
            SamplerError: the endpoint failed after its retries.
        """
        ...

    async def close(self) -> None:
        """Free connections."""
        ...
