"""The parent of all interpreters: started once, with numpy and sympy loaded, it forks children on request.

A process of its own (standard library, numpy and sympy), single-threaded and with a clean environment.
The trainer holds the other end of its control socket; requests and answers are JSON lines:

    {"fork": SERIAL, "cwd": DIR} with three descriptors: protocol, stdout, stderr
        -> {"forked": SERIAL, "pid": PID}, or "error" instead of "pid"
    {"signal": PID, "number": N}      sent on to the group of a child that has not been reaped
        -> later, for every child: {"exited": PID, "status": WAIT_STATUS, "cpu_s": S, "peak_mib": M}

It reaps every child, and kills what a child leaves behind: its process group, and orphans, which come
to it because it is their subreaper (so a daemon that a cell starts does not outlive its parent). When
the trainer goes away, its children, the sandbox's folder and then it itself go too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.sandbox.child import ANSWER_RESERVE_MIB, peak_mib, serve_session, used_bytes

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_OPEN_FILES = 256
_FILE_BYTES = 64 << 20
_PROCESSES = 4096
"""Counts all processes of the user, the trainer's threads included, so it can't be tight."""
_MESSAGE_BYTES = 1 << 16
_CHECK_S = 1.0
"""How often to look whether the trainer lives, and for orphans that were missed."""
_REAP_S = 2.0
_WARM_MODULES = """
    bisect cmath collections copy csv dataclasses datetime decimal enum fractions functools heapq inspect io
    itertools json math operator random re statistics string textwrap threading time typing
    numpy numpy.fft numpy.linalg numpy.polynomial numpy.random
    sympy sympy.combinatorics sympy.ntheory sympy.stats
"""
"""Modules that model-written code often imports."""


def main(control_fd: int, root: str, memory_mib: int) -> None:
    """Serve until the control socket closes.

    Args:
        control_fd: our end of the control socket.
        root: folder that holds the children's working directories; removed at the end.
        memory_mib: the most that a cell may take on top of what is loaded.
    """
    trainer_pid = os.getppid()
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    warm_up()
    # what is loaded stays: a collection in a child would touch, and so copy, all of its pages
    gc.collect()
    gc.freeze()
    # a Ctrl-C is the trainer's business
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    zygote = Zygote(socket.socket(fileno=control_fd), memory_mib)
    with contextlib.suppress(ConnectionError):
        zygote.report({"ready": True})
        zygote.serve(trainer_pid)
    zygote.shut_down()
    shutil.rmtree(root, ignore_errors=True)
    os._exit(0)


def prctl(option: int, value: int) -> None:
    """Call prctl where there is one (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def warm_up() -> None:
    """Load what is slow at its first use, so that a child's first call costs as its tenth."""
    for name in _WARM_MODULES.split():
        importlib.import_module(name)
    import numpy as np
    import sympy
    from sympy.parsing.sympy_parser import parse_expr

    x, n = sympy.symbols("x n")
    sympy.solve(x**2 - 4, x)
    sympy.integrate(sympy.sin(x) * x, x)
    sympy.summation(n, (n, 1, 10))
    sympy.factorint(360)
    sympy.diff(sympy.exp(x) * x, x).subs(x, 1)
    str(sympy.simplify(parse_expr("(x+1)**2 - x**2")))
    sympy.latex(sympy.sqrt(x) / 2)
    sympy.N(sympy.pi, 30)
    repr(sympy.Matrix([[1, 2], [3, 4]]).inv())
    float(np.linalg.det(np.eye(2) * 2))
    repr(np.arange(3) / 2)


@dataclass(slots=True)
class Zygote:
    """The control socket, and the children that have not been reaped."""

    control: socket.socket
    memory_mib: int
    children: set[int] = field(default_factory=set)
    wake_read: int = -1

    def serve(self, trainer_pid: int) -> None:
        """Answer requests and report exits until the trainer is gone."""
        self.wake_read, wake_write = os.pipe()
        for fd in (self.wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        rest = b""
        # a worker that the trainer forked may hold its end of the socket open: look at our parent too
        while os.getppid() == trainer_pid:
            sources: list[int | socket.socket] = [self.control, self.wake_read]
            ready, _, _ = select.select(sources, [], [], _CHECK_S)
            if not ready:
                # the kernel's list of our children may miss some while others come and go
                self.kill_orphans()
            if self.wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake_read, 4096)
                self.report_exits()
            if self.control not in ready:
                continue
            # one read never holds the descriptors of two requests
            data, fds, _, _ = socket.recv_fds(self.control, _MESSAGE_BYTES, 3)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.answer(json.loads(line), fds)

    def report(self, message: dict[str, Any]) -> None:
        """Tell the trainer."""
        self.control.sendall(json.dumps(message).encode() + b"\n")

    def answer(self, request: dict[str, Any], fds: list[int]) -> None:
        """Do what the trainer asks for."""
        if "signal" in request:
            if request["signal"] in self.children:
                deliver(request["signal"], request["number"])
            return
        try:
            pid = self.fork(request["cwd"], fds)
        except OSError as error:
            self.report({"forked": request["fork"], "error": str(error)})
        else:
            self.children.add(pid)
            self.report({"forked": request["fork"], "pid": pid})
        for fd in fds:
            os.close(fd)

    def fork(self, cwd: str, fds: list[int]) -> int:
        """Fork a child that serves one session; returns its process id."""
        os.mkdir(cwd, 0o700)
        own_pid = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != own_pid:
                os._exit(70)
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # the rest of our descriptors goes when the child sets up its own
            self.control.detach()
            os.chdir(cwd)
            base_bytes = used_bytes()
            set_limits(base_bytes, self.memory_mib)
            serve_session(fds, base_bytes=base_bytes)
        finally:
            os._exit(70)

    def report_exits(self) -> None:
        """Reap whatever has ended, kill what it left behind, and report children."""
        while (pid := self.next_dead()) is not None:
            if pid in self.children:
                # before it is reaped, its pid and group can't be anyone else's
                deliver(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            is_child = pid in self.children
            self.children.discard(pid)
            self.kill_orphans()
            if not is_child:
                continue
            cpu_s, peak = usage.ru_utime + usage.ru_stime, peak_mib(usage)
            self.report({"exited": pid, "status": status, "cpu_s": cpu_s, "peak_mib": peak})

    def next_dead(self) -> int | None:
        """Return the id of an ended process that waits to be reaped, or None."""
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return None if ended is None else int(ended.si_pid)

    def kill_orphans(self) -> None:
        """Kill processes that have become ours: their parent was a child, or its child, that has ended."""
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                ours = [int(pid) for pid in file.read().split()]
        except FileNotFoundError:
            return
        for pid in ours:
            if pid not in self.children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def shut_down(self) -> None:
        """Kill and reap all children and what they started."""
        signal.set_wakeup_fd(-1)
        deadline = time.monotonic() + _REAP_S
        while time.monotonic() < deadline:
            for pid in self.children:
                deliver(pid, signal.SIGKILL)
            self.kill_orphans()
            try:
                while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                    self.children.discard(pid)
            except ChildProcessError:
                return
            time.sleep(0.005)


def deliver(pid: int, number: int) -> None:
    """Send a signal to the group of a child that has not been reaped; it may not have made its group yet."""
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, number)
            if send is os.killpg and number != signal.SIGKILL:
                return


def set_limits(base_bytes: int, memory_mib: int) -> None:
    """Bound what the whole session may take; cells set their own soft limits below."""
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: _FILE_BYTES,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_NPROC: _PROCESSES,
    }
    if base_bytes:
        bounds[resource.RLIMIT_AS] = base_bytes + ((memory_mib + ANSWER_RESERVE_MIB) << 20)
    for what, bound in bounds.items():
        _, most = resource.getrlimit(what)
        if most != resource.RLIM_INFINITY:
            bound = min(bound, most)
        resource.setrlimit(what, (bound, bound))
