"""The parent of all interpreters: started once, with numpy and sympy loaded, it forks children on request.

Runs as a script of its own (standard library, numpy and sympy; nothing of agentrl), single-threaded and
with a clean environment. The trainer holds the other end of its control socket; requests and answers
are JSON lines:

    {"fork": SERIAL, "cwd": DIR, "memory_mib": N} with three descriptors: protocol, stdout, stderr
        -> {"forked": SERIAL, "pid": PID}
    {"signal": PID, "number": N}      only sent on to a child that has not been reaped
        -> later, for every child: {"exited": PID, "status": WAIT_STATUS}

It reaps every child, and kills what a child leaves behind: its process group, and orphans, which come
to it because it is their subreaper. When the trainer goes away, so does it, and its children with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from pathlib import Path

# Python runs isolated (-I), so the folder of this script is not on the path; afterwards it must not be
sys.path.insert(0, str(Path(__file__).parent))
from child import serve_session  # noqa: E402

del sys.path[0]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FILE_LIMIT = 256
_FILE_SIZE_LIMIT = 256 << 20
_MESSAGE_BYTES = 1 << 16


def main() -> None:
    """Serve until the control socket closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    warm_up()
    # what is loaded stays: a collection in a child would touch, and so copy, all of its pages
    gc.collect()
    gc.freeze()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    os.set_blocking(wake_read, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    # Ctrl-C on the terminal reaches the whole group; what it means is the trainer's business
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control.sendall(b'{"ready": true}\n')
    serve(control, wake_read)


def prctl(option: int, value: int) -> None:
    """Call prctl where there is one (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def warm_up() -> None:
    """Load what is slow at its first use, so that a child's first call costs as its tenth."""
    import numpy as np
    import sympy
    from sympy.parsing.sympy_parser import parse_expr

    x = sympy.Symbol("x")
    sympy.solve(x**2 - 4, x)
    sympy.integrate(sympy.sin(x) * x, x)
    str(sympy.simplify(parse_expr("(x+1)**2 - x**2")))
    sympy.latex(sympy.sqrt(x) / 2)
    sympy.N(sympy.pi, 30)
    float(np.linalg.det(np.eye(2) * 2))


def serve(control: socket.socket, wake_read: int) -> None:
    """Answer requests and report exits."""
    children: set[int] = set()
    rest = b""
    while True:
        ready, _, _ = select.select([control, wake_read], [], [])
        if wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_read, 4096)
            report_exits(control, children)
        if control not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, 3)
        if not data:
            os._exit(0)
        rest += data
        *lines, rest = rest.split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "fork" in request:
                pid = fork(request, fds, control, wake_read)
                children.add(pid)
                for fd in fds:
                    os.close(fd)
                fds = []
                control.sendall(json.dumps({"forked": request["fork"], "pid": pid}).encode() + b"\n")
            elif request["signal"] in children:
                deliver(request["signal"], request["number"])


def deliver(pid: int, number: int) -> None:
    """Send a signal to a child; SIGKILL goes to its whole group."""
    with contextlib.suppress(ProcessLookupError):
        if number == signal.SIGKILL:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def report_exits(control: socket.socket, children: set[int]) -> None:
    """Reap whatever has ended, kill what it left behind, and report children."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None:
            return
        pid = ended.si_pid
        if pid in children:
            # before it is reaped, its pid and group can't be anyone else's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if pid in children:
            children.discard(pid)
            kill_orphans(children)
            control.sendall(json.dumps({"exited": pid, "status": status}).encode() + b"\n")


def kill_orphans(children: set[int]) -> None:
    """Kill processes that have become ours: their parent was a child that has ended."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            ours = [int(pid) for pid in file.read().split()]
    except OSError:
        return
    for pid in ours:
        if pid not in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def fork(request: dict[str, object], fds: list[int], control: socket.socket, wake_read: int) -> int:
    """Fork a child that serves one session."""
    pid = os.fork()
    if pid:
        return pid
    try:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        os.close(wake_read)
        limit(int(str(request["memory_mib"])))
        os.makedirs(str(request["cwd"]), exist_ok=True)
        os.chdir(str(request["cwd"]))
        serve_session(fds)
    finally:
        os._exit(70)


def limit(memory_mib: int) -> None:
    """Bound memory (on top of what is loaded), file sizes, open files; no core dumps."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (memory_mib << 20),) * 2)
    for what, bound in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, _FILE_SIZE_LIMIT),
        (resource.RLIMIT_NOFILE, _FILE_LIMIT),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(what, (bound, bound))


if __name__ == "__main__":
    main()
