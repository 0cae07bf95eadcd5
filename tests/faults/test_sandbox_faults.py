"""What hostile or broken code, and dying processes of our own, do to a sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentrl_cli.config.schema import SandboxConfig
from agentrl_cli.sandbox.base import Limits, Result
from agentrl_cli.sandbox.local import RESTARTED, LocalSandbox
from agentrl_cli.types import ToolStatus

LIMITS = Limits(timeout_s=10.0, memory_mib=256, max_output_chars=1000)
SHORT = Limits(timeout_s=0.3, memory_mib=256, max_output_chars=1000)

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    """One sandbox for all tests: it has to survive every one of them."""
    box = LocalSandbox(SandboxConfig(pool_size=2, max_sessions=64, memory_mib=256))
    yield box
    assert asyncio.run(box.health()) == "minimal"
    asyncio.run(box.close())


async def run_cells(box: LocalSandbox, *cells: str, limits: Limits = LIMITS) -> list[Result]:
    """Run cells one after the other in one session."""
    session = await box.open()
    try:
        return [await session.run(cell, limits) for cell in cells]
    finally:
        await session.close()


def run(box: LocalSandbox, *cells: str, limits: Limits = LIMITS) -> list[Result]:
    """Run cells in one session."""
    return asyncio.run(run_cells(box, *cells, limits=limits))


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Wait for something that happens in other processes."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def descendants(pid: int) -> list[int]:
    """Return the ids of all processes below one, zombies included."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid:
            child = int(path.parent.name)
            found += [child, *descendants(child)]
    return found


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "3 ** (10 ** 9)",
        "import re; re.match(r'(a|a)*$', 'a' * 40 + 'b')",
        "import time\nwhile True:\n  try:\n    time.sleep(60)\n  except BaseException: pass",
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)",
        "import subprocess; subprocess.run(['sleep', '60'])",
        "class E(Exception):\n  def __str__(self):\n    while True: pass\nraise E",
        "class R:\n  def __repr__(self):\n    while True: pass\nR()",
        "import sys\nclass F:\n  n = 0\n  def flush(self):\n    F.n += 1\n    while F.n == 1: pass\nsys.stdout = F()",
    ],
    ids=["loop", "sleep", "pow", "regex", "except", "ignores-sigint", "subprocess", "str", "repr", "flush"],
)
def test_time_limit_holds(sandbox: LocalSandbox, code: str) -> None:
    """Whatever the code does with its time, the cell times out and the session goes on."""
    first, second = run(sandbox, code, "6*7", limits=SHORT)
    assert (first.status, first.exception) == (ToolStatus.TIMEOUT, "stopped after 0.3 s")
    assert (second.status, second.value) == (ToolStatus.OK, "42")


def test_time_limit_holds_while_the_caller_is_busy(sandbox: LocalSandbox) -> None:
    """The clock runs on a thread of its own: a caller that computes for long neither stretches nor breaks a cell."""

    async def scenario() -> Result:
        session = await sandbox.open()
        running = asyncio.create_task(session.run("while True: pass", SHORT))
        await asyncio.sleep(0.05)
        time.sleep(2.0)
        result = await running
        await session.close()
        return result

    result = asyncio.run(scenario())
    assert result.status is ToolStatus.TIMEOUT
    # between the limit and the moment at which the caller could have looked
    assert result.wall_s >= 0.3


def test_cell_after_a_kill_is_told_of_its_loss(sandbox: LocalSandbox) -> None:
    """A hard stop loses the variables; the next cell is told so, the one after that is not."""
    stubborn = "import time\nwhile True:\n  try:\n    time.sleep(60)\n  except BaseException: pass"
    results = run(sandbox, "x = 1", stubborn, "x", "1", limits=SHORT)
    assert [result.status for result in results[1:]] == [ToolStatus.TIMEOUT, ToolStatus.ERROR, ToolStatus.OK]
    assert results[2].exception == "NameError: name 'x' is not defined"
    assert (results[2].stderr, results[3].stderr) == (f"{RESTARTED}\n", "")


@pytest.mark.parametrize(
    "code", ["while True: print('x' * 1000)", "import os\nwhile True: os.write(1, b'x' * 10 ** 6)"]
)
def test_floods_are_stopped(sandbox: LocalSandbox, code: str) -> None:
    """Endless output ends as output_limit, its two ends kept, and the session goes on."""
    first, second = run(sandbox, "import sys", code + "\n")
    assert first.status is ToolStatus.OK
    assert second.status is ToolStatus.OUTPUT_LIMIT
    assert second.truncated
    assert len(second.stdout) < 1100


@pytest.mark.parametrize(
    "code",
    ["a = 'x' * 10 ** 9", "import numpy\nnumpy.ones(10 ** 9)", "a = []\nwhile True: a.append(bytes(10 ** 6))"],
    ids=["at-once", "numpy", "slowly"],
)
def test_memory_limit_holds(sandbox: LocalSandbox, code: str) -> None:
    """Memory runs out for the cell alone; the next one has room to work again."""
    first, second = run(sandbox, code, "b = 'y' * 10 ** 8\nlen(b)")
    assert first.status is ToolStatus.MEMORY
    assert (second.status, second.value) == (ToolStatus.OK, "100000000")


def test_failed_allocation_keeps_the_variables(sandbox: LocalSandbox) -> None:
    """A session whose variables are small survives asking for too much."""
    assert run(sandbox, "x = 5", "y = bytearray(10 ** 12)", "x")[-1].value == "5"


def test_memory_limit_of_a_cell_may_be_lower(sandbox: LocalSandbox) -> None:
    """A cell's own limit counts, not only the sandbox's."""
    low = Limits(timeout_s=10.0, memory_mib=32, max_output_chars=100)
    assert run(sandbox, "len(bytearray(60 << 20))", limits=low)[0].status is ToolStatus.MEMORY
    assert run(sandbox, "len(bytearray(60 << 20))")[0].status is ToolStatus.OK


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV"),
        ("import os; os._exit(0)", "exited with code 0"),
        ("import os; os._exit(3)", "exited with code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("import os; os.write(200, b'\\0\\0\\0\\4junk'); 5", "it wrote to the protocol"),
        ("import os; os.write(200, b'\\xff' * 8); 5", "it wrote to the protocol"),
        ("import os, time; os.close(200); time.sleep(60)", "it closed the connection"),
    ],
)
def test_breaking_the_interpreter_is_a_crash(sandbox: LocalSandbox, code: str, reason: str) -> None:
    """Code that breaks its interpreter twice, while a known-good cell passes, has crashed by its own doing."""
    first, second = run(sandbox, "print('shown', flush=True)\n" + code, "1")
    assert (first.status, first.exception, first.stdout) == (ToolStatus.CRASH, reason, "shown\n")
    assert (second.status, second.value, second.stderr) == (ToolStatus.OK, "1", f"{RESTARTED}\n")


def test_chance_break_is_replayed(sandbox: LocalSandbox, tmp_path: Path) -> None:
    """A cell that breaks once passes on replay, with the variables that its session had."""
    marker = tmp_path / "once"
    code = f"import os\nif not os.path.exists({str(marker)!r}):\n    open({str(marker)!r}, 'w')\n    os._exit(1)\nx + 1"
    results = run(sandbox, "x = 1", "x += 1\n1/0", code, "x")
    assert (results[2].status, results[2].value, results[2].stderr) == (ToolStatus.OK, "3", "")
    assert results[3].value == "2"


def test_break_between_cells_is_made_good(sandbox: LocalSandbox) -> None:
    """An interpreter that ends after its cell is rebuilt from the session's cells."""
    later = (
        "import os, threading, time\nx = 9\nn = len(os.listdir('.'))\n"
        "if not n: threading.Timer(0.2, lambda: os._exit(1)).start()"
    )

    async def scenario() -> Result:
        session = await sandbox.open()
        await session.run(later, LIMITS)
        await asyncio.sleep(0.6)
        result = await session.run("x", LIMITS)
        await session.close()
        return result

    assert asyncio.run(scenario()).value == "9"


def test_faked_answer_gains_nothing(sandbox: LocalSandbox) -> None:
    """Code that answers in our stead breaks its session: two answers are one too many."""
    fake = (
        "import json, os\nfields = dict(kind='ok', value='fake', is_cut=False, exception='', is_spent=False, "
        "cpu_s=0.0, peak_mib=1.0)\ndata = json.dumps(fields).encode()\n"
        "os.write(200, len(data).to_bytes(4, 'big') + data)\n1/0"
    )
    first, second = run(sandbox, fake, "1")
    # seen at once where both answers came together, else when the second cell begins
    assert first.status is ToolStatus.CRASH or second.status is ToolStatus.CRASH


@pytest.mark.parametrize(
    "code",
    [
        "import os\nfor fd in (0, 1, 2): os.close(fd)\n5",
        "import sys\nsys.stdout.close(); sys.stderr.close()\n5",
        "import sys\nsys.stdout = None\n5",
        "import os, time\nif not os.fork(): time.sleep(60)\n5",
        "import os\nos.fork()\n5",
        "import subprocess\nproc = subprocess.Popen(['sleep', '60'], start_new_session=True)\n5",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n5",
        "import json, builtins\njson.loads = json.dumps = None\n5",
    ],
    ids=["close-fds", "close-streams", "no-stdout", "grandchild", "fork-returns", "popen", "thread", "patch-json"],
)
def test_odd_code_does_not_hang_us(sandbox: LocalSandbox, code: str) -> None:
    """Closed descriptors, processes that hold the pipes, patched libraries: the cell ends, one way or another, soon."""
    first = run(sandbox, code)[0]
    assert first.status in (ToolStatus.OK, ToolStatus.CRASH)
    assert first.wall_s < 8
    if "json" not in code:
        assert (first.status, first.value) == (ToolStatus.OK, "5")


@needs_proc
def test_what_a_cell_started_ends_with_its_session(sandbox: LocalSandbox) -> None:
    """Grandchildren, own sessions and double forks included, are gone after close, as is the folder."""
    code = (
        "import os, subprocess, time\n"
        "a = subprocess.Popen(['sleep', '60']).pid\n"
        "b = subprocess.Popen(['sleep', '61'], start_new_session=True).pid\n"
        "r, w = os.pipe()\n"
        "if not os.fork():\n    os.setsid()\n    pid = os.fork()\n    if pid: os.write(w, b'%d' % pid)\n"
        "    if pid: os._exit(0)\n    time.sleep(60)\n"
        "a, b, int(os.read(r, 20)), os.getpid(), os.getcwd()"
    )
    result = run(sandbox, code)[0]
    *pids, folder = eval(result.value)
    assert len(pids) == 4
    assert wait_until(lambda: not any(is_running(pid) for pid in pids))
    assert wait_until(lambda: not Path(folder).exists())


@needs_proc
def test_cancelled_call_and_close_leave_nothing(sandbox: LocalSandbox) -> None:
    """A trajectory that is cancelled in a cell and closes its session frees everything at once."""

    async def scenario() -> int:
        session = await sandbox.open()
        pid = int((await session.run("import os; os.getpid()", LIMITS)).value)
        running = asyncio.create_task(session.run("import time; time.sleep(60)", Limits(90.0, 256, 100)))
        await asyncio.sleep(0.1)
        running.cancel()
        await session.close()
        return pid

    assert not is_running(asyncio.run(scenario()))


@needs_proc
def test_killed_zygote_is_replaced(sandbox: LocalSandbox) -> None:
    """All interpreters go with their parent; a new one is started, counted, and sessions get their variables back."""
    before = sandbox.num_restarts

    async def scenario() -> tuple[Result, Result]:
        idle, busy = await sandbox.open(), await sandbox.open()
        await idle.run("x = 7", LIMITS)
        running = asyncio.create_task(busy.run("import time; time.sleep(0.5); 8", LIMITS))
        await asyncio.sleep(0.2)
        os.kill(sandbox.zygote_pid, signal.SIGKILL)
        results = await running, await idle.run("x", LIMITS)
        await idle.close()
        await busy.close()
        return results

    busy, idle = asyncio.run(scenario())
    assert (busy.status, busy.value) == (ToolStatus.OK, "8")
    assert (idle.status, idle.value, idle.stderr) == (ToolStatus.OK, "7", "")
    assert sandbox.num_restarts == before + 1


@needs_proc
def test_killing_the_zygote_from_inside_is_a_crash() -> None:
    """Code that kills its own parent each time it runs is to blame; a bystander's cell comes through."""

    async def scenario() -> tuple[Result, Result]:
        box = LocalSandbox(SandboxConfig(pool_size=1, memory_mib=256))
        attack = run_cells(box, "import os; os.kill(os.getppid(), 9); import time; time.sleep(60)")
        bystander = run_cells(box, "import time; time.sleep(0.5); 3")
        results = await asyncio.gather(attack, bystander)
        await box.close()
        return results[0][0], results[1][0]

    attack, bystander = asyncio.run(scenario())
    assert attack.status is ToolStatus.CRASH
    assert (bystander.status, bystander.value) == (ToolStatus.OK, "3")


def test_dead_sandbox_is_a_sandbox_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not even a known-good cell runs, nothing is blamed on the code."""
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def scenario() -> Exception | None:
        box = LocalSandbox(SandboxConfig(pool_size=1, memory_mib=256))
        try:
            await box.open()
        except Exception as error:
            return error
        finally:
            await box.close()
        return None

    error = asyncio.run(scenario())
    assert type(error).__name__ == "SandboxError"


@needs_proc
def test_killed_trainer_takes_everything_along(repo_root: Path, tmp_path: Path) -> None:
    """After a SIGKILL of the trainer no process of the sandbox is left, and neither is its folder."""
    script = (
        "import asyncio, sys\n"
        "from agentrl_cli.config.schema import SandboxConfig\n"
        "from agentrl_cli.sandbox.base import Limits\n"
        "from agentrl_cli.sandbox.local import LocalSandbox\n"
        "async def main():\n"
        "    box = LocalSandbox(SandboxConfig(pool_size=2))\n"
        "    s = await box.open()\n"
        '    r = await s.run(\'import subprocess; subprocess.Popen(["sleep", "60"])\', Limits(9, 100, 99))\n'
        "    print('ready', flush=True)\n"
        "    await s.run('while True: pass', Limits(60, 100, 99))\n"
        "asyncio.run(main())\n"
    )
    environment = {"PYTHONPATH": str(repo_root), "PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    trainer = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE)
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == b"ready\n"
    # the zygote, an interpreter with its sleep, and those of the pool
    pids = descendants(trainer.pid)
    assert len(pids) >= 3
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    assert wait_until(lambda: not any(is_running(pid) for pid in pids))
    assert wait_until(lambda: not any(tmp_path.iterdir()))


@needs_proc
def test_nothing_leaks(sandbox: LocalSandbox) -> None:
    """Descriptors, processes and folders are as many after 100 more sessions, broken ones included, as after 20."""

    async def use(count: int) -> tuple[int, int]:
        for first in range(0, count, 20):
            cells = ["1" if i % 10 else "import os; os._exit(1)" for i in range(first, first + 20)]
            await asyncio.gather(*(run_cells(sandbox, cell) for cell in cells))
        for _ in range(200):
            if len(descendants(sandbox.zygote_pid)) == 2:
                break
            await asyncio.sleep(0.02)
        return len(os.listdir("/proc/self/fd")), len(descendants(sandbox.zygote_pid))

    async def scenario() -> tuple[tuple[int, int], tuple[int, int]]:
        return await use(20), await use(100)

    before, after = asyncio.run(scenario())
    assert after == before
    # the two that wait in the pool
    assert after[1] == 2
