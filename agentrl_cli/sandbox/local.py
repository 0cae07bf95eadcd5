"""Interpreters on this machine, forked ahead of need from one warm parent (`zygote.py`).

Everything is supervised by an event loop on a thread of its own: time limits hold while the trainer's
thread computes, and one sandbox serves any number of event loops. What a child says is data; what
decides a status is the trainer's own clock and the exit status that the zygote reaped.

Isolation level: `minimal` (separate process, resource limits, clean environment, own folder).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from agentrl_cli.config.schema import SandboxConfig
from agentrl_cli.errors import SandboxError
from agentrl_cli.sandbox.base import Limits, Result, Session
from agentrl_cli.sandbox.interpreter import Broken, Interpreter
from agentrl_cli.types import ToolStatus

ISOLATION = "minimal"
CONTROL_CELL = "6*7"
CONTROL_VALUE = "42"
RESTARTED = "(the interpreter was restarted: earlier variables are lost)"
_START_TIMEOUT_S = 60.0
_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
_T = TypeVar("_T")


class LocalSandbox:
    """Hands out interpreters; see the module's text."""

    def __init__(self, config: SandboxConfig) -> None:
        """Start the supervising thread and, in it, the warm parent; returns at once."""
        self._loop = asyncio.new_event_loop()
        self._pool = _Pool(config)
        self._thread = threading.Thread(target=self._loop.run_forever, name="agentrl-sandbox", daemon=True)
        self._thread.start()
        self._submit(self._pool.start())
        self._closed = False

    @property
    def num_restarts(self) -> int:
        """Times that the warm parent had to be started again."""
        return self._pool.num_restarts

    async def open(self) -> Session:
        """Hand out a fresh session; waits while `max_sessions` are open."""
        return _Session(self, await self._on_loop(self._pool.take_place()))

    async def health(self) -> str:
        """Return the isolation level after running a known-good cell."""
        await self._on_loop(self._pool.check())
        return ISOLATION

    async def close(self) -> None:
        """End all processes and the thread."""
        if self._closed:
            return
        self._closed = True
        await self._on_loop(self._pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _submit(self, coroutine: Coroutine[Any, Any, _T]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def _on_loop(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the supervising loop and wait for it on the caller's."""
        result: _T = await asyncio.wrap_future(self._submit(coroutine))
        return result


class _Session:
    """One trajectory's interpreter; replaced by a fresh one after it had to be killed."""

    def __init__(self, sandbox: LocalSandbox, state: _SessionState) -> None:
        self._sandbox = sandbox
        self._state = state

    async def run(self, code: str, limits: Limits) -> Result:
        """Run a cell."""
        return await self._sandbox._on_loop(self._state.run(code, limits))

    async def close(self) -> None:
        """End the interpreter."""
        await self._sandbox._on_loop(self._state.close())


class _SessionState:
    """A session as the supervising loop sees it."""

    def __init__(self, pool: _Pool) -> None:
        self._pool = pool
        self._interpreter: Interpreter | None = None
        self._good_cells: list[str] = []
        self._was_killed = False
        self._open = True

    async def run(self, code: str, limits: Limits) -> Result:
        """Run a cell; one that breaks the interpreter is replayed once, then judged against a control cell."""
        if not self._open:
            raise SandboxError("the session is closed")
        note = RESTARTED if self._was_killed else ""
        self._was_killed = False
        try:
            result = await self._run_once(code, limits)
        except Broken as broken:
            result = await self._replay(code, limits, broken)
        if result.status in (ToolStatus.OK, ToolStatus.ERROR):
            self._good_cells.append(code)
        if note:
            result = replace(result, stderr="\n".join(part for part in (note, result.stderr) if part))
        return replace(result, isolation=ISOLATION)

    async def close(self) -> None:
        """End the interpreter and give the place back."""
        if not self._open:
            return
        self._open = False
        await self._drop()
        self._pool.give_place_back()

    async def _run_once(self, code: str, limits: Limits) -> Result:
        if self._interpreter is None:
            self._interpreter = await self._pool.take_interpreter(limits.memory_mib)
        result = await self._interpreter.run(code, limits)
        if not self._interpreter.is_alive:
            await self._drop()
            self._was_killed, self._good_cells = True, []
        return result

    async def _replay(self, code: str, limits: Limits, broken: Broken) -> Result:
        """Decide whether a broken interpreter was the code's doing."""
        await self._drop()
        try:
            for cell in self._good_cells:
                await self._run_once(cell, limits)
            return await self._run_once(code, limits)
        except Broken as again:
            await self._drop()
            await self._pool.check()
            self._was_killed, self._good_cells = True, []
            return Result(ToolStatus.CRASH, again.stdout, again.stderr, exception=broken.reason)

    async def _drop(self) -> None:
        if self._interpreter is not None:
            interpreter, self._interpreter = self._interpreter, None
            await self._pool.end(interpreter)


class _Pool:
    """The warm parent, the interpreters waiting in its pool, and the places of open sessions."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._serial = itertools.count()
        self._root = Path(tempfile.mkdtemp(prefix="agentrl-sandbox-"))
        self._warm: deque[Interpreter] = deque()
        self._forking: dict[int, asyncio.Future[int]] = {}
        self._children: dict[int, Interpreter] = {}
        self._places: asyncio.Semaphore | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready: asyncio.Future[None] | None = None
        self._refill_task: asyncio.Task[None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self.num_restarts = -1

    async def start(self) -> None:
        """Start the warm parent if it does not run, and wait until it is warm."""
        async with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._launch()
        assert self._ready is not None
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await asyncio.shield(self._ready)
        except TimeoutError as error:
            raise SandboxError(f"the sandbox did not start within {_START_TIMEOUT_S:.0f} s") from error

    async def take_place(self) -> _SessionState:
        """Wait for one of the `max_sessions` places."""
        if self._places is None:
            self._places = asyncio.Semaphore(self._config.max_sessions)
        await self._places.acquire()
        return _SessionState(self)

    def give_place_back(self) -> None:
        """Let the next session in."""
        assert self._places is not None
        self._places.release()

    async def take_interpreter(self, memory_mib: int) -> Interpreter:
        """Return a fresh interpreter, from the pool if it holds one with this memory limit."""
        await self.start()
        while self._warm:
            interpreter = self._warm.popleft()
            self._refill()
            if interpreter.is_alive and memory_mib == self._config.memory_mib:
                return interpreter
            await self.end(interpreter)
        return await self._fork(memory_mib)

    async def check(self) -> None:
        """Run a known-good cell in a fresh interpreter.

        Raises:
            SandboxError: it did not give the known answer.
        """
        interpreter = await self.take_interpreter(self._config.memory_mib)
        limits = Limits(timeout_s=30.0, memory_mib=self._config.memory_mib, max_output_chars=100)
        try:
            result = await interpreter.run(CONTROL_CELL, limits)
        except Broken as broken:
            raise SandboxError(f"a known-good cell broke the interpreter: {broken.reason}") from broken
        finally:
            await self.end(interpreter)
        if result.value != CONTROL_VALUE:
            raise SandboxError(f"a known-good cell gave {result.value!r} ({result.status}), not {CONTROL_VALUE!r}")

    async def end(self, interpreter: Interpreter) -> None:
        """Kill an interpreter and whatever it started, and remove its folder."""
        self.signal(interpreter.pid, signal.SIGKILL)
        interpreter.close()
        shutil.rmtree(interpreter.cwd, ignore_errors=True)

    def signal(self, pid: int, number: int) -> None:
        """Have a signal sent to a child, if it has not been reaped."""
        if pid in self._children:
            self._send({"signal": pid, "number": int(number)}, [])

    async def close(self) -> None:
        """End everything."""
        if self._refill_task is not None:
            self._refill_task.cancel()
        if self._reader is not None:
            self._reader.cancel()
        for interpreter in list(self._children.values()):
            interpreter.close()
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._root, ignore_errors=True)

    def _launch(self) -> None:
        """Start the warm parent and listen to it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        script = Path(__file__).with_name("zygote.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(script), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=_ENVIRONMENT,
            cwd=self._root,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        self._control = ours
        self._ready = asyncio.get_running_loop().create_future()
        self.num_restarts += 1
        self._reader = asyncio.create_task(self._listen(ours, self._ready))

    async def _listen(self, control: socket.socket, ready: asyncio.Future[None]) -> None:
        """Handle what the warm parent says, until it goes away."""
        loop = asyncio.get_running_loop()
        rest = b""
        while data := await loop.sock_recv(control, 1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._handle(json.loads(line), ready)
        error = SandboxError("the sandbox's parent process ended")
        for future in [ready, *self._forking.values()]:
            if not future.done():
                future.set_exception(error)
        self._forking.clear()
        for interpreter in self._children.values():
            interpreter.set_exited(None)
        self._children.clear()
        self._warm.clear()

    def _handle(self, message: dict[str, Any], ready: asyncio.Future[None]) -> None:
        if "ready" in message:
            ready.set_result(None)
            self._refill()
        elif "forked" in message:
            future = self._forking.pop(message["forked"])
            if not future.done():
                future.set_result(message["pid"])
        else:
            interpreter = self._children.pop(message["exited"], None)
            if interpreter is not None:
                interpreter.set_exited(message["status"])

    def _refill(self) -> None:
        if self._refill_task is None or self._refill_task.done():
            self._refill_task = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        """Fork until the pool is full; a failure shows when an interpreter is wanted."""
        try:
            while len(self._warm) < self._config.pool_size:
                self._warm.append(await self._fork(self._config.memory_mib))
        except SandboxError:
            return

    async def _fork(self, memory_mib: int) -> Interpreter:
        serial = next(self._serial)
        interpreter = Interpreter(self._root / str(serial), signal=self.signal)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._forking[serial] = future
        request = {"fork": serial, "cwd": str(interpreter.cwd), "memory_mib": memory_mib}
        try:
            self._send(request, interpreter.child_fds)
        finally:
            interpreter.close_child_fds()
        # the exit of a child that dies at once is reported after its pid, so it can't be missed
        future.add_done_callback(lambda done: self._adopt(done, interpreter))
        await asyncio.shield(future)
        return interpreter

    def _adopt(self, done: asyncio.Future[int], interpreter: Interpreter) -> None:
        if done.cancelled() or done.exception() is not None:
            interpreter.close()
            return
        interpreter.pid = done.result()
        self._children[interpreter.pid] = interpreter

    def _send(self, message: dict[str, Any], fds: list[int]) -> None:
        assert self._control is not None
        data = json.dumps(message).encode() + b"\n"
        try:
            sent = socket.send_fds(self._control, [data], fds) if fds else self._control.send(data)
        except OSError as error:
            raise SandboxError(f"the sandbox's parent process can't be reached: {error.strerror}") from error
        if sent != len(data):
            raise SandboxError("the sandbox's parent process does not keep up")


