"""What runs on a SandboxFusion server during one call: a supervisor with one interpreter under it.

Sent as source by `fusion_program.py`, so it and what it imports keep to the standard library, numpy and
Python 3.10, for which SandboxFusion's runtime/python/install-python-runtime.sh makes its environment.
The interpreter is the local backend's (`child.py`). It is forked before the request is read, so that
nothing of the request lies in its memory.

stdin: JSON `{"answer_file", "cells": [{"code", "timeout_s"}, ...], "memory_mib", "max_chars"}`. All cells
run in one interpreter; the last one is what the call is about, the others make its variables again.
The answer file, in the working directory: the JSON of `Report`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from agentrl_cli.sandbox.child import ANSWER_RESERVE_MIB, peak_mib, serve_session, used_bytes
from agentrl_cli.sandbox.output import BoundedText

START_TIMEOUT_S = 10.0
"""A cell that has not begun by then has no interpreter behind it."""
GRACE_S = 0.5
"""Between the soft stop and the hard one, and between a closed connection and the end of the process."""
_MAX_OUTPUT_BYTES = 32 << 20
"""Output of one cell at which it is stopped."""
_MAX_FRAME_BYTES = 64 << 20
_READ_BYTES = 1 << 16
_LAST_READS = 16
"""Reads of a pipe after the cell ended: more than a pipe holds, and an end for one that is written on."""
REPLAY_FACTOR = 2.0
"""An earlier cell may take so many times its limit when it runs again, for a machine that is busier now."""


@dataclass
class Report:
    """What came of the last cell, or of the first earlier cell that did not run again."""

    failed_cell: int = -1
    """Index of an earlier cell that did not end well this time; -1 if all did."""
    stop: str = ""
    """Why the cell was stopped: `timeout` or `output_limit`; empty if it was not."""
    answer: str = ""
    """The interpreter's own words, to be read with `cell.read_answer`; empty if it broke."""
    reason: str = ""
    """How the interpreter broke, where its exit status does not say it."""
    exit_status: int = -1
    """Wait status of an interpreter that ended by itself; -1 if it was alive at the end."""
    stdout: str = ""
    stderr: str = ""
    is_cut: bool = False
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mib: float = 0.0


def main() -> None:
    """Run the cells of the request on stdin and leave the report in its file."""
    import numpy  # noqa: F401  before the fork: what it takes is not the cell's

    supervisor = Supervisor()
    request = json.loads(sys.stdin.buffer.read())
    report = supervisor.run_all(request)
    supervisor.end(report)
    partial = f"{request['answer_file']}.part"
    with open(partial, "w", encoding="ascii") as file:
        json.dump(asdict(report), file)
    os.replace(partial, request["answer_file"])


class Supervisor:
    """Holds the interpreter and follows its cells; the clock and the exit status are its own."""

    def __init__(self) -> None:
        """Fork the interpreter, in a folder of its own."""
        self._protocol, theirs = socket.socketpair()
        pipes = [os.pipe() for _ in range(2)]
        self._outputs = [read for read, _ in pipes]
        os.mkdir("work", 0o700)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.setsid()
                os.chdir("work")
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                self._protocol.detach()
                serve_session([theirs.detach(), *(write for _, write in pipes)], base_bytes=used_bytes())
            finally:
                os._exit(70)
        self._base_bytes = used_bytes()
        theirs.close()
        for read, write in pipes:
            os.close(write)
            os.set_blocking(read, False)
        self._has_ended = False

    def run_all(self, request: dict[str, Any]) -> Report:
        """Run all cells; stops at an earlier one that does not end well."""
        if self._base_bytes and sys.platform == "linux":
            most = self._base_bytes + ((request["memory_mib"] + ANSWER_RESERVE_MIB) << 20)
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(self._pid, resource.RLIMIT_AS, (most, most))
        *earlier, last = request["cells"]
        for index, cell in enumerate(earlier):
            report = self.run(cell["code"], cell["timeout_s"] * REPLAY_FACTOR, request)
            if report.stop or not _is_ok(report.answer):
                report.failed_cell = index
                return report
        return self.run(last["code"], last["timeout_s"], request)

    def run(self, code: str, timeout_s: float, request: dict[str, Any]) -> Report:
        """Run one cell."""
        following = _Following(request["max_chars"])
        self._send(code, timeout_s, request)
        self._follow(following, time.monotonic() + START_TIMEOUT_S, until_begun=True)
        began_s = time.monotonic()
        report = Report()
        if not following.has_begun:
            following.reason = following.reason or "it did not begin the cell"
        elif not self._follow(following, began_s + timeout_s):
            report.stop = "output_limit" if following.num_bytes > _MAX_OUTPUT_BYTES else "timeout"
            self._signal(signal.SIGINT)
            following.num_bytes = 0
            self._follow(following, time.monotonic() + GRACE_S)
        report.wall_s = time.monotonic() - began_s
        self._read_last_output(following)
        report.answer, report.reason = following.answer, following.reason
        if not report.answer and not report.stop:
            self._note_end(report, time.monotonic() + GRACE_S)
        report.stdout, report.stderr = (stream.text() for stream in following.outputs)
        report.is_cut = any(stream.is_cut for stream in following.outputs)
        return report

    def end(self, report: Report) -> None:
        """Kill the interpreter and its group, and reap it."""
        self._signal(signal.SIGKILL)
        if not self._has_ended:
            _, _, usage = os.wait4(self._pid, 0)
            _note_usage(report, usage)

    def _send(self, code: str, timeout_s: float, request: dict[str, Any]) -> None:
        cell = {
            "code": code,
            "memory_mib": request["memory_mib"],
            "max_chars": request["max_chars"],
            "cpu_limit_s": math.ceil(4 * timeout_s) + 1,
        }
        data = json.dumps(cell).encode("ascii")
        self._protocol.settimeout(START_TIMEOUT_S)
        # an interpreter that does not listen never begins the cell, which is noticed there
        with contextlib.suppress(OSError):
            self._protocol.sendall(len(data).to_bytes(4, "big") + data)

    def _follow(self, following: _Following, deadline_s: float, *, until_begun: bool = False) -> bool:
        """Read what the interpreter says until it is done; returns False at the deadline or at too much output."""
        sources: list[int | socket.socket] = [self._protocol, *self._outputs]
        while not (following.is_done or (until_begun and following.has_begun)):
            rest_s = deadline_s - time.monotonic()
            if rest_s <= 0 or following.num_bytes > _MAX_OUTPUT_BYTES:
                return False
            ready, _, _ = select.select(sources, [], [], rest_s)
            for index, fd in enumerate(self._outputs):
                if fd in ready and not self._read_output(following, index):
                    sources.remove(fd)
            if self._protocol in ready:
                following.add_protocol(self._receive())
        return True

    def _receive(self) -> bytes:
        try:
            return self._protocol.recv(_READ_BYTES)
        except OSError:
            return b""

    def _read_output(self, following: _Following, index: int) -> bool:
        """Take what a pipe holds now; returns False at its end."""
        try:
            data = os.read(self._outputs[index], _READ_BYTES)
        except BlockingIOError:
            return True
        following.num_bytes += len(data)
        following.outputs[index].add(data)
        return bool(data)

    def _read_last_output(self, following: _Following) -> None:
        """Take what stands in the pipes; never wait for their end, which a grandchild may hold open."""
        for index, fd in enumerate(self._outputs):
            for _ in range(_LAST_READS):
                if not select.select([fd], [], [], 0)[0] or not self._read_output(following, index):
                    break
            following.outputs[index].add(b"", final=True)

    def _note_end(self, report: Report, deadline_s: float) -> None:
        """Note how an interpreter ended by itself, if it does so until the deadline."""
        while not self._has_ended and time.monotonic() < deadline_s:
            pid, status, usage = os.wait4(self._pid, os.WNOHANG)
            if pid:
                self._has_ended = True
                report.exit_status = status
                _note_usage(report, usage)
            else:
                time.sleep(0.005)

    def _signal(self, number: int) -> None:
        for send in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                send(self._pid, number)
                return


class _Following:
    """What is known of a cell that runs."""

    def __init__(self, max_chars: int) -> None:
        self.outputs = (BoundedText(max_chars), BoundedText(max_chars))
        self.num_bytes = 0
        self.has_begun = False
        self.answer = ""
        self.reason = ""
        self._buffer = bytearray()

    @property
    def is_done(self) -> bool:
        """It answered or broke."""
        return bool(self.answer or self.reason)

    def add_protocol(self, data: bytes) -> None:
        """Take in what came over the protocol socket: an empty frame at the start, then the answer."""
        if not data:
            self.reason = "it closed the connection"
        self._buffer += data
        while len(self._buffer) >= 4 and not self.is_done:
            length = int.from_bytes(self._buffer[:4], "big")
            if length > _MAX_FRAME_BYTES or self.has_begun == (length == 0):
                self.reason = "it wrote to the protocol"
                return
            if len(self._buffer) < 4 + length:
                return
            frame = self._buffer[4 : 4 + length]
            del self._buffer[: 4 + length]
            if self.has_begun:
                self.answer = frame.decode("utf-8", "replace")
            self.has_begun = True


def _is_ok(answer: str) -> bool:
    try:
        return bool(json.loads(answer)["kind"] == "ok")
    except (ValueError, RecursionError, KeyError, TypeError):
        return False


def _note_usage(report: Report, usage: resource.struct_rusage) -> None:
    report.cpu_s, report.peak_mib = usage.ru_utime + usage.ru_stime, peak_mib(usage)
