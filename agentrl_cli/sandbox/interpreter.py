"""The trainer's end of one interpreter: its protocol socket, its output pipes, its exit.

Lives on the sandbox's own event loop. Time limits are kept by our clock, and how a process ended is
what its parent reaped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl_cli.sandbox.base import Limits, Result
from agentrl_cli.sandbox.cell import Answer, Cell
from agentrl_cli.types import ToolStatus

_START_TIMEOUT_S = 20.0
"""A cell that has not begun by then has no interpreter behind it."""
_GRACE_S = 0.5
"""Between the soft stop and the hard one, and between a closed connection and the end of the process."""
_EXIT_TIMEOUT_S = 5.0
"""A killed process whose exit is not reported by then has a parent that hangs."""
_MAX_STRETCH = 10.0
"""A cell may take so many times its limit while it waits for a CPU that others hold."""
_READ_BYTES = 1 << 16
_LAST_READS = 16
"""Reads of a pipe after the cell ended: more than a pipe holds, and an end for one that is written on."""


class Broken(Exception):
    """The interpreter ended or spoke garbage before the cell was done; whose fault that is, is decided elsewhere."""

    def __init__(self, reason: str, result: Result, *, is_lost: bool) -> None:
        super().__init__(reason)
        self.result = result
        """Output, times and, as `exception`, the reason; its status is `crash` for now."""
        self.is_lost = is_lost
        """The parent of all interpreters went away, and this one with it."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended, as its parent reaped it."""

    status: int
    """Wait status."""
    cpu_s: float
    peak_mib: float

    @property
    def signal(self) -> int:
        """The signal that killed it, or 0."""
        return os.WTERMSIG(self.status) if os.WIFSIGNALED(self.status) else 0

    def __str__(self) -> str:
        if not self.signal:
            return f"exited with code {os.WEXITSTATUS(self.status)}"
        names = {number.value: number.name for number in signal.Signals}
        return f"killed by {names.get(self.signal, f'signal {self.signal}')}"


class Interpreter:
    """One child of the zygote."""

    def __init__(self, cwd: Path, *, send_signal: Callable[[int, int], None]) -> None:
        """Make the descriptors of both ends; the zygote gets `child_fds`.

        Raises:
            OSError: there are no descriptors left.
        """
        self.cwd = cwd
        self.pid = -1
        self.exited: asyncio.Future[Exit | None] = asyncio.get_running_loop().create_future()
        """None if the parent of all interpreters is gone."""
        self._send_signal = send_signal
        self._cell: Cell | None = None
        self._is_killed = False
        with contextlib.ExitStack() as on_error:
            self._protocol, theirs = (on_error.enter_context(end) for end in socket.socketpair())
            self._outputs: list[int] = []
            self.child_fds = [theirs.fileno()]
            for _ in range(2):
                read, write = os.pipe()
                on_error.callback(os.close, read)
                on_error.callback(os.close, write)
                os.set_blocking(read, False)
                self._outputs.append(read)
                self.child_fds.append(write)
            on_error.pop_all()
        self._protocol.setblocking(False)
        theirs.detach()

    @property
    def is_usable(self) -> bool:
        """It can run another cell."""
        return not (self.exited.done() or self._is_killed)

    def close_child_fds(self) -> None:
        """Close our copies of the child's descriptors once it has them."""
        for fd in self.child_fds:
            os.close(fd)
        self.child_fds = []

    def set_exited(self, how: Exit | None) -> None:
        """Note that the process has been reaped; None if its parent is gone, and it with it."""
        if self.exited.done():
            return
        self.exited.set_result(how)
        if self._cell is not None:
            # it may have answered before it ended
            while self._read_protocol(self._cell):
                pass
            self._cell.settle(_how(how))

    def kill(self) -> None:
        """Have the process and its group killed; `exited` follows."""
        self._is_killed = True
        self._send_signal(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the descriptors; safe to call twice."""
        self.close_child_fds()
        self._unwatch()
        for fd in self._outputs:
            os.close(fd)
        self._outputs = []
        self._protocol.close()

    async def run(self, code: str, limits: Limits) -> Result:
        """Run one cell. If it had to be killed, `is_usable` is false afterwards.

        Raises:
            Broken: the interpreter ended, or what it said was no answer.
        """
        if not self.is_usable:
            how = self.exited.result() if self.exited.done() else None
            raise self._broken(_how(how), Result(ToolStatus.CRASH))
        assert self._cell is None, "a session runs one cell at a time"
        loop = asyncio.get_running_loop()
        cell = self._cell = Cell(limits)
        try:
            self._watch(cell)
            await self._send_cell(code, limits)
            await asyncio.wait({cell.began}, timeout=_START_TIMEOUT_S)
            if not cell.began.done():
                cell.settle("it did not begin the cell")
            began_s = loop.time()
            stop = await self._await_end(cell, limits.timeout_s)
            await self._stop(cell, stop)
            wall_s = loop.time() - began_s
            self._read_last_output(cell)
        finally:
            self._cell = None
            self._unwatch()
        return self._judge(cell, stop, limits, wall_s)

    async def _send_cell(self, code: str, limits: Limits) -> None:
        request = {
            "code": code,
            "memory_mib": limits.memory_mib,
            "max_chars": limits.max_output_chars,
            # only against a supervisor that died: threads may use more than one CPU
            "cpu_limit_s": math.ceil(4 * limits.timeout_s) + 1,
        }
        # a lone surrogate can't be sent as UTF-8; JSON's escapes can carry it
        data = json.dumps(request).encode("ascii")
        # an interpreter that does not listen never begins the cell, which is noticed there
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_START_TIMEOUT_S):
                loop = asyncio.get_running_loop()
                await loop.sock_sendall(self._protocol, len(data).to_bytes(4, "big") + data)

    async def _await_end(self, cell: Cell, timeout_s: float) -> ToolStatus | None:
        """Wait until the cell is done or has to be stopped; returns why, or None."""
        loop = asyncio.get_running_loop()
        began_s, waited_s = loop.time(), _cpu_wait_s(self.pid)
        limit_s = timeout_s
        while True:
            rest_s = began_s + limit_s - loop.time()
            events: set[asyncio.Future[Any]] = {cell.done, cell.flooded}
            await asyncio.wait(events, timeout=rest_s, return_when=asyncio.FIRST_COMPLETED)
            if cell.done.done():
                return None
            if cell.flooded.done():
                return ToolStatus.OUTPUT_LIMIT
            # time in which the process could have run but others held the CPUs is not the code's doing
            stretched_s = min(timeout_s + _cpu_wait_s(self.pid) - waited_s, _MAX_STRETCH * timeout_s)
            if stretched_s <= limit_s + 0.001:
                return ToolStatus.TIMEOUT
            limit_s = stretched_s

    async def _stop(self, cell: Cell, stop: ToolStatus | None) -> None:
        """Stop the cell if it has to be, first softly; kill an interpreter that can't go on."""
        if stop is not None:
            self._send_signal(self.pid, signal.SIGINT)
            await asyncio.wait({cell.done}, timeout=_GRACE_S)
        outcome = cell.done.result() if cell.done.done() else ""
        if isinstance(outcome, Answer) and not outcome.is_spent:
            return
        if not self.exited.done():
            self.kill()
            await asyncio.wait({self.exited}, timeout=_EXIT_TIMEOUT_S)

    def _judge(self, cell: Cell, stop: ToolStatus | None, limits: Limits, wall_s: float) -> Result:
        """Say what came of a cell.

        Raises:
            Broken: the interpreter failed, not by our doing.
        """
        outcome = cell.done.result() if cell.done.done() else "it did not stop"
        how = self.exited.result() if self.exited.done() else None
        stdout, stderr = cell.outputs
        result = Result(
            ToolStatus.CRASH,
            stdout.text(),
            stderr.text(),
            wall_s=wall_s,
            cpu_s=how.cpu_s if how else 0.0,
            peak_mib=how.peak_mib if how else 0.0,
            truncated=stdout.is_cut or stderr.is_cut,
        )
        if isinstance(outcome, Answer):
            result = replace(result, cpu_s=outcome.cpu_s, peak_mib=outcome.peak_mib)
        if stop is ToolStatus.TIMEOUT or (stop is None and how is not None and how.signal == signal.SIGXCPU):
            return replace(result, status=ToolStatus.TIMEOUT, exception=f"stopped after {limits.timeout_s:g} s")
        if stop is not None:
            return replace(result, status=stop)
        if how is not None and how.signal == signal.SIGSYS:
            return replace(result, status=ToolStatus.DENIED)
        if isinstance(outcome, str):
            raise self._broken(outcome, result)
        return replace(
            result,
            status=outcome.status,
            value=outcome.value,
            exception=outcome.exception,
            truncated=result.truncated or outcome.is_cut,
        )

    def _broken(self, reason: str, result: Result) -> Broken:
        is_lost = self.exited.done() and self.exited.result() is None
        return Broken(reason, replace(result, exception=reason), is_lost=is_lost)

    def _watch(self, cell: Cell) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._protocol, self._read_protocol, cell)
        for index, fd in enumerate(self._outputs):
            loop.add_reader(fd, self._read_output, index, cell)

    def _unwatch(self) -> None:
        loop = asyncio.get_running_loop()
        if self._protocol.fileno() >= 0:
            loop.remove_reader(self._protocol)
        for fd in self._outputs:
            loop.remove_reader(fd)

    def _read_protocol(self, cell: Cell) -> bool:
        """Take what the protocol socket holds; returns whether there may be more."""
        try:
            data = self._protocol.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            cell.add_protocol(data)
            return True
        loop = asyncio.get_running_loop()
        if self._protocol.fileno() >= 0:
            loop.remove_reader(self._protocol)
        # most often the process has ended, and how it did is on its way
        loop.call_later(_GRACE_S, cell.settle, "it closed the connection")
        return False

    def _read_output(self, index: int, cell: Cell) -> bool:
        """Take what a pipe holds now; returns whether there may be more."""
        fd = self._outputs[index]
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            asyncio.get_running_loop().remove_reader(fd)
            return False
        cell.add_output(index, data)
        return True

    def _read_last_output(self, cell: Cell) -> None:
        """Take what stands in the pipes; never wait for their end, which a grandchild may hold open."""
        for index in range(len(self._outputs)):
            for _ in range(_LAST_READS):
                if not self._read_output(index, cell):
                    break
        for stream in cell.outputs:
            stream.add(b"", final=True)


def _how(exit: Exit | None) -> str:
    return "its parent process ended" if exit is None else str(exit)


def _cpu_wait_s(pid: int) -> float:
    """Return how long a process has waited for a CPU so far; 0 where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
