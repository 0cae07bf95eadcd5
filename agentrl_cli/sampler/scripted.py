"""A sampler that says what it is told to: runs pipelines and tests without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from agentrl_cli.errors import SamplerError
from agentrl_cli.types import Completion, FinishReason, SamplingParams, SessionKey

Script = Callable[[Sequence[int], SamplingParams, SessionKey | None], Sequence[int]]
"""Given a whole prompt, returns the ids of the reply; may raise to play a failing engine."""


class Encoder(Protocol):
    """The part of a tokenizer that texts need."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text."""
        ...


class ScriptedSampler:
    """A `Sampler` whose replies come from a script.

    A reply that does not hold a stop token gets the request's first one at its end, as a model ends its
    turn; it is cut behind its first stop token, and at `max_tokens`.
    """

    def __init__(self, script: Script, *, logprob: float = 0.0) -> None:
        """Prepare to reply.

        Args:
            script: Makes the replies.
            logprob: Reported for every token.
        """
        self._script = script
        self._logprob = logprob
        self._weight_version = 0
        self._is_closed = False

    @classmethod
    def of_texts(cls, texts: Sequence[str], tokenizer: Encoder) -> ScriptedSampler:
        """Reply with these texts, in the order of the requests; a request too many is a `SamplerError`."""
        replies = iter([tokenizer.encode(text, add_special_tokens=False) for text in texts])

        def next_reply(prompt_ids: Sequence[int], params: SamplingParams, session: SessionKey | None) -> list[int]:
            reply = next(replies, None)
            if reply is None:
                raise SamplerError(f"the script has no reply left after {len(texts)}")
            return reply

        return cls(next_reply)

    @property
    def weight_version(self) -> int:
        """Version named by the last `update_weights`."""
        return self._weight_version

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: SessionKey | None = None
    ) -> Completion:
        """Return the script's reply.

        Raises:
            SamplerError: the sampler was closed, the script has no reply left, or the reply is empty and
                there is no stop token to end it with.
        """
        if self._is_closed:
            raise SamplerError("the sampler was closed")
        ids = list(self._script(prompt_ids, params, session))
        stops = params.stop_token_ids
        end = next((i + 1 for i, token in enumerate(ids) if token in stops), None)
        ids = [*ids, *stops[:1]] if end is None else ids[:end]
        ids = ids[: params.max_tokens]
        if not ids:
            raise SamplerError("the script replied with nothing, and the request names no stop token")
        is_cut = ids[-1] not in stops and len(ids) == params.max_tokens
        reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
        return Completion(ids, [self._logprob] * len(ids), reason, self._weight_version)

    async def release(self, trajectory_id: str) -> None:
        """Nothing is held per trajectory."""

    async def update_weights(self, version: int) -> None:
        """Name the version of the completions to come."""
        self._weight_version = version

    async def pause(self) -> None:
        """Nothing is held that training needs."""

    async def resume(self) -> None:
        """Undo `pause`."""

    async def close(self) -> None:
        """Refuse further requests."""
        self._is_closed = True
