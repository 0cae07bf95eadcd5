"""One interpreter of the sandbox: reads cells from its protocol socket, runs them, answers.

Frames are a 4-byte length and that many bytes. The trainer sends JSON `{"code": …}`; the child answers
with an empty frame when the cell starts, then JSON `{"ok", "value", "kind", "exception", "cpu_s",
"peak_mib"}`. Whoever reads that answer must not trust it: the code that ran could have written it.
"""

from __future__ import annotations

import ast
import json
import os
import random
import resource
import signal
import socket
import sys
import traceback
from types import FrameType
from typing import Any

_CELL = "<cell>"
_TRACEBACK_CHARS = 2000
_VALUE_CHARS = 8000
_PROTOCOL_FD = 200
_SEED = 0

_in_cell = False


def serve_session(fds: list[int]) -> None:
    """Serve cells until the other end closes; never returns."""
    import numpy as np

    protocol = _take_over(fds)
    random.seed(_SEED)
    np.random.seed(_SEED)
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    while True:
        request = json.loads(_read_frame(protocol))
        _write_frame(protocol, b"")
        answer = _run(request["code"], names)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        answer["cpu_s"] = usage.ru_utime + usage.ru_stime
        answer["peak_mib"] = usage.ru_maxrss / 1024
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
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    return socket.socket(fileno=_PROTOCOL_FD)


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    """Stop a cell; between cells there is nothing to stop."""
    if _in_cell:
        raise KeyboardInterrupt


def _run(code: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run one cell and say how it went."""
    global _in_cell
    signal.signal(signal.SIGINT, _on_interrupt)
    kind, exception, value = "ok", "", ""
    try:
        _in_cell = True
        value = _execute(code, names)
        _in_cell = False
    except MemoryError:
        kind, exception = "memory", "MemoryError"
    except KeyboardInterrupt:
        kind, exception = "interrupted", "KeyboardInterrupt"
    except SystemExit as error:
        kind, exception = "error", f"SystemExit: {error.code}"
    except BaseException as error:
        kind, exception = "error", _short_traceback(error, code)
    finally:
        _in_cell = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # the cell closed or replaced the stream; what it lost is its own
            continue
    return {"kind": kind, "value": value, "exception": exception}


def _execute(code: str, names: dict[str, Any]) -> str:
    """Execute a cell; returns the repr of its last expression, as a notebook shows it."""
    tree = ast.parse(code, _CELL)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, _CELL, "exec"), names)
    if last is None:
        return ""
    value = eval(compile(ast.Expression(last.value), _CELL, "eval"), names)
    if value is None:
        return ""
    names["_"] = value
    text = repr(value)
    return text if len(text) <= _VALUE_CHARS else text[:_VALUE_CHARS] + f"… ({len(text)} characters)"


def _short_traceback(error: BaseException, code: str) -> str:
    """Return the cell's own frames and the exception's line; a one-line cell needs no frames."""
    try:
        summary = "".join(traceback.format_exception_only(error)).rstrip("\n")
        if isinstance(error, SyntaxError) and error.filename == _CELL:
            summary = f"{type(error).__name__}: {error.msg} (line {error.lineno})"
        lines = code.splitlines()
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == _CELL]
        if len(lines) > 1:
            shown = [f"line {f.lineno}, in {f.name}: {lines[(f.lineno or 1) - 1].strip()}" for f in frames[-8:]]
            summary = "\n".join([*shown, summary])
    except BaseException as failure:
        # an exception class of the cell may fail when it is shown
        summary = f"{type(error).__name__} (its message can't be shown: {type(failure).__name__})"
    if len(summary) > _TRACEBACK_CHARS:
        half = _TRACEBACK_CHARS // 2
        summary = f"{summary[:half]}\n…\n{summary[-half:]}"
    return summary


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
