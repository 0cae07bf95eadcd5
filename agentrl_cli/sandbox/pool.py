"""Interpreters that wait to be taken, the places of open sessions, and a warm parent that is never missing.

Lives on the sandbox's own event loop.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from pathlib import Path

from agentrl_cli.config.schema import SandboxConfig
from agentrl_cli.errors import SandboxError
from agentrl_cli.sandbox.base import Limits
from agentrl_cli.sandbox.interpreter import Broken, Interpreter
from agentrl_cli.sandbox.warm_parent import WarmParent

_CONTROL_CELL, _CONTROL_VALUE = "6*7", "42"
_CONTROL_TIMEOUT_S = 30.0
_EXIT_TIMEOUT_S = 5.0
_TRIES = 5
"""An interpreter that can't be had is asked for again, with growing waits."""
_FIRST_WAIT_S = 0.1


class Pool:
    """Keeps `pool_size` interpreters ahead of need."""

    def __init__(self, config: SandboxConfig) -> None:
        """Make the folder of the working directories; must run on the sandbox's loop."""
        self.places = asyncio.Semaphore(config.max_sessions)
        self.quarantine = asyncio.Lock()
        """Held while a cell is replayed that may have killed the warm parent, so that no two are suspect."""
        self.num_starts = 0
        self._config = config
        self._root = Path(tempfile.mkdtemp(prefix="agentrl-sandbox-"))
        self._parent: WarmParent | None = None
        self._warm: deque[Interpreter] = deque()
        self._refill_task: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def zygote_pid(self) -> int:
        """Process id of the warm parent; 0 before the first start."""
        return self._parent.pid if self._parent is not None else 0

    def start(self) -> None:
        """Start the warm parent and the filling of the pool."""
        self._refill()

    async def take(self) -> Interpreter:
        """Return a fresh interpreter.

        Raises:
            SandboxError: none can be had.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                return await self._take_once()
            except SandboxError:
                if attempt == _TRIES or self._is_closed:
                    raise
                await asyncio.sleep(_FIRST_WAIT_S * 2**attempt)
        raise AssertionError(f"{_TRIES} tries ended without a result")

    async def end(self, interpreter: Interpreter) -> None:
        """Kill an interpreter and whatever it started, and remove its folder; safe to call twice."""
        if not interpreter.exited.done():
            interpreter.kill()
            await asyncio.wait({interpreter.exited}, timeout=_EXIT_TIMEOUT_S)
            if not interpreter.exited.done() and self._parent is not None:
                # whoever should reap it hangs; a new parent starts when one is wanted
                self._parent.kill()
        interpreter.close()
        try:
            interpreter.cwd.rmdir()
        except OSError:
            # not empty: perhaps 100,000 files, which must not hold up the clock
            await asyncio.to_thread(shutil.rmtree, interpreter.cwd, ignore_errors=True)

    async def check(self) -> None:
        """Run a known-good cell in a fresh interpreter.

        Raises:
            SandboxError: it did not give the known answer.
        """
        interpreter = await self.take()
        limits = Limits(_CONTROL_TIMEOUT_S, memory_mib=self._config.memory_mib, max_output_chars=100)
        try:
            result = await interpreter.run(_CONTROL_CELL, limits)
        except Broken as broken:
            raise SandboxError(f"a known-good cell broke the interpreter: {broken}") from broken
        finally:
            await self.end(interpreter)
        if result.value != _CONTROL_VALUE:
            raise SandboxError(f"a known-good cell gave {result.value!r} ({result.status}), not {_CONTROL_VALUE!r}")

    async def close(self) -> None:
        """End everything."""
        self._is_closed = True
        if self._refill_task is not None:
            self._refill_task.cancel()
            await asyncio.wait({self._refill_task})
        if self._parent is not None:
            await self._parent.stop()
        while self._warm:
            self._warm.popleft().close()
        await asyncio.to_thread(shutil.rmtree, self._root, ignore_errors=True)

    async def _take_once(self) -> Interpreter:
        while self._warm:
            interpreter = self._warm.popleft()
            self._refill()
            if interpreter.is_usable:
                return interpreter
            await self.end(interpreter)
        parent = self._running_parent()
        await parent.wait_ready()
        return await parent.fork()

    def _running_parent(self) -> WarmParent:
        if self._is_closed:
            raise SandboxError("the sandbox is closed")
        if self._parent is None or self._parent.is_gone:
            try:
                self._parent = WarmParent(self._root, self._config.memory_mib)
            except OSError as error:
                raise SandboxError(f"the sandbox's parent process can't be started: {error}") from error
            self.num_starts += 1
            self._refill()
        return self._parent

    def _refill(self) -> None:
        if not self._is_closed and (self._refill_task is None or self._refill_task.done()):
            self._refill_task = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        """Fork until the pool is full; a failure shows where an interpreter is wanted."""
        try:
            parent = self._running_parent()
            await parent.wait_ready()
            while len(self._warm) < self._config.pool_size:
                self._warm.append(await parent.fork())
        except SandboxError:
            return
