"""The sandbox's contract: it holds for our backends, and each of its checks notices the fault it is for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from agentrl_cli.config.schema import SandboxConfig
from agentrl_cli.errors import SandboxError
from agentrl_cli.sandbox.base import Limits, Result, Sandbox, Session
from agentrl_cli.sandbox.fusion import FusionSandbox
from agentrl_cli.sandbox.fusion_client import FusionSettings
from agentrl_cli.sandbox.local import LocalSandbox
from agentrl_cli.sandbox.self_check import CHECKS, Row, SelfCheck, run_check, self_check
from agentrl_cli.types import ToolStatus
from tests.unit.fusion_server import FusionServer, status

LIMITS = Limits(timeout_s=10.0, memory_mib=128, max_output_chars=1000)
CHECK_BY_NAME = {check.name: check for check in CHECKS}
Change = Callable[[Result], Result]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalSandbox]:
    """One sandbox for all tests: sessions are what is fresh."""
    box = LocalSandbox(SandboxConfig(pool_size=4, max_sessions=8, memory_mib=128))
    yield box
    asyncio.run(box.close())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FusionServer]:
    """A server without faults, and no proxy before it."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    running = FusionServer()
    yield running
    running.close()


def held_by(result: SelfCheck) -> dict[str, str]:
    """Return the checks that did not hold, and why."""
    return {row.name: row.detail for row in result.rows if not row.held}


def test_local_keeps_the_contract(local: LocalSandbox) -> None:
    """All checks hold for the local backend, and its speed is measured."""
    result = asyncio.run(self_check(local, LIMITS, measure_s=0.2))
    assert held_by(result) == {}
    assert (result.isolation, result.num_failed) == (asyncio.run(local.health()), 0)
    assert result.fresh_sessions_per_s > 0
    assert result.next_cells_per_s > 0


@pytest.mark.slow
def test_fusion_keeps_the_contract(server: FusionServer) -> None:
    """All checks hold over HTTP too."""
    result = asyncio.run(self_check(FusionSandbox(FusionSettings(server.url)), LIMITS, measure_s=0))
    assert held_by(result) == {}
    assert (result.isolation, result.fresh_sessions_per_s, result.next_cells_per_s) == ("remote", 0.0, 0.0)


def test_a_dead_backend_holds_nothing_and_is_not_measured(server: FusionServer) -> None:
    """Where no cell runs, every check says so and none raises."""
    server.always = status(404)
    result = asyncio.run(self_check(FusionSandbox(FusionSettings(server.url)), LIMITS, measure_s=0.1))
    assert list(held_by(result)) == [check.name for check in CHECKS]
    assert "status 404" in held_by(result)["known_good"]
    assert (result.isolation, result.fresh_sessions_per_s) == ("", 0.0)


class Broken:
    """A backend with a fault: results are changed on their way, or sessions and calls are."""

    def __init__(self, inner: Sandbox, change: Change) -> None:
        self.inner = inner
        self.change = change

    async def open(self) -> Session:
        """Hand out a session whose results are changed."""
        return BrokenSession(await self.inner.open(), self.change)

    async def health(self) -> str:
        """Say what the fault makes of the level."""
        return self.change(Result(ToolStatus.OK, isolation=await self.inner.health())).isolation

    async def close(self) -> None:
        """Close nothing: the sandbox below is shared."""


class BrokenSession:
    """A session whose results are changed on their way."""

    def __init__(self, inner: Session, change: Change) -> None:
        self.inner = inner
        self.change = change

    async def run(self, code: str, limits: Limits) -> Result:
        """Run a cell and change its result."""
        return self.change(await self.inner.run(code, limits))

    async def close(self) -> None:
        """Close the session below."""
        await self.inner.close()


class OneSession(Broken):
    """Hands out one session again and again."""

    def __init__(self, inner: Sandbox, change: Change) -> None:
        super().__init__(inner, change)
        self.session: Session | None = None
        self.lock = asyncio.Lock()

    async def open(self) -> Session:
        """Hand out the session of before."""
        async with self.lock:
            self.session = self.session or await self.inner.open()
        return KeptSession(self.session, self.lock)

    async def close(self) -> None:
        """End the session."""
        if self.session is not None:
            await self.session.close()


class KeptSession:
    """A session that is not closed; its cells wait for each other."""

    def __init__(self, inner: Session, lock: asyncio.Lock) -> None:
        self.inner = inner
        self.lock = lock

    async def run(self, code: str, limits: Limits) -> Result:
        """Run a cell when no other runs."""
        async with self.lock:
            return await self.inner.run(code, limits)

    async def close(self) -> None:
        """Leave the session open."""


class FreshCells(Broken):
    """Runs each cell in a session of its own."""

    async def open(self) -> Session:
        """Hand out a session without memory."""
        return FreshSession(self.inner)


class FreshSession:
    """Forgets everything after each cell."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def run(self, code: str, limits: Limits) -> Result:
        """Run a cell in a session that is used for nothing else."""
        session = await self.sandbox.open()
        try:
            return await session.run(code, limits)
        finally:
            await session.close()

    async def close(self) -> None:
        """Nothing is open."""


class DeadAfterFailure(Broken):
    """Sessions that can't go on once a cell has failed."""

    async def open(self) -> Session:
        """Hand out a session that ends with its first failure."""
        return MortalSession(await self.inner.open(), self.change)


class MortalSession(BrokenSession):
    """Answers with the first failure for ever."""

    failure: Result | None = None

    async def run(self, code: str, limits: Limits) -> Result:
        """Run a cell, if none has failed."""
        if self.failure is None:
            result = await self.inner.run(code, limits)
            # a cell of sys.exit(3) is an error, too
            self.failure = None if result.status is ToolStatus.OK else result
            return result
        return self.failure


class Echoing(Broken):
    """Shows the output of all cells so far."""

    async def open(self) -> Session:
        """Hand out a session that repeats itself."""
        return EchoingSession(await self.inner.open(), self.change)


class EchoingSession(BrokenSession):
    """Puts the output of earlier cells before that of the last."""

    shown = ""

    async def run(self, code: str, limits: Limits) -> Result:
        """Run a cell and show what all have printed."""
        result = await self.inner.run(code, limits)
        self.shown += result.stdout
        return replace(result, stdout=self.shown)


class ClosesOnce(Broken):
    """Sessions that can be closed once only."""

    async def open(self) -> Session:
        """Hand out a session that counts."""
        return OnceSession(await self.inner.open(), self.change)


class OnceSession(BrokenSession):
    """Raises when it is closed again."""

    is_closed = False

    async def close(self) -> None:
        """Close, or raise."""
        if self.is_closed:
            raise SandboxError("closed already")
        self.is_closed = True
        await self.inner.close()


class Unseeded(Broken):
    """Gives other values in each session."""

    count = 0

    async def open(self) -> Session:
        """Hand out a session with a number in its values."""
        self.count += 1
        number = self.count
        return BrokenSession(await self.inner.open(), lambda result: replace(result, value=f"{result.value}{number}"))


def to(new: ToolStatus) -> Change:
    """Change the status."""
    return lambda result: replace(result, status=new)


def lose(*names: str) -> Change:
    """Empty texts of the result."""
    return lambda result: replace(result, **dict.fromkeys(names, ""))


def same(result: Result) -> Result:
    """Change nothing."""
    return result


OURS = to(ToolStatus.SANDBOX_ERROR)
FAULTS: dict[str, tuple[type[Broken], Change]] = {
    "known_good": (Broken, lose("value")),
    "stdout": (Broken, lose("stdout")),
    "no_echo": (Broken, lambda result: replace(result, value="5")),
    "stderr": (Broken, lambda result: replace(result, stdout=result.stdout + result.stderr, stderr="")),
    "state": (FreshCells, same),
    "files": (FreshCells, same),
    "hidden": (Echoing, same),
    "exception": (Broken, lose("exception")),
    "after_exception": (DeadAfterFailure, same),
    "syntax_error": (Broken, to(ToolStatus.CRASH)),
    "missing_module": (Broken, OURS),
    "long_exception": (Broken, lambda result: replace(result, exception="x" * 2049)),
    "bad_repr": (Broken, to(ToolStatus.OK)),
    "recursion": (Broken, to(ToolStatus.CRASH)),
    "input": (Broken, to(ToolStatus.TIMEOUT)),
    "sys_exit": (DeadAfterFailure, same),
    "sys_exit_code": (Broken, to(ToolStatus.OK)),
    "timeout": (Broken, lambda result: replace(result, wall_s=6.5)),
    "stubborn_timeout": (Broken, OURS),
    "after_timeout": (DeadAfterFailure, same),
    "wall_time": (Broken, lambda result: replace(result, wall_s=0.0)),
    "memory": (Broken, to(ToolStatus.OK)),
    "after_memory": (DeadAfterFailure, same),
    "long_output": (Broken, lambda result: replace(result, stdout=result.stdout.replace("cut", ""))),
    "endless_output": (Broken, to(ToolStatus.MEMORY)),
    "exit": (Broken, to(ToolStatus.OK)),
    "after_exit": (DeadAfterFailure, same),
    "segfault": (Broken, OURS),
    "kill_self": (Broken, to(ToolStatus.OK)),
    "kill_parent": (Broken, OURS),
    "forged_answer": (Broken, OURS),
    "closed_output": (Broken, OURS),
    "held_output": (Broken, to(ToolStatus.TIMEOUT)),
    "unicode": (Broken, lambda result: replace(result, stdout=result.stdout.encode("ascii", "replace").decode())),
    "control_characters": (Broken, lambda result: replace(result, stdout="\x1b[31m")),
    "binary_output": (Broken, lose("stdout")),
    "nul_byte": (Broken, OURS),
    "surrogate_source": (Broken, OURS),
    "long_source": (Broken, to(ToolStatus.ERROR)),
    "tabs": (Broken, to(ToolStatus.ERROR)),
    "empty": (Broken, to(ToolStatus.ERROR)),
    "clean_environment": (Broken, lambda result: replace(result, value="['HF_TOKEN']")),
    "health": (Broken, lose("isolation")),
    "sessions_apart": (OneSession, same),
    "sessions_together": (OneSession, same),
    "repeatable": (Unseeded, same),
    "close_twice": (ClosesOnce, same),
}


def test_each_check_has_a_fault() -> None:
    """No check is without a backend that breaks it, and no two checks have one name."""
    assert list(FAULTS) == [check.name for check in CHECKS]


@pytest.mark.parametrize("name", FAULTS)
def test_each_check_notices_its_fault(local: LocalSandbox, name: str) -> None:
    """A backend with the fault that a check is for does not pass it, and the row says what was seen."""
    kind, change = FAULTS[name]

    async def work() -> Row:
        broken = kind(local, change)
        try:
            return await run_check(CHECK_BY_NAME[name], broken, LIMITS)
        finally:
            await broken.close()

    row = asyncio.run(work())
    assert not row.held
    assert row.detail
    assert row.proves


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda result: replace(result, truncated=False), "not marked as truncated"),
        (lambda result: replace(result, stdout="BEGIN" + "a" * 2000 + "END"), "more than 1040"),
        (lambda result: replace(result, stdout=result.stdout[:-5] + " cut "), "not the two ends"),
        (lose("isolation"), "no isolation level"),
    ],
)
def test_cut_output_is_looked_at_closely(local: LocalSandbox, change: Change, detail: str) -> None:
    """Cut output must be marked, short, and made of both ends."""
    row = asyncio.run(run_check(CHECK_BY_NAME["long_output"], Broken(local, change), LIMITS))
    assert detail in row.detail


def test_a_backend_that_raises_does_not_stop_the_suite(local: LocalSandbox) -> None:
    """What a backend raises is the row's detail."""

    def fail(result: Result) -> Result:
        raise ValueError("a bug")

    row = asyncio.run(run_check(CHECK_BY_NAME["known_good"], Broken(local, fail), LIMITS))
    assert (row.held, row.detail) == (False, "the backend raised ValueError: a bug")
