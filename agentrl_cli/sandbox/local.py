"""Interpreters on this machine, forked ahead of need from one warm parent (`zygote.py`).

Everything is supervised by an event loop on a thread of its own: time limits hold while the trainer's
thread computes, and one sandbox serves any number of event loops, one after the other or at once.
What a child says is data; what decides a status is the trainer's own clock and the exit status that
the zygote reaped.

Every session starts alike: fixed hash seed, `random` and `numpy.random` seeded with 0, UTC, an empty
folder. Isolation level: `minimal` (separate process, resource limits, clean environment, own folder).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import resource
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from agentrl_cli.config.schema import SandboxConfig
from agentrl_cli.errors import SandboxError
from agentrl_cli.sandbox.base import Limits, Result, Session
from agentrl_cli.sandbox.interpreter import Broken, Interpreter
from agentrl_cli.sandbox.pool import Pool
from agentrl_cli.types import ToolStatus

ISOLATION = "minimal"
RESTARTED = "(the interpreter was restarted: earlier variables are lost)"
_CLOSED = "the sandbox is closed"
_MAX_LOST = 3
"""Times that a cell is run again because the warm parent went away under it; killing it may be its own doing."""
_FDS_PER_SESSION = 3
_OTHER_FDS = 512
_T = TypeVar("_T")


class LocalSandbox:
    """Hands out interpreters; see the module's text."""

    def __init__(self, config: SandboxConfig) -> None:
        """Start the supervising thread and, in it, the warm parent; returns at once.

        Raises the process's own soft limit of open files where the sessions need it.
        """
        _allow_open_files(_FDS_PER_SESSION * (config.max_sessions + config.pool_size) + _OTHER_FDS)
        self._config = config
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agentrl-sandbox", daemon=True)
        self._thread.start()
        self._pool = self._submit(self._make_pool()).result()

    @property
    def num_restarts(self) -> int:
        """Times that the warm parent had to be started again."""
        return max(0, self._pool.num_starts - 1)

    @property
    def zygote_pid(self) -> int:
        """Process id of the warm parent; 0 before its first start."""
        return self._pool.zygote_pid

    async def open(self) -> Session:
        """Hand out a fresh session; waits while `max_sessions` are open.

        Raises:
            SandboxError: no interpreter can be had.
        """
        session = _Session(self, self._pool, self._config.memory_mib)
        try:
            await self.call(session.enter())
        except BaseException:
            # cancelled perhaps while it waits: it must not take a place later
            with contextlib.suppress(SandboxError):
                self._submit(session.leave())
            raise
        return session

    async def health(self) -> str:
        """Return the isolation level after running a known-good cell."""
        await self.call(self._pool.check())
        return ISOLATION

    async def close(self) -> None:
        """End all processes and the thread; safe to call twice."""
        if self._is_closed:
            return
        closing = self._submit(self._shut_down())
        self._is_closed = True
        await asyncio.wrap_future(closing)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the supervising loop and wait for it on the caller's.

        A caller that is cancelled stops waiting; the coroutine still runs to its end.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[_T] = loop.create_future()

        def hand_over(done: concurrent.futures.Future[_T]) -> None:
            # fails if the caller's loop is closed: then nobody waits
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, waiter, done)

        self._submit(coroutine).add_done_callback(hand_over)
        return await waiter

    def _submit(self, coroutine: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        if self._is_closed:
            coroutine.close()
            raise SandboxError(_CLOSED)
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _make_pool(self) -> Pool:
        pool = Pool(self._config)
        pool.start()
        return pool

    async def _shut_down(self) -> None:
        """Close the pool and whatever still waits for something from it."""
        await self._pool.close()
        waiting = asyncio.all_tasks() - {asyncio.current_task()}
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()


class _Session:
    """One trajectory's interpreter; replaced by a fresh one after it had to be killed."""

    def __init__(self, sandbox: LocalSandbox, pool: Pool, memory_mib: int) -> None:
        self._sandbox = sandbox
        self._pool = pool
        self._memory_mib = memory_mib
        self._interpreter: Interpreter | None = None
        self._history: list[tuple[str, Limits]] = []
        """Cells that made the variables of the interpreter."""
        self._was_killed = False
        self._has_place = False
        self._is_closed = False

    async def run(self, code: str, limits: Limits) -> Result:
        """Run a cell; `limits.memory_mib` must not exceed the sandbox's own."""
        assert limits.memory_mib <= self._memory_mib, f"limit {limits.memory_mib} MiB > {self._memory_mib} MiB"
        try:
            result = await self._sandbox.call(self._run(code, limits))
        except SandboxError as error:
            result = Result(ToolStatus.SANDBOX_ERROR, exception=error.message)
        return replace(result, isolation=ISOLATION)

    async def close(self) -> None:
        """End the interpreter and everything it started; safe to call twice."""
        # a closed sandbox has ended it
        with contextlib.suppress(SandboxError):
            await self._sandbox.call(self.leave())

    async def enter(self) -> None:
        """Wait for a place and take an interpreter (on the supervising loop, as all that follows)."""
        await self._pool.places.acquire()
        if self._is_closed:
            self._pool.places.release()
            return
        self._has_place = True
        self._interpreter = await self._take()

    async def leave(self) -> None:
        """End the interpreter and give the place back."""
        self._is_closed = True
        await self._drop()
        if self._has_place:
            self._has_place = False
            self._pool.places.release()

    async def _run(self, code: str, limits: Limits) -> Result:
        """Run a cell; one that breaks the interpreter is replayed, then judged against a known-good cell."""
        note, self._was_killed = RESTARTED if self._was_killed else "", False
        try:
            result = await self._attempt(code, limits)
        except Broken as broken:
            result = await self._replay(code, limits, broken)
        if note:
            result = replace(result, stderr=f"{note}\n{result.stderr}")
        return result

    async def _attempt(self, code: str, limits: Limits) -> Result:
        """Run a cell in the session's interpreter, or a fresh one if it has none."""
        if self._interpreter is None:
            self._interpreter = await self._take()
        interpreter = self._interpreter
        result = await interpreter.run(code, limits)
        if not interpreter.is_usable:
            await self._give_up()
        elif result.status in (ToolStatus.OK, ToolStatus.ERROR):
            self._history.append((code, limits))
        return result

    async def _replay(self, code: str, limits: Limits, broken: Broken) -> Result:
        """Find out whose doing it was that an interpreter broke.

        The cell runs again in a fresh interpreter, after the cells that made its variables. If that
        breaks too and a known-good cell passes, it is the code's doing.
        """
        alone = self._pool.quarantine if broken.is_lost else contextlib.nullcontext()
        num_lost = int(broken.is_lost)
        async with alone:
            while True:
                try:
                    return await self._run_again(code, limits)
                except Broken as again:
                    broken = again
                    num_lost += again.is_lost
                    if not again.is_lost or num_lost >= _MAX_LOST:
                        break
        await self._give_up()
        await self._pool.check()
        return broken.result

    async def _run_again(self, code: str, limits: Limits) -> Result:
        await self._drop()
        history, self._history = self._history, []
        try:
            for cell in history:
                await self._attempt(*cell)
        except Broken:
            self._history = history
            raise
        return await self._attempt(code, limits)

    async def _take(self) -> Interpreter:
        interpreter = None if self._is_closed else await self._pool.take()
        # it may have been closed meanwhile
        if interpreter is None or self._is_closed:
            if interpreter is not None:
                await self._pool.end(interpreter)
            raise SandboxError("the session is closed")
        return interpreter

    async def _give_up(self) -> None:
        """End the interpreter; the next cell gets a fresh one and is told so."""
        self._was_killed, self._history = True, []
        await self._drop()

    async def _drop(self) -> None:
        if self._interpreter is not None:
            interpreter, self._interpreter = self._interpreter, None
            await self._pool.end(interpreter)


def _settle(waiter: asyncio.Future[_T], done: concurrent.futures.Future[_T]) -> None:
    """Pass a result on to whoever still waits for it."""
    if waiter.done():
        return
    error = SandboxError(_CLOSED) if done.cancelled() else done.exception()
    if error is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(done.result())


def _allow_open_files(count: int) -> None:
    """Raise the soft limit of open files to `count`, or as far as the hard limit lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
