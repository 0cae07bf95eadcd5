"""One interpreter of the sandbox: reads cells from its protocol socket, runs them, answers.

Frames are a 4-byte length and that many bytes. The trainer sends JSON `{"code", "memory_mib",
"max_chars", "cpu_limit_s"}`; the child answers with an empty frame when the cell starts, then with JSON
`{"kind", "value", "is_cut", "exception", "is_spent", "cpu_s", "peak_mib"}`. Whoever reads that answer
must not trust it: the code that ran could have written it.
"""

from __future__ import annotations

import ast
import gc
import json
import math
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import time
import traceback
from types import FrameType, ModuleType
from typing import Any

from agentrl_cli.sandbox.output import cut_bytes, cut_middle

ANSWER_RESERVE_MIB = 32
"""Memory beyond a cell's limit, so that a cell that used all of it can still be answered for."""
MAX_EXCEPTION_BYTES = 2048
_MAX_FRAMES = 8
_PROTOCOL_FD = 200
_SEED = 0
"""Of `random` and `numpy.random` in every session: equal cells give equal output."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def used_bytes() -> int:
    """Return the size of this process's address space; 0 where there is no /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * _PAGE_BYTES
    except FileNotFoundError:
        return 0


def peak_mib(usage: resource.struct_rusage) -> float:
    """Return the largest resident size."""
    return usage.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def serve_session(fds: list[int], *, base_bytes: int) -> None:
    """Serve cells until the other end closes; never returns.

    Args:
        fds: protocol socket and the write ends of stdout and stderr; all other descriptors are closed.
        base_bytes: address space that the loaded interpreter takes, to which a cell's limit is added.
    """
    protocol = _take_over(fds)
    cells = _Cells(base_bytes)
    own_pid = os.getpid()
    while True:
        request = json.loads(_read_frame(protocol))
        _write_frame(protocol, b"")
        answer = cells.run(request)
        if os.getpid() != own_pid:
            # the cell forked, and this is its copy of us: one of us answers
            os._exit(0)
        _write_frame(protocol, json.dumps(answer).encode())


def _take_over(fds: list[int]) -> socket.socket:
    """Put the descriptors in place: protocol out of the way, output on 1 and 2, nothing to read on 0."""
    protocol_fd, out, err = fds
    os.dup2(protocol_fd, _PROTOCOL_FD, inheritable=False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, _PROTOCOL_FD)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    return socket.socket(fileno=_PROTOCOL_FD)


class _Cells:
    """Runs the cells of one session in one namespace, and keeps their sources for tracebacks."""

    def __init__(self, base_bytes: int) -> None:
        import numpy as np

        self._base_bytes = base_bytes
        self._sources: dict[str, str] = {}
        self._is_running = False
        module = ModuleType("__main__")
        self._names = module.__dict__
        self._names["__builtins__"] = __builtins__
        sys.modules["__main__"] = module
        sys.argv = [""]
        sys.path.insert(0, "")
        os.environ["TMPDIR"] = os.getcwd()
        tempfile.tempdir = None
        random.seed(_SEED)
        np.random.seed(_SEED)

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Run one cell and say how it went."""
        cpu_before = time.process_time()
        self._limit(request["memory_mib"], math.ceil(cpu_before) + request["cpu_limit_s"])
        signal.signal(signal.SIGINT, self._on_interrupt)
        answer = {"kind": "ok", "value": "", "is_cut": False, "exception": "", "is_spent": False}
        try:
            self._is_running = True
            answer |= self._run(request["code"], request["max_chars"])
            self._is_running = False
        except KeyboardInterrupt:
            answer |= {"kind": "error", "exception": "KeyboardInterrupt"}
        finally:
            self._is_running = False
        _lift_soft_limits()
        if answer["kind"] == "memory":
            answer["is_spent"] = self._is_spent(request["memory_mib"])
        answer["cpu_s"] = time.process_time() - cpu_before
        answer["peak_mib"] = peak_mib(resource.getrusage(resource.RUSAGE_SELF))
        return answer

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        """Stop a cell; between cells there is nothing to stop."""
        if self._is_running:
            raise KeyboardInterrupt

    def _limit(self, memory_mib: int, cpu_limit_s: int) -> None:
        """Set the limits of one cell, below the session's own; CPU only in case that nobody watches the clock."""
        bounds = {resource.RLIMIT_CPU: cpu_limit_s}
        if self._base_bytes:
            bounds[resource.RLIMIT_AS] = self._base_bytes + (memory_mib << 20)
        for what, bound in bounds.items():
            _, most = resource.getrlimit(what)
            resource.setrlimit(what, (bound if most == resource.RLIM_INFINITY else min(bound, most), most))

    def _is_spent(self, memory_mib: int) -> bool:
        """The variables of the session leave no memory to work with."""
        gc.collect()
        return used_bytes() - self._base_bytes > (memory_mib << 20) // 2

    def _run(self, code: str, max_chars: int) -> dict[str, Any]:
        """Run user code, the formatting of what it raises included; KeyboardInterrupt passes through."""
        name = f"<cell {len(self._sources) + 1}>"
        self._sources[name] = code
        try:
            try:
                value = self._execute(code, name)
            finally:
                _flush()
            return {"value": cut_middle(value, max_chars), "is_cut": len(value) > max_chars}
        except KeyboardInterrupt:
            raise
        except MemoryError as error:
            _lift_soft_limits()
            return {"kind": "memory", "exception": cut_bytes(str(error), 200)}
        except SystemExit as error:
            if error.code in (None, 0):
                return {}
            return {"kind": "error", "exception": cut_bytes(f"SystemExit: {error.code}", MAX_EXCEPTION_BYTES)}
        except BaseException as error:
            return {"kind": "error", "exception": self._short_traceback(error, name)}

    def _execute(self, code: str, name: str) -> str:
        """Execute a cell; returns the repr of its last expression, as a notebook shows it."""
        tree = ast.parse(code, name)
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.Expr):
            tree.body.pop()
        exec(compile(tree, name, "exec", dont_inherit=True), self._names)
        if not isinstance(last, ast.Expr):
            return ""
        value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), self._names)
        if value is None:
            return ""
        self._names["_"] = value
        return repr(value)

    def _short_traceback(self, error: BaseException, name: str) -> str:
        """Return the frames that lie in cells and the exception's line; a one-line cell needs no frames."""
        try:
            if isinstance(error, SyntaxError) and error.filename == name:
                return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
            summary = "".join(traceback.format_exception_only(error)).rstrip("\n")
            frames = [(f.f_code, line) for f, line in traceback.walk_tb(error.__traceback__)]
            shown = [self._show_frame(code.co_filename, code.co_name, line, name) for code, line in frames]
            own = [line for line in shown if line]
            if len(own) > 1 or len(self._sources[name].splitlines()) > 1:
                summary = "\n".join([*own[-_MAX_FRAMES:], summary])
        except KeyboardInterrupt:
            raise
        except BaseException as failure:
            # an exception class of the cell may fail when it is shown
            summary = f"{type(error).__name__} (its message can't be shown: {type(failure).__name__})"
        return cut_bytes(summary, MAX_EXCEPTION_BYTES)

    def _show_frame(self, file: str, function: str, line: int, current: str) -> str:
        """Return one line of a traceback; empty for frames of libraries and of our own."""
        if file not in self._sources:
            return ""
        source = self._sources[file].splitlines()
        text = source[line - 1].strip() if 0 < line <= len(source) else ""
        where = "" if file == current else f"{file.strip('<>')}, "
        return f"{where}line {line}, in {function}: {text}"


def _flush() -> None:
    """Send off what the cell printed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # the cell closed or replaced the stream; what it lost is its own
            continue


def _lift_soft_limits() -> None:
    """Give ourselves what lies above a cell's limits."""
    for what in (resource.RLIMIT_AS, resource.RLIMIT_CPU):
        _, most = resource.getrlimit(what)
        resource.setrlimit(what, (most, most))


def _read_frame(protocol: socket.socket) -> bytes:
    length = int.from_bytes(_read_exactly(protocol, 4), "big")
    return _read_exactly(protocol, length)


def _read_exactly(protocol: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = protocol.recv(min(count - len(data), 1 << 16))
        if not part:
            os._exit(0)
        data += part
    return bytes(data)


def _write_frame(protocol: socket.socket, data: bytes) -> None:
    protocol.sendall(len(data).to_bytes(4, "big") + data)
