"""Sessions on a SandboxFusion server.

The server is stateless: each call starts an interpreter, so a session runs its earlier cells again before
the new one, those that ended `ok`, with their output thrown away. A cell that failed leaves nothing behind.
With `stateless` every cell runs alone. What runs on the server is our own supervisor with the local backend's
interpreter (`fusion_remote.py`), so a cell means the same here as there: echo of the last expression, output
limits, soft stop, seeds. Hash seed, random numbers and an empty folder are equal at each start, so that a
cell that runs again does what it did; clock and network are not.

Statuses. The supervisor's report decides, as the local backend's does. Without a report (`Success` or `Failed`
with no file, `SandboxError`, HTTP errors, lost connections, answers that can't be read) the request is tried
again. What still fails is the code's own doing if known-good cells pass right after it (`timeout` where the
server says `TimeLimitExceeded`, otherwise `crash`), and `sandbox_error` if they fail too or if the
server did not run the code at all.

Isolation is the server's affair and not known here: by default it has none but its container.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
import secrets
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from agentrl_cli.errors import SandboxError
from agentrl_cli.sandbox.base import Limits, Result, Session
from agentrl_cli.sandbox.cell import read_answer
from agentrl_cli.sandbox.fusion_client import Failure, FusionClient, FusionSettings, Lost, Refused, quote
from agentrl_cli.sandbox.fusion_program import build_program
from agentrl_cli.sandbox.fusion_remote import GRACE_S, REPLAY_FACTOR, START_TIMEOUT_S, Report
from agentrl_cli.sandbox.interpreter import Exit
from agentrl_cli.sandbox.output import make_safe
from agentrl_cli.types import ToolStatus

ISOLATION = "remote"
FORGOTTEN = "(earlier cells could not be run again: their variables are lost)"
_CONTROL_CELL, _CONTROL_VALUE = "6*7", "42"
_CONTROL_TIMEOUT_S = 30.0
_NUM_CONTROLS = 3
"""Known-good cells that must pass in a row before a failing server is called the code's doing."""
_MAX_ESCAPE_CHARS = 10
"""That a character of output may have become."""
_CLOSED = "the sandbox is closed"
_HINT = "start the server, or correct sandbox.url; sandbox.max_retries sets the tries"


@dataclass(frozen=True, slots=True)
class SourceCell:
    """A cell to run."""

    code: str
    timeout_s: float


class _NotReplayed(Lost):
    """Earlier cells of the session did not end well this time."""


class FusionSandbox:
    """Hands out sessions on one server; see the module's text."""

    def __init__(self, settings: FusionSettings, *, first_wait_s: float = 0.5) -> None:
        """Send nothing yet.

        Args:
            settings: The server.
            first_wait_s: Wait before a request's second try; each further one waits up to twice as long.

        Raises:
            ConfigError: the address is none.
        """
        self.settings = settings
        self._client = FusionClient(settings, first_wait_s=first_wait_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places = asyncio.Semaphore(settings.max_sessions)
        self._is_closed = False

    async def open(self) -> Session:
        """Hand out a fresh session; waits while `max_sessions` are open, and asks nothing of the server.

        Raises:
            SandboxError: the sandbox is closed.
        """
        if self._is_closed:
            raise SandboxError(_CLOSED)
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._places = loop, asyncio.Semaphore(self.settings.max_sessions)
        places = self._places
        await places.acquire()
        return _Session(self, places)

    async def health(self) -> str:
        """Return `remote`, for what isolates is the server's affair, after running a known-good cell.

        Raises:
            SandboxError: the known-good cell did not run.
        """
        try:
            await self._client.retry(self._run_control)
        except Failure as failure:
            raise self._error(failure) from failure
        return ISOLATION

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        self._is_closed = True
        await self._client.close()

    async def run_cells(self, cells: Sequence[SourceCell], limits: Limits) -> tuple[Result, bool]:
        """Run cells in one fresh interpreter; returns what the last came to, and whether the others ran well.

        Raises:
            SandboxError: the server failed, not by the code's doing.
        """
        if self._is_closed:
            raise SandboxError(_CLOSED)
        try:
            return await self._client.retry(lambda: self._attempt(cells, limits)), True
        except Refused as refused:
            raise self._error(refused) from refused
        except Lost as lost:
            await self._check_controls(lost)
            return lost.result or Result(ToolStatus.CRASH, exception=lost.reason), not isinstance(lost, _NotReplayed)

    async def _check_controls(self, lost: Lost) -> None:
        """Find out whose doing a failure was that repeated itself: return if it was the code's.

        Raises:
            SandboxError: known-good cells fail as well.
        """
        for _ in range(_NUM_CONTROLS if lost.is_servers else 1):
            try:
                with self._client.breaker.attempt(is_control=True):
                    await self._run_control()
            except Failure as failure:
                raise self._error(failure) from failure

    async def _run_control(self) -> None:
        limits = Limits(_CONTROL_TIMEOUT_S, memory_mib=self.settings.memory_mib, max_output_chars=100)
        result = await self._attempt([SourceCell(_CONTROL_CELL, _CONTROL_TIMEOUT_S)], limits)
        if result.value != _CONTROL_VALUE:
            raise Lost(f"a known-good cell gave {result.value!r} ({result.status}), not {_CONTROL_VALUE!r}")

    async def _attempt(self, cells: Sequence[SourceCell], limits: Limits) -> Result:
        """Send one request and read what came of it.

        Raises:
            Refused | Lost: nothing, or the interpreter broke.
        """
        if self._is_closed:
            raise Refused(_CLOSED, cost=self.settings.max_retries + 1, is_servers=False)
        answer_file = f"answer-{secrets.token_hex(16)}.json"
        task = {
            "answer_file": answer_file,
            "cells": [asdict(cell) for cell in cells],
            "memory_mib": limits.memory_mib,
            "max_chars": limits.max_output_chars,
        }
        earlier_s = sum(REPLAY_FACTOR * cell.timeout_s for cell in cells[:-1])
        request = {
            "code": build_program(),
            "language": "python",
            "run_timeout": 2 * START_TIMEOUT_S + earlier_s + cells[-1].timeout_s + 4 * GRACE_S,
            "stdin": json.dumps(task),
            "fetch_files": [answer_file],
        }
        answer = await self._client.run_code(request, max_output_chars=limits.max_output_chars)
        if answer_file not in answer["files"]:
            raise self._no_report(answer["run_result"], limits)
        report = _read_report(answer["files"][answer_file], limits)
        if report is None:
            raise self._broken("it wrote to the protocol", Result(ToolStatus.CRASH))
        return self._judge(report, limits)

    def _no_report(self, run: Mapping[str, Any], limits: Limits) -> Lost:
        """Say what it means that the supervisor left no report: it was killed or could not start."""
        if run["status"] == "TimeLimitExceeded":
            reason = f"stopped after {limits.timeout_s:g} s"
            return self._broken(reason, Result(ToolStatus.TIMEOUT, wall_s=limits.timeout_s))
        said = quote(run.get("stderr") or "")
        reason = f"ended with code {run.get('return_code')} and no report" + (f": {said}" if said else "")
        return self._broken(reason, Result(ToolStatus.CRASH))

    def _judge(self, report: Report, limits: Limits) -> Result:
        """Return what came of a cell.

        Raises:
            Lost: the interpreter broke.
        """
        if report.failed_cell >= 0:
            reason = "earlier cells did not run again as they did before"
            raise _NotReplayed(
                reason, cost=self._replay_cost, is_servers=False, result=Result(ToolStatus.CRASH, exception=reason)
            )
        result = Result(
            ToolStatus.CRASH,
            make_safe(report.stdout),
            make_safe(report.stderr),
            wall_s=report.wall_s,
            cpu_s=report.cpu_s,
            peak_mib=report.peak_mib,
            truncated=report.is_cut,
        )
        ended_by = os.WTERMSIG(report.exit_status) if report.exit_status > 0 else 0
        if report.stop == "timeout" or (not report.stop and ended_by == signal.SIGXCPU):
            return replace(result, status=ToolStatus.TIMEOUT, exception=f"stopped after {limits.timeout_s:g} s")
        if report.stop:
            return replace(result, status=ToolStatus.OUTPUT_LIMIT)
        if ended_by == signal.SIGSYS:
            return replace(result, status=ToolStatus.DENIED)
        answer = read_answer(report.answer.encode("utf-8", "replace"), limits.max_output_chars)
        if answer is None:
            ended = str(Exit(report.exit_status, 0.0, 0.0)) if report.exit_status >= 0 else ""
            raise self._broken(ended or quote(report.reason) or "it wrote to the protocol", result)
        return replace(
            result,
            status=answer.status,
            value=answer.value,
            exception=answer.exception,
            cpu_s=answer.cpu_s,
            peak_mib=answer.peak_mib,
            truncated=result.truncated or answer.is_cut,
        )

    def _broken(self, reason: str, result: Result) -> Lost:
        """Return a failure that is replayed once and then judged."""
        return Lost(
            reason,
            cost=self._replay_cost,
            is_servers=False,
            result=replace(result, exception=result.exception or reason),
        )

    @property
    def _replay_cost(self) -> int:
        """Tries that a broken interpreter counts for, so that it is replayed once."""
        return self.settings.max_retries // 2 + 1

    def _error(self, failure: Failure) -> SandboxError:
        return SandboxError(f"{self._client}: {failure.reason}", hint=_HINT)


class _Session:
    """One trajectory's cells."""

    def __init__(self, sandbox: FusionSandbox, places: asyncio.Semaphore) -> None:
        self._sandbox = sandbox
        self._places = places
        self._history: list[SourceCell] = []
        """Cells that make the variables again."""
        self._has_forgotten = False
        self._is_closed = False

    async def run(self, code: str, limits: Limits) -> Result:
        """Run a cell after the earlier ones that ended `ok`; failures are statuses."""
        cell = SourceCell(code, limits.timeout_s)
        try:
            if self._is_closed:
                raise SandboxError("the session is closed")
            result, has_replayed = await self._sandbox.run_cells([*self._history, cell], limits)
        except SandboxError as error:
            return Result(ToolStatus.SANDBOX_ERROR, exception=error.message, isolation=ISOLATION)
        if self._has_forgotten:
            result = replace(result, stderr=f"{FORGOTTEN}\n{result.stderr}")
        self._has_forgotten = not has_replayed
        if not has_replayed:
            self._history = []
        elif result.status is ToolStatus.OK and not self._sandbox.settings.stateless:
            self._history.append(cell)
        return replace(result, isolation=ISOLATION)

    async def close(self) -> None:
        """Give the place back; safe to call twice."""
        if not self._is_closed:
            self._is_closed = True
            self._places.release()


def _read_report(data: str, limits: Limits) -> Report | None:
    """Return the report in a base64 file, or None if it is none."""
    try:
        values = json.loads(base64.b64decode(data, validate=True))
    except (ValueError, binascii.Error, RecursionError):
        return None
    types = {field.name: type(field.default) for field in fields(Report)}
    if not isinstance(values, dict) or values.keys() != types.keys():
        return None
    if any(type(values[name]) is not kind for name, kind in types.items()):
        return None
    report = Report(**values)
    longest = _MAX_ESCAPE_CHARS * (limits.max_output_chars + 64)
    if max(len(report.stdout), len(report.stderr)) > longest or report.stop not in ("", "timeout", "output_limit"):
        return None
    return report
