"""The contract that every sandbox keeps, as small checks that run against any backend.

Each check runs cells in a session and compares what the last one came to. A check that does not hold says
what was seen. Whatever a check's code does, `sandbox_error` is wrong: that status is for the backend alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from agentrl_cli.errors import SandboxError
from agentrl_cli.sandbox.base import Limits, Result, Sandbox, Session
from agentrl_cli.sandbox.self_check_cells import CELL_CHECKS, SHORT_S, CellCheck
from agentrl_cli.types import ToolStatus

MAX_PATIENCE_S = 120.0
"""A check that has no result by then does not hold: the backend hangs."""
_CELLS_PER_SESSION = 8
"""Of the measurement: as many calls as a trajectory may have."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one check came to."""

    name: str
    proves: str
    held: bool
    detail: str
    """What was seen where it did not hold."""
    seconds: float


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """What all checks came to, and how fast the backend is."""

    isolation: str
    """Level that health() named; empty if it failed."""
    rows: tuple[Row, ...]
    fresh_sessions_per_s: float
    """Sessions opened, used for one cell and closed, by `num_workers` at the same time."""
    next_cells_per_s: float
    """Further cells of open sessions, by as many."""
    num_workers: int

    @property
    def num_failed(self) -> int:
        """Checks that did not hold."""
        return sum(not row.held for row in self.rows)


@dataclass(frozen=True, slots=True)
class SandboxCheck:
    """A check that needs more than one session."""

    name: str
    proves: str
    run: Callable[[Sandbox, Limits], Awaitable[str]]
    """Returns what was seen if it did not hold, otherwise nothing."""


Check = CellCheck | SandboxCheck


async def self_check(sandbox: Sandbox, limits: Limits, *, num_workers: int = 4, measure_s: float = 1.0) -> SelfCheck:
    """Run all checks one after the other, then measure.

    Args:
        sandbox: The backend; it stays open.
        limits: Those that its user works with; checks of a limit set a shorter one.
        num_workers: Sessions at the same time while it is measured.
        measure_s: How long each of the two measurements takes; 0 leaves them out and gives 0.
    """
    rows = tuple([await run_check(check, sandbox, limits) for check in CHECKS])
    fresh, following = 0.0, 0.0
    if measure_s and rows[0].held:
        fresh = await _measure(lambda: _use_fresh(sandbox, limits), num_workers, measure_s)
        following = await _measure(lambda: _use_open(sandbox, limits), num_workers, measure_s)
    return SelfCheck(await _isolation(sandbox), rows, fresh, following, num_workers)


async def run_check(check: Check, sandbox: Sandbox, limits: Limits) -> Row:
    """Run one check; never raises for what the backend does."""
    started_s = time.monotonic()
    try:
        async with asyncio.timeout(MAX_PATIENCE_S):
            if isinstance(check, SandboxCheck):
                detail = await check.run(sandbox, limits)
            else:
                detail = await _run_cells(check, sandbox, limits)
    except SandboxError as error:
        detail = f"the sandbox failed: {error.message}"
    except TimeoutError:
        detail = f"no result after {MAX_PATIENCE_S:g} s"
    except Exception as error:
        # a backend of the user's own may raise anything
        detail = f"the backend raised {type(error).__name__}: {error}"
    return Row(check.name, check.proves, not detail, detail, time.monotonic() - started_s)


async def _run_cells(check: CellCheck, sandbox: Sandbox, limits: Limits) -> str:
    if check.is_short:
        limits = replace(limits, timeout_s=min(SHORT_S, limits.timeout_s))
    results = await _run_session(
        sandbox,
        [cell.format(memory_mib=limits.memory_mib) if check.has_memory else cell for cell in check.cells],
        limits,
    )
    for result in results:
        if detail := _is_sound(result, limits):
            return detail
    return check.compare(results[-1], limits)


async def _run_session(sandbox: Sandbox, cells: Sequence[str], limits: Limits) -> list[Result]:
    session = await sandbox.open()
    try:
        return [await session.run(cell, limits) for cell in cells]
    finally:
        await session.close()


def _is_sound(result: Result, limits: Limits) -> str:
    """Return what is wrong with a result whatever the cell did."""
    if result.status is ToolStatus.SANDBOX_ERROR:
        return f"sandbox_error: {result.exception}"
    if not result.isolation:
        return "the result names no isolation level"
    return ""


async def _isolation(sandbox: Sandbox) -> str:
    try:
        return await sandbox.health()
    except SandboxError:
        return ""


async def _last_value(sandbox: Sandbox, cells: Sequence[str], limits: Limits) -> str:
    """Run cells in a session and return the last value.

    Raises:
        SandboxError: the last cell did not run to its end.
    """
    last = (await _run_session(sandbox, cells, limits))[-1]
    if last.status is not ToolStatus.OK:
        raise SandboxError(f"{last.status} for a cell that is fine: {last.exception}")
    return last.value


async def _answers_health(sandbox: Sandbox, limits: Limits) -> str:
    return "" if await sandbox.health() else "health() names no isolation level"


async def _keeps_sessions_apart(sandbox: Sandbox, limits: Limits) -> str:
    await _run_session(sandbox, ["x = 1\nopen('left', 'w').close()\nimport math\nmath.left = 1"], limits)
    look = "import math, os\n['x' in globals(), os.path.exists('left'), hasattr(math, 'left')]"
    value = await _last_value(sandbox, [look], limits)
    return "" if value == "[False, False, False]" else f"variable, file, module left by another session: {value}"


async def _runs_sessions_together(sandbox: Sandbox, limits: Limits) -> str:
    cells = [[f"x = {number}", "import time\ntime.sleep(0.05)\nx"] for number in range(4)]
    values = await asyncio.gather(*(_last_value(sandbox, pair, limits) for pair in cells))
    return "" if values == ["0", "1", "2", "3"] else f"four sessions at once gave {values}"


async def _repeats_itself(sandbox: Sandbox, limits: Limits) -> str:
    cell = "import random\nrandom.random(), hash('a'), list({'a', 'b', 'c'})"
    first, second = [await _last_value(sandbox, [cell], limits) for _ in range(2)]
    return "" if first == second else f"two fresh sessions gave {first} and {second}"


async def _closes_twice(sandbox: Sandbox, limits: Limits) -> str:
    session = await sandbox.open()
    await session.close()
    await session.close()
    value = await _last_value(sandbox, ["6*7"], limits)
    return "" if value == "42" else f"then a fresh session gave {value!r}"


SANDBOX_CHECKS = (
    SandboxCheck("health", "health() runs a known-good cell and names the isolation level", _answers_health),
    SandboxCheck("sessions_apart", "variables, files and changed modules stay in their session", _keeps_sessions_apart),
    SandboxCheck("sessions_together", "sessions that run at the same time do not mix", _runs_sessions_together),
    SandboxCheck(
        "repeatable", "fresh sessions start with equal seeds, so equal cells give equal output", _repeats_itself
    ),
    SandboxCheck("close_twice", "a session may be closed twice", _closes_twice),
)
CHECKS: tuple[Check, ...] = (*CELL_CHECKS, *SANDBOX_CHECKS)


async def _measure(use: Callable[[], Awaitable[tuple[int, float]]], num_workers: int, measure_s: float) -> float:
    """Return calls per second of workers that call `use` again and again; it returns calls and their seconds."""
    deadline_s = time.monotonic() + measure_s

    async def work() -> float:
        num_calls, seconds = 0, 0.0
        while time.monotonic() < deadline_s or not num_calls:
            more_calls, more_s = await use()
            num_calls, seconds = num_calls + more_calls, seconds + more_s
        return num_calls / seconds

    return sum(await asyncio.gather(*(work() for _ in range(num_workers))))


async def _use_fresh(sandbox: Sandbox, limits: Limits) -> tuple[int, float]:
    started_s = time.monotonic()
    await _run_session(sandbox, ["6*7"], limits)
    return 1, time.monotonic() - started_s


async def _use_open(sandbox: Sandbox, limits: Limits) -> tuple[int, float]:
    session = await sandbox.open()
    try:
        await session.run("x = 0", limits)
        return _CELLS_PER_SESSION, await _time_cells(session, limits)
    finally:
        await session.close()


async def _time_cells(session: Session, limits: Limits) -> float:
    started_s = time.monotonic()
    for _ in range(_CELLS_PER_SESSION):
        await session.run("x = x + 1\nx", limits)
    return time.monotonic() - started_s
