"""What a cell's result says, and what lives on between cells and sessions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

import pytest

from agentrl_cli.config.schema import SandboxConfig
from agentrl_cli.errors import SandboxError
from agentrl_cli.sandbox.base import Limits, Result
from agentrl_cli.sandbox.local import LocalSandbox
from agentrl_cli.types import ToolStatus

LIMITS = Limits(timeout_s=10.0, memory_mib=256, max_output_chars=1000)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    """One sandbox for all tests: sessions are what is fresh."""
    box = LocalSandbox(SandboxConfig(pool_size=2, max_sessions=8, memory_mib=256))
    yield box
    asyncio.run(box.close())


async def run_cells(box: LocalSandbox, *cells: str, limits: Limits = LIMITS) -> list[Result]:
    """Run cells one after the other in one session."""
    session = await box.open()
    try:
        return [await session.run(cell, limits) for cell in cells]
    finally:
        await session.close()


def run(box: LocalSandbox, *cells: str, limits: Limits = LIMITS) -> Result:
    """Run cells in one session and return what the last one came to."""
    return asyncio.run(run_cells(box, *cells, limits=limits))[-1]


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("6*7", "42"),
        ("x = 5\nx + 1", "6"),
        ("x = 5", ""),
        ("None", ""),
        ("", ""),
        ("'a\\tb'", "'a\\tb'"),
        ("if True:\n\t7\n8", "8"),
        ("größe = 2; größe", "2"),
        ("__name__", "'__main__'"),
        ("def f(x: int): pass\nf.__annotations__['x']", "<class 'int'>"),
    ],
)
def test_last_expression_is_echoed(sandbox: LocalSandbox, code: str, value: str) -> None:
    """The last expression comes back as its repr, as in a notebook; None and statements give nothing."""
    result = run(sandbox, code)
    assert (result.status, result.value, result.exception) == (ToolStatus.OK, value, "")


def test_streams_are_told_apart(sandbox: LocalSandbox) -> None:
    """Both streams come back, the isolation level with them."""
    result = run(sandbox, "import sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert (result.stdout, result.stderr, result.value) == ("out\n", "err\n", "")
    assert result.isolation == "minimal"
    assert result.wall_s > 0
    assert result.peak_mib > 0


def test_output_without_newline_and_from_a_subprocess(sandbox: LocalSandbox) -> None:
    """What stands unflushed at the end of a cell, and what its processes write, belongs to it."""
    code = "import subprocess, sys\nsubprocess.run(['echo', 'child'])\nsys.stdout.write('no newline')\nNone"
    assert run(sandbox, code).stdout == "child\nno newline"


@pytest.mark.parametrize(
    ("code", "exception"),
    [
        ("1/0", "ZeroDivisionError: division by zero"),
        ("x = 1\nx/0", "line 2, in <module>: x/0\nZeroDivisionError: division by zero"),
        ("x = (", "SyntaxError: '(' was never closed (line 1)"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("input()", "EOFError: EOF when reading a line"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        (
            "class E(Exception):\n  def __str__(self): return 1/0\nraise E",
            "line 3, in <module>: raise E\nE: <exception str() failed>",
        ),
    ],
)
def test_exceptions_are_errors(sandbox: LocalSandbox, code: str, exception: str) -> None:
    """A Python exception is an error; the model sees its own lines and none of ours."""
    result = run(sandbox, code)
    assert (result.status, result.exception) == (ToolStatus.ERROR, exception)


def test_error_in_a_function_of_an_earlier_cell(sandbox: LocalSandbox) -> None:
    """Frames of earlier cells show that cell's source line."""
    result = run(sandbox, "a = 1\ndef f(x):\n    return a / x", "f(0)")
    assert result.exception == (
        "line 1, in <module>: f(0)\ncell 1, line 3, in f: return a / x\nZeroDivisionError: division by zero"
    )


def test_null_bytes_in_source_are_an_error(sandbox: LocalSandbox) -> None:
    """Source that Python refuses is the model's error, not ours."""
    result = run(sandbox, "1\x00")
    assert result.status is ToolStatus.ERROR
    assert "null bytes" in result.exception


def test_lone_surrogates_in_source_are_an_error(sandbox: LocalSandbox) -> None:
    """Text that can't be UTF-8 reaches the interpreter and comes back as an error that can be stored."""
    result = run(sandbox, "'\ud800'")
    assert result.status is ToolStatus.ERROR
    result.exception.encode("utf-8")


def test_megabyte_of_source(sandbox: LocalSandbox) -> None:
    """Long source runs, though it does not fit into one read of a socket."""
    result = run(sandbox, "x = '" + "a" * 1_000_000 + "'\nlen(x)")
    assert (result.status, result.value) == (ToolStatus.OK, "1000000")


def test_exit_with_success_is_ok(sandbox: LocalSandbox) -> None:
    """exit() ends the cell, not the session."""
    cells = ("x = 1\nprint('a')\nexit()\nx = 2", "x")
    first, second = asyncio.run(run_cells(sandbox, *cells))
    assert (first.status, first.stdout, second.value) == (ToolStatus.OK, "a\n", "1")


def test_deep_recursion_is_an_error_and_short(sandbox: LocalSandbox) -> None:
    """A RecursionError shows at most 8 frames and 2 KB."""
    result = run(sandbox, "def f(n):\n    return f(n + 1)\nf(0)")
    assert result.status is ToolStatus.ERROR
    assert result.exception.endswith("RecursionError: maximum recursion depth exceeded")
    # 8 frames and the exception itself
    assert len(result.exception.splitlines()) == 9


def test_tracebacks_are_bounded(sandbox: LocalSandbox) -> None:
    """An exception takes at most 2 KB of UTF-8 and keeps both its ends."""
    result = run(sandbox, "raise ValueError('ä' * 5000 + 'end')")
    assert len(result.exception.encode()) <= 2048
    assert result.exception.startswith("ValueError: ä")
    assert result.exception.endswith("äend")


def test_middle_of_long_output_is_cut(sandbox: LocalSandbox) -> None:
    """Streams and value keep both ends and say how much is missing; the call still counts as one that worked."""
    limits = Limits(timeout_s=10.0, memory_mib=256, max_output_chars=10)
    result = run(sandbox, "print('a' * 20 + 'ö' * 20)\n'b' * 30", limits=limits)
    # 41 characters with the newline, 10 kept; the repr has 32 with its quotes
    assert result.stdout == "aaaaa\n… 31 characters cut …\nöööö\n"
    assert result.value == "'bbbb\n… 22 characters cut …\nbbbb'"
    assert (result.status, result.truncated) == (ToolStatus.OK, True)


def test_output_is_safe_to_show(sandbox: LocalSandbox) -> None:
    """Invalid UTF-8, terminal controls and text direction overrides come as escapes, in every field."""
    result = run(sandbox, r"import os; os.write(1, b'\xff\x1b[31m\r\n\tok\x00'); raise ValueError('\x1b\u202e\ud800')")
    assert result.stdout == "\\xff\\x1b[31m\n\tok\\x00"
    assert result.exception == "ValueError: \\x1b\\u202e\\ud800"


def test_state_lives_in_the_session_only(sandbox: LocalSandbox) -> None:
    """Variables, functions and files live on between cells, and not between sessions."""
    write = "x = 41\ndef f(): return x + 1\nopen('note.txt', 'w').write('kept')"
    assert run(sandbox, write, "f(), open('note.txt').read()").value == "(42, 'kept')"
    assert run(sandbox, "x").exception == "NameError: name 'x' is not defined"
    assert run(sandbox, "import os; os.listdir('.')").value == "[]"


def test_helper_module_written_by_a_cell_can_be_imported(sandbox: LocalSandbox) -> None:
    """The session's folder is on the path, and where temporary files go."""
    assert run(sandbox, "open('mine.py', 'w').write('y = 3')", "import mine; mine.y").value == "3"
    assert run(sandbox, "import os, tempfile; tempfile.gettempdir() == os.getcwd()").value == "True"


def test_sessions_are_alike(sandbox: LocalSandbox) -> None:
    """Random numbers and hashes repeat from session to session."""
    code = "import random, numpy\nrandom.random(), float(numpy.random.rand()), hash('a')"
    assert run(sandbox, code).value == run(sandbox, code).value


def test_other_sandbox_with_a_full_environment_is_alike(sandbox: LocalSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes repeat in another warm parent, and nothing of the trainer's environment gets into it."""
    for name in ("HF_TOKEN", "HTTPS_PROXY", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH", "PYTHONHASHSEED"):
        monkeypatch.setenv(name, "7")
    code = "import os\n[hash(c) for c in 'abc'], sorted(os.environ)"

    async def look() -> Result:
        box = LocalSandbox(SandboxConfig(pool_size=1, memory_mib=256))
        try:
            return (await run_cells(box, code))[0]
        finally:
            await box.close()

    other = asyncio.run(look()).value
    assert other == run(sandbox, code).value
    _, names = eval(other)
    assert "PATH" in names
    assert not set(names) & {"HOME", "HF_TOKEN", "HTTPS_PROXY", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH"}


def test_interrupted_loop_keeps_its_variables(sandbox: LocalSandbox) -> None:
    """A cell that runs past its limit is stopped softly: what it printed and computed stays."""
    limits = Limits(timeout_s=0.3, memory_mib=256, max_output_chars=1000)
    first, second = asyncio.run(
        run_cells(sandbox, "print('begun', flush=True)\nn = 7\nwhile True: pass", "n", limits=limits)
    )
    assert (first.status, first.stdout, first.exception) == (ToolStatus.TIMEOUT, "begun\n", "stopped after 0.3 s")
    assert (second.status, second.value, second.stderr) == (ToolStatus.OK, "7", "")


def test_time_waiting_for_a_cpu_is_not_counted() -> None:
    """Many cells on one CPU all get the CPU time that one alone would have, instead of timing out together."""
    if not hasattr(os, "sched_setaffinity") or not os.path.exists("/proc/self/schedstat"):
        pytest.skip("the kernel does not say how long a process waited for a CPU")
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    code = "import time\nwhile time.process_time() < 0.15: pass"
    limits = Limits(timeout_s=0.5, memory_mib=256, max_output_chars=100)

    async def run_together() -> list[Result]:
        box = LocalSandbox(SandboxConfig(pool_size=8, memory_mib=256))
        try:
            await box.health()
            # 8 * 0.15 s of CPU take 1.2 s on one CPU, more than twice the limit of each
            results = await asyncio.gather(*(run_cells(box, code, limits=limits) for _ in range(8)))
            return [cells[0] for cells in results]
        finally:
            await box.close()

    try:
        results = asyncio.run(run_together())
    finally:
        os.sched_setaffinity(0, before)
    assert [result.status for result in results] == [ToolStatus.OK] * 8


def test_opening_waits_while_all_sessions_are_in_use() -> None:
    """At `max_sessions` opening waits for a close; one that is cancelled meanwhile takes no place."""

    async def scenario() -> None:
        box = LocalSandbox(SandboxConfig(pool_size=1, max_sessions=1, memory_mib=256))
        first = await box.open()
        cancelled = asyncio.create_task(box.open())
        waiting = asyncio.create_task(box.open())
        await asyncio.sleep(0.1)
        assert not waiting.done()
        cancelled.cancel()
        await first.close()
        await first.close()
        second = await asyncio.wait_for(waiting, 10)
        assert (await second.run("1", LIMITS)).value == "1"
        await box.close()
        await second.close()

    asyncio.run(scenario())


def test_one_sandbox_serves_successive_event_loops(sandbox: LocalSandbox) -> None:
    """A session may be opened, used and closed under different event loops."""
    session = asyncio.run(sandbox.open())
    asyncio.run(session.run("x = 3", LIMITS))
    assert asyncio.run(session.run("x", LIMITS)).value == "3"
    asyncio.run(session.close())


def test_health_names_the_isolation(sandbox: LocalSandbox) -> None:
    """A healthy sandbox names its isolation level."""
    assert asyncio.run(sandbox.health()) == "minimal"


@pytest.mark.parametrize("use", [lambda box: box.open(), lambda box: box.health()])
def test_closed_sandbox_says_so(use: Callable[[LocalSandbox], Awaitable[object]]) -> None:
    """After close nothing can be had, and closing again does nothing."""

    async def scenario() -> None:
        box = LocalSandbox(SandboxConfig(pool_size=1, memory_mib=256))
        await box.close()
        await box.close()
        await use(box)

    with pytest.raises(SandboxError, match="closed"):
        asyncio.run(scenario())


def test_closing_the_sandbox_ends_what_waits_for_it() -> None:
    """A cell that runs while the sandbox closes is a sandbox error, opening fails; nobody waits for ever."""

    async def scenario() -> tuple[Result, BaseException | None]:
        box = LocalSandbox(SandboxConfig(pool_size=1, max_sessions=1, memory_mib=256))
        session = await box.open()
        running = asyncio.create_task(session.run("import time; time.sleep(60)", Limits(90.0, 256, 100)))
        opening = asyncio.create_task(box.open())
        await asyncio.sleep(0.2)
        await box.close()
        await asyncio.wait({running, opening}, timeout=10)
        return running.result(), opening.exception()

    result, error = asyncio.run(scenario())
    assert result.status is ToolStatus.SANDBOX_ERROR
    assert isinstance(error, SandboxError)
