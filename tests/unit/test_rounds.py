"""The logical clock of deterministic sampling."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from agentrl_cli.agent.rounds import RoundSampler
from agentrl_cli.types import Completion, FinishReason, SamplingParams, SessionKey


class RecordingSampler:
    """Answers at once and keeps the order in which it was asked."""

    weight_version = 0

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: SessionKey | None = None
    ) -> Completion:
        assert session is not None
        self.asked.append(session.trajectory_id)
        return Completion([1], [0.0], FinishReason.STOP)

    async def release(self, trajectory_id: str) -> None:
        self.asked.append(f"released {trajectory_id}")


async def play(delays: dict[str, list[float]]) -> list[str]:
    """Run one coroutine per id that waits before each of its turns, as a tool would make it wait."""
    inner = RecordingSampler()
    rounds = RoundSampler(inner, list(delays))  # type: ignore[arg-type]

    async def trajectory(name: str) -> None:
        for delay in delays[name]:
            await asyncio.sleep(delay)
            await rounds.generate([0], SamplingParams(max_tokens=1), session=SessionKey(name))
        await rounds.release(name)

    async with asyncio.timeout(10):
        await asyncio.gather(*(trajectory(name) for name in delays))
    return [name for name in inner.asked if not name.startswith("released")]


def test_a_round_asks_in_the_order_of_the_jobs_whatever_the_tools_take() -> None:
    """The order of requests depends on the jobs alone, not on who was ready first."""
    rng = random.Random(0)
    for _ in range(5):
        delays = {name: [rng.random() / 100 for _ in range(turns)] for name, turns in (("a", 3), ("b", 1), ("c", 2))}
        # round 1: a b c; b ends; round 2: a c; c ends; round 3: a
        assert asyncio.run(play(delays)) == ["a", "b", "c", "a", "c", "a"]


def test_a_trajectory_that_never_asks_does_not_hold_up_the_others() -> None:
    """Releasing it is enough for the round to start."""
    assert asyncio.run(play({"a": [0.0, 0.0], "idle": []})) == ["a", "a"]


def test_a_cancelled_trajectory_leaves_the_round() -> None:
    """Cancelling one that waits, and releasing it, lets the others go on."""

    async def run() -> list[str]:
        inner = RecordingSampler()
        rounds = RoundSampler(inner, ["a", "b", "c"])  # type: ignore[arg-type]

        async def ask(name: str) -> None:
            try:
                await rounds.generate([0], SamplingParams(max_tokens=1), session=SessionKey(name))
            finally:
                await rounds.release(name)

        tasks = {name: asyncio.create_task(ask(name)) for name in ("a", "b")}
        await asyncio.sleep(0.01)
        assert inner.asked == []
        tasks["a"].cancel()
        await asyncio.sleep(0.01)
        await ask("c")
        await tasks["b"]
        return inner.asked

    assert asyncio.run(run()) == ["released a", "b", "released b", "c", "released c"]
