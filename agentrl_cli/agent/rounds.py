"""A logical clock for sampling: a round starts when every live trajectory waits for its next turn.

With it, which requests share a batch never depends on how long a tool took, so equal seeds give equal
bits (`run.deterministic`). Its price: the fast trajectories of a round wait for the slowest tool call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from agentrl_cli.sampler.base import Sampler
from agentrl_cli.types import Completion, SamplingParams, SessionKey


class RoundSampler:
    """Holds requests back until all live trajectories have one, then passes them on in a fixed order."""

    def __init__(self, sampler: Sampler, trajectory_ids: Iterable[str]) -> None:
        self._sampler = sampler
        self._order = {trajectory_id: i for i, trajectory_id in enumerate(trajectory_ids)}
        self._live = set(self._order)
        self._waiting: dict[str, asyncio.Future[None]] = {}

    @property
    def weight_version(self) -> int:
        """Version of the weights behind."""
        return self._sampler.weight_version

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: SessionKey | None = None
    ) -> Completion:
        """Wait for the round, then generate."""
        assert session is not None
        assert session.trajectory_id in self._live, session
        turn = asyncio.get_running_loop().create_future()
        self._waiting[session.trajectory_id] = turn
        self._round_may_be_full()
        try:
            await turn
        finally:
            self._waiting.pop(session.trajectory_id, None)
        return await self._sampler.generate(prompt_ids, params, session=session)

    async def release(self, trajectory_id: str) -> None:
        """The trajectory has ended: the others no longer wait for it."""
        self._live.discard(trajectory_id)
        self._round_may_be_full()
        await self._sampler.release(trajectory_id)

    async def update_weights(self, version: int) -> None:
        """Pass on."""
        await self._sampler.update_weights(version)

    async def pause(self) -> None:
        """Pass on."""
        await self._sampler.pause()

    async def resume(self) -> None:
        """Pass on."""
        await self._sampler.resume()

    async def close(self) -> None:
        """Pass on."""
        await self._sampler.close()

    def _round_may_be_full(self) -> None:
        # not at once: the last to come must wait too, or it would overtake those before it
        asyncio.get_running_loop().call_soon(self._start_round_if_full)

    def _start_round_if_full(self) -> None:
        if len(self._waiting) < len(self._live):
            return
        # futures wake their coroutines in the order in which they are set
        for trajectory_id in sorted(self._waiting, key=self._order.__getitem__):
            future = self._waiting[trajectory_id]
            if not future.done():
                future.set_result(None)
        self._waiting = {}
