"""The trainer's end of the zygote: starts it, asks it for children, hears of their exits.

Lives on the sandbox's own event loop. A zygote that ended is replaced by a new `WarmParent`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

from agentrl_cli.errors import SandboxError
from agentrl_cli.sandbox.interpreter import Exit, Interpreter

_START_TIMEOUT_S = 120.0
_FORK_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 3.0
_MAX_FORKS = 16
"""Forks asked for at a time: each has three descriptors on their way."""
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from agentrl_cli.sandbox.zygote import main; "
    "del sys.path[0]; main(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))"
)
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # each arena reserves address space, which is what is limited
    "MALLOC_ARENA_MAX": "2",
}
_ENDED = "the sandbox's parent process ended"
_PASSED_ON = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""What the interpreter may need to start at all."""


class WarmParent:
    """One zygote process with its children."""

    def __init__(self, root: Path, memory_mib: int) -> None:
        """Start the process; `wait_ready` says when it can fork."""
        self._root = root
        self._serial = itertools.count()
        self._forks = asyncio.Semaphore(_MAX_FORKS)
        self._forking: dict[int, tuple[Interpreter, asyncio.Future[str]]] = {}
        self._children: dict[int, Interpreter] = {}
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        package_root = Path(__file__).resolve().parent.parent.parent
        arguments = [str(package_root), str(theirs.fileno()), str(root), str(memory_mib)]
        with theirs:
            self._process = subprocess.Popen(
                # not -I, which would ignore the hash seed too
                [sys.executable, "-s", "-P", "-B", "-c", _BOOT, *arguments],
                pass_fds=[theirs.fileno()],
                env=_ENVIRONMENT | {name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                cwd=root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.is_gone = False
        self._is_stopping = False
        self._listener = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        """Process id of the zygote."""
        return self._process.pid

    async def wait_ready(self) -> None:
        """Wait until it can fork.

        Raises:
            SandboxError: it ended or took too long.
        """
        await asyncio.wait({self._ready}, timeout=_START_TIMEOUT_S)
        if not self._ready.done():
            self._process.kill()
            raise SandboxError(f"the sandbox did not start within {_START_TIMEOUT_S:g} s")
        self._ready.result()

    async def fork(self) -> Interpreter:
        """Return a new interpreter.

        Raises:
            SandboxError: there are no processes or descriptors left, or the zygote is gone.
        """
        async with self._forks:
            if self.is_gone:
                raise SandboxError(_ENDED)
            serial = next(self._serial)
            try:
                # the zygote's id tells the folders of successive parents apart
                interpreter = Interpreter(self._root / f"{self.pid}-{serial}", send_signal=self.send_signal)
            except OSError as error:
                raise SandboxError(f"no interpreter can be started: {error}") from error
            done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self._forking[serial] = (interpreter, done)
            fds, interpreter.child_fds = interpreter.child_fds, []
            self._send({"fork": serial, "cwd": str(interpreter.cwd)}, fds)
            await asyncio.wait({done}, timeout=_FORK_TIMEOUT_S)
            error_text = done.result() if done.done() else "the sandbox's parent process hangs"
            if error_text:
                interpreter.close()
                if not done.done():
                    self._process.kill()
                raise SandboxError(f"no interpreter can be started: {error_text}")
            return interpreter

    def send_signal(self, pid: int, number: int) -> None:
        """Have a signal sent to a child's group, if the child has not been reaped."""
        if pid in self._children:
            self._send({"signal": pid, "number": int(number)}, [])

    def kill(self) -> None:
        """End the zygote at once, because it hangs."""
        self._process.kill()

    async def stop(self) -> None:
        """End the zygote and all that it started."""
        self._is_stopping = True
        if self._ready.done() and not self.is_gone:
            # it kills its children and removes the folder when the socket closes
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            await asyncio.wait({self._listener}, timeout=_STOP_TIMEOUT_S)
        self._process.kill()
        await asyncio.wait({self._listener}, timeout=_STOP_TIMEOUT_S)
        await asyncio.to_thread(self._process.wait)

    async def _listen(self) -> None:
        """Handle what the zygote says, until it goes away."""
        loop = asyncio.get_running_loop()
        rest = b""
        try:
            while data := await loop.sock_recv(self._control, 1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._handle(json.loads(line))
        except ConnectionError:
            pass  # the same as its end
        finally:
            self._lose_all()
        await asyncio.to_thread(self._process.wait)

    def _handle(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready.set_result(None)
        elif "forked" in message:
            interpreter, done = self._forking.pop(message["forked"])
            if "pid" in message:
                # at once, since its exit may be reported in the same breath
                interpreter.pid = message["pid"]
                self._children[interpreter.pid] = interpreter
            done.set_result(message.get("error", ""))
        else:
            how = Exit(message["status"], message["cpu_s"], message["peak_mib"])
            self._children.pop(message["exited"]).set_exited(how)

    def _lose_all(self) -> None:
        """The zygote is gone, and its children with it (but for what they started)."""
        self.is_gone = True
        self._process.kill()
        asyncio.get_running_loop().remove_writer(self._control)
        self._control.close()
        for _, fds in self._outbox:
            _close_all(fds)
        self._outbox.clear()
        if not self._ready.done():
            self._ready.set_exception(SandboxError(_ENDED))
            self._ready.exception()  # noticed even if nobody waits
        for _, done in self._forking.values():
            done.set_result(_ENDED)
        self._forking.clear()
        for pid, interpreter in self._children.items():
            # one that was asked to stop has reaped its children; their ids may be anyone's
            if not self._is_stopping:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
            interpreter.set_exited(None)
        self._children.clear()

    def _send(self, message: dict[str, Any], fds: list[int]) -> None:
        """Send a request, now or when the socket has room; closes our copies of the descriptors."""
        if self.is_gone:
            _close_all(fds)
            return
        self._outbox.append((json.dumps(message).encode() + b"\n", fds))
        self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        while self._outbox:
            data, fds = self._outbox[0]
            try:
                sent = socket.send_fds(self._control, [data], fds) if fds else self._control.send(data)
            except BlockingIOError:
                loop.add_writer(self._control, self._flush)
                return
            except OSError:
                # the listener sees its end
                break
            _close_all(fds)
            self._outbox[0] = (data[sent:], [])
            if sent == len(data):
                self._outbox.popleft()
        loop.remove_writer(self._control)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
