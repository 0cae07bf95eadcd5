"""The checks of the sandbox's contract that are cells and what they must come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentrl_cli.sandbox.base import Limits, Result
from agentrl_cli.sandbox.child import MAX_EXCEPTION_BYTES
from agentrl_cli.sandbox.output import MAX_MARKER_CHARS
from agentrl_cli.types import ToolStatus

SHORT_S = 1.0
"""Time limit of the cells that don't end by themselves."""
_LATEST_S = 5.0
"""After its limit, by then a cell must have been stopped."""

OK, ERROR, CRASH = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.CRASH
OWN_DOING = tuple(status for status in ToolStatus if status not in (ToolStatus.SANDBOX_ERROR, ToolStatus.INVALID))


@dataclass(frozen=True, slots=True)
class CellCheck:
    """Cells of one session, and what the last one must come to; None is not looked at."""

    name: str
    proves: str
    cells: tuple[str, ...]
    status: tuple[ToolStatus, ...] = (OK,)
    value: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    exception: str | None = None
    """A part of it."""
    is_short: bool = False
    """Run under `SHORT_S`, and be stopped soon after it."""
    has_memory: bool = False
    """`{memory_mib}` in the cells stands for the limit."""
    also: Callable[[Result, Limits], str] | None = None
    """Returns what else is wrong."""

    def compare(self, result: Result, limits: Limits) -> str:
        """Return what was seen that should not be, or nothing."""
        if result.status not in self.status:
            wanted = " or ".join(self.status)
            return f"status {result.status}, not {wanted}: {result.exception or result.value or result.stdout}"[:300]
        for name in ("value", "stdout", "stderr"):
            wanted, seen = getattr(self, name), getattr(result, name)
            if wanted is not None and seen != wanted:
                return f"{name} {seen[:200]!r}, not {wanted[:200]!r}"
        if self.exception is not None and self.exception not in result.exception:
            return f"exception {result.exception[:200]!r} without {self.exception!r}"
        if self.is_short and result.wall_s > limits.timeout_s + _LATEST_S:
            return f"stopped after {result.wall_s:.1f} s, not {limits.timeout_s:g} s"
        return self.also(result, limits) if self.also is not None else ""


def _is_cut(result: Result, limits: Limits) -> str:
    most = limits.max_output_chars + MAX_MARKER_CHARS
    if not result.truncated:
        return "output was cut but is not marked as truncated"
    if len(result.stdout) > most:
        return f"{len(result.stdout)} characters of output, more than {most}"
    if not (result.stdout.startswith("BEGIN") and result.stdout.rstrip("\n").endswith("END")):
        return "not the two ends of the output are kept"
    return "" if "cut" in result.stdout else "no marker says how much was cut"


def _is_plain(result: Result, limits: Limits) -> str:
    texts = result.stdout + result.value
    unsafe = [char for char in texts if char != "\n" and (ord(char) < 32 or 0xD800 <= ord(char) < 0xE000)]
    return f"control characters or surrogates came through: {unsafe[:5]!r}" if unsafe else ""


def _is_short_exception(result: Result, limits: Limits) -> str:
    size = len(result.exception.encode())
    return f"{size} bytes of exception, more than {MAX_EXCEPTION_BYTES}" if size > MAX_EXCEPTION_BYTES else ""


def _took_a_while(result: Result, limits: Limits) -> str:
    # the backend's clock starts when it hears that the cell has begun, on a busy machine a little later
    return "" if result.wall_s >= 0.1 else f"wall_s {result.wall_s:.3f} for a cell that slept 0.2 s"


CELL_CHECKS = (
    CellCheck("known_good", "a cell runs, and its last expression is echoed", ("6*7",), value="42", stdout=""),
    CellCheck("stdout", "what is printed comes back", ("print('a')\nprint('b', end='')",), value="", stdout="a\nb"),
    CellCheck("no_echo", "a statement echoes nothing", ("x = 5",), value="", stdout=""),
    CellCheck(
        "stderr",
        "stderr is kept apart from stdout",
        ("import sys\nprint('out')\nprint('err', file=sys.stderr)",),
        stdout="out\n",
        stderr="err\n",
    ),
    CellCheck("state", "variables live on in a session", ("x = 41", "def f(n): return n + x", "f(1)"), value="42"),
    CellCheck(
        "files",
        "files live on in a session",
        ("open('note', 'w').write('kept')", "open('note').read()"),
        value="'kept'",
    ),
    CellCheck(
        "hidden",
        "a cell shows its own output only",
        ("print('first')\n1", "print('second')\n2"),
        stdout="second\n",
        value="2",
    ),
    CellCheck(
        "exception",
        "an exception is an error, with its text",
        ("1/0",),
        (ERROR,),
        exception="ZeroDivisionError: division by zero",
    ),
    CellCheck("after_exception", "a session goes on after an exception", ("x = 42", "1/0", "x"), value="42"),
    CellCheck(
        "syntax_error", "a syntax error is an error of the code", ("x = = 1",), (ERROR,), exception="SyntaxError"
    ),
    CellCheck(
        "missing_module",
        "a missing module is an error of the code",
        ("import no_such_module",),
        (ERROR,),
        exception="no_such_module",
    ),
    CellCheck(
        "long_exception",
        "exception texts are cut",
        ("raise ValueError('x' * 100_000)",),
        (ERROR,),
        also=_is_short_exception,
    ),
    CellCheck(
        "bad_repr",
        "a value that can't be shown is an error of the code",
        ("class A:\n    def __repr__(self): raise ValueError('no')\nA()",),
        (ERROR,),
        exception="ValueError",
    ),
    CellCheck(
        "recursion", "endless recursion is an error", ("def f(): f()\nf()",), (ERROR,), exception="RecursionError"
    ),
    CellCheck(
        "input", "input() meets the end of the file and does not wait", ("input()",), (ERROR,), exception="EOFError"
    ),
    CellCheck(
        "sys_exit", "sys.exit ends the cell, not the session", ("x = 42", "import sys\nsys.exit(3)", "x"), value="42"
    ),
    CellCheck(
        "sys_exit_code", "an exit code is an error", ("import sys\nsys.exit(3)",), (ERROR,), exception="SystemExit: 3"
    ),
    CellCheck(
        "timeout",
        "an endless loop is stopped at its limit",
        ("while True: pass",),
        (ToolStatus.TIMEOUT,),
        is_short=True,
    ),
    CellCheck(
        "stubborn_timeout",
        "a loop that catches everything is stopped too",
        ("import time\nwhile True:\n    try:\n        time.sleep(9)\n    except BaseException:\n        pass",),
        (ToolStatus.TIMEOUT,),
        is_short=True,
    ),
    CellCheck(
        "after_timeout", "a session goes on after a timeout", ("while True: pass", "6*7"), value="42", is_short=True
    ),
    CellCheck("wall_time", "the cell's own time is measured", ("import time\ntime.sleep(0.2)",), also=_took_a_while),
    CellCheck(
        "memory",
        "memory is limited",
        ("x = bytearray(4 * {memory_mib} << 20)",),
        (ToolStatus.MEMORY, CRASH),
        has_memory=True,
    ),
    CellCheck(
        "after_memory",
        "a session goes on after it ran out of memory",
        ("x = bytearray(4 * {memory_mib} << 20)", "6*7"),
        value="42",
        has_memory=True,
    ),
    CellCheck(
        "long_output",
        "the middle of long output is cut, with a marker",
        ("print('BEGIN' + 'a' * 1_000_000 + 'END')",),
        also=_is_cut,
    ),
    CellCheck(
        "endless_output",
        "endless output is stopped",
        ("while True: print('a' * 1_000_000)",),
        (ToolStatus.OUTPUT_LIMIT,),
    ),
    CellCheck(
        "exit", "a process that ends itself is a crash, whatever its exit code", ("import os\nos._exit(0)",), (CRASH,)
    ),
    CellCheck("after_exit", "a session goes on after a crash", ("import os\nos._exit(0)", "6*7"), value="42"),
    CellCheck(
        "segfault",
        "a segmentation fault is a crash",
        ("import ctypes\nctypes.string_at(0)",),
        (CRASH, ERROR, ToolStatus.DENIED),
    ),
    CellCheck(
        "kill_self",
        "a process that kills itself is a crash",
        ("import os\nos.kill(os.getpid(), 9)",),
        (CRASH, ERROR, ToolStatus.DENIED),
    ),
    CellCheck(
        "kill_parent", "killing the parent is no way to be excused", ("import os\nos.kill(os.getppid(), 9)",), OWN_DOING
    ),
    CellCheck(
        "forged_answer",
        "writing to every descriptor is no way to be excused",
        ("import os\nfor fd in range(3, 256):\n    try: os.write(fd, b'garbage')\n    except OSError: pass",),
        OWN_DOING,
    ),
    CellCheck(
        "closed_output",
        "closing the output is the code's own doing",
        ("import os\nos.close(1)\nos.close(2)",),
        OWN_DOING,
    ),
    CellCheck(
        "held_output",
        "a process left behind does not hold up the cell",
        ("import os, time\nif os.fork() == 0:\n    time.sleep(20)\n    os._exit(0)\n42",),
        (OK, ERROR),
        is_short=True,
    ),
    CellCheck(
        "unicode", "unicode goes both ways", ("größe = '中🙂'\nprint(größe)\ngröße",), value="'中🙂'", stdout="中🙂\n"
    ),
    CellCheck(
        "control_characters",
        "control characters and surrogates are made visible",
        ("print('\\x1b[31m\\x00 \\ud800')\n'\\x1b'",),
        also=_is_plain,
    ),
    CellCheck(
        "binary_output",
        "bytes that are no UTF-8 are made visible",
        ("import sys\nsys.stdout.buffer.write(b'\\xff\\xfe')\nNone",),
        stdout="\\xff\\xfe",
    ),
    CellCheck("nul_byte", "a NUL byte in the source is an error of the code", ("x = 1\0",), (ERROR,)),
    CellCheck(
        "surrogate_source", "a lone surrogate in the source is an error of the code", ("x = '\ud800'",), (ERROR,)
    ),
    CellCheck("long_source", "a megabyte of source runs", ("x = 42\n" + "#" * 1_000_000 + "\nx",), value="42"),
    CellCheck("tabs", "tabs indent", ("if True:\n\tx = 42\nx",), value="42"),
    CellCheck("empty", "an empty cell is fine", ("",), value="", stdout=""),
    CellCheck(
        "clean_environment",
        "no secrets stand in the environment",
        ("import os, re\n[n for n in os.environ if re.search('TOKEN|SECRET|PASSW|API_?KEY|CREDENTIAL', n.upper())]",),
        value="[]",
    ),
)
