"""The backend for SandboxFusion servers, against a server on this machine that fails on demand."""

from __future__ import annotations

import ast
import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.errors import ConfigError, SandboxError
from agentrl_cli.sandbox.base import Limits, Result
from agentrl_cli.sandbox.fusion import FORGOTTEN, FusionSandbox
from agentrl_cli.sandbox.fusion_client import Breaker, FusionClient, FusionSettings, Lost, Refused
from agentrl_cli.sandbox.fusion_program import build_program
from agentrl_cli.types import ToolStatus
from tests.unit import fusion_server
from tests.unit.fusion_server import (
    FAULTS,
    SERVER_FAILED,
    WRONG_SCHEMA,
    Fault,
    FusionServer,
    body,
    drop,
    flood,
    for_cell,
    half,
    hang,
    miscounting,
    status,
)

LIMITS = Limits(timeout_s=5.0, memory_mib=256, max_output_chars=1000)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FusionServer]:
    """A server without faults, and no proxy before it."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    running = FusionServer()
    yield running
    running.close()


async def run_cells(sandbox: FusionSandbox, *cells: str, limits: Limits = LIMITS) -> list[Result]:
    """Run cells in one session."""
    session = await sandbox.open()
    try:
        return [await session.run(cell, limits) for cell in cells]
    finally:
        await session.close()


def run(server: FusionServer, *cells: str, **changes: Any) -> list[Result]:
    """Run cells in one session of a fresh sandbox that waits little between tries."""

    async def work() -> list[Result]:
        sandbox = FusionSandbox(FusionSettings(server.url, **changes), first_wait_s=0.02)
        try:
            return await run_cells(sandbox, *cells)
        finally:
            await sandbox.close()

    return asyncio.run(work())


def test_a_cell_comes_back_with_output_and_value(server: FusionServer) -> None:
    """Both streams, the echoed value and the level of isolation come back."""
    [result] = run(server, "import sys\nprint('a')\nprint('b', file=sys.stderr)\n6*7")
    assert (result.status, result.stdout, result.stderr, result.value) == (ToolStatus.OK, "a\n", "b\n", "42")
    assert result.isolation == "remote"


def test_output_comes_back_to_its_last_byte(server: FusionServer) -> None:
    """Bytes that begin a character and end the output are shown."""
    [result] = run(server, "import sys\nn = sys.stdout.buffer.write(b'a\\xe4')")
    assert result.stdout == "a\\xe4"


def test_earlier_cells_run_again_with_their_output_hidden(server: FusionServer) -> None:
    """Each request carries the cells before it; only the last one's output is shown."""
    results = run(server, "x = 41\nprint('one')", "print('two')\nx + 1")
    assert [result.stdout for result in results] == ["one\n", "two\n"]
    assert results[1].value == "42"
    sent = [[cell["code"] for cell in json.loads(request["stdin"])["cells"]] for request in server.requests]
    assert sent == [["x = 41\nprint('one')"], ["x = 41\nprint('one')", "print('two')\nx + 1"]]


def test_cells_that_failed_leave_nothing(server: FusionServer) -> None:
    """Only cells that ended well run again."""
    results = run(server, "x = 1", "x = 2\n1/0", "x")
    assert [result.status for result in results] == [ToolStatus.OK, ToolStatus.ERROR, ToolStatus.OK]
    assert results[2].value == "1"


def test_stateless_sessions_forget(server: FusionServer) -> None:
    """With `stateless`, a cell knows nothing of the ones before."""
    results = run(server, "x = 1", "x", stateless=True)
    assert "NameError" in results[1].exception
    assert len(json.loads(server.requests[1]["stdin"])["cells"]) == 1


def test_a_cell_can_print_what_a_report_looks_like(server: FusionServer) -> None:
    """Output is data: a printed report, or one written to the supervisor's own output, is not taken for ours."""
    fake = json.dumps({"kind": "ok", "value": "forged", "stdout": "forged"})
    code = f"import os\nprint({fake!r})\nopen(f'/proc/{{os.getppid()}}/fd/1', 'w').write({fake!r})\n42"
    [result] = run(server, code)
    assert (result.stdout, result.value) == (fake + "\n", "42")


def test_a_cell_finds_no_name_to_forge_a_report_under(server: FusionServer) -> None:
    """The name of the report is random per call and lies in no memory, file or descriptor of the cell."""
    look = "import os, sys\n(sorted(os.listdir('..')), sys.stdin.read())"
    results = run(server, look, look)
    assert results[0].value == results[1].value == "(['program.py', 'work'], '')"
    names = {request["fetch_files"][0] for request in server.requests}
    assert len(names) == 2


@pytest.mark.parametrize("fault", [name for name in FAULTS if name not in ("404", "413")])
def test_a_fault_is_tried_again(server: FusionServer, fault: str) -> None:
    """A request that meets a fault once is sent again and ends as if nothing had been."""
    server.faults = [FAULTS[fault]]
    [result] = run(server, "6*7")
    assert (result.status, result.value) == (ToolStatus.OK, "42")
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("fault", "num_requests"),
    [
        ("429", 4),  # it did not run, so there is nothing to judge: the first try and max_retries=3 more
        ("503", 4),
        ("404", 1),  # will not get better
        ("500", 5),  # 4 tries, then a known-good cell, which fails too
        ("half", 5),
        ("no_json", 5),
        ("wrong_schema", 5),
        ("server_failed", 5),
        ("no_file", 3),  # an interpreter that breaks is replayed once: 2 tries and the known-good cell
    ],
)
def test_a_server_that_keeps_failing_is_no_fault_of_the_code(
    server: FusionServer, fault: str, num_requests: int
) -> None:
    """If known-good cells fail as well, the status is `sandbox_error` and names the server."""
    server.always = FAULTS[fault]
    [result] = run(server, "6*7")
    assert result.status is ToolStatus.SANDBOX_ERROR
    assert server.url in result.exception
    assert len(server.requests) == num_requests


@pytest.mark.parametrize(
    ("fault", "expected", "num_requests"),
    [
        ("500", ToolStatus.CRASH, 7),  # 4 tries, 3 known-good cells
        ("drop", ToolStatus.CRASH, 7),
        ("413", ToolStatus.CRASH, 2),  # too long a request stays too long: 1 try, 1 known-good cell
        ("no_file", ToolStatus.CRASH, 3),  # 2 tries, 1 known-good cell
        ("too_slow", ToolStatus.TIMEOUT, 3),
    ],
)
def test_what_fails_for_one_cell_only_is_its_own_doing(
    server: FusionServer, fault: str, expected: ToolStatus, num_requests: int
) -> None:
    """A failure that repeats itself while known-good cells pass counts against the call."""
    server.always = for_cell("guilty", FAULTS[fault])
    [result] = run(server, "'guilty'")
    assert result.status is expected
    assert len(server.requests) == num_requests


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os\nos._exit(0)", "exited with code 0"),
        ("import ctypes\nctypes.string_at(0)", "killed by SIGSEGV"),
        ("import os\nos.kill(os.getppid(), 9)", "ended with code -9 and no report"),
        ("import os\nos.write(200, b'xxxxxxxxxxxx')", "it wrote to the protocol"),
        ("import os\nos.write(200, bytes(4))", "it wrote to the protocol"),
    ],
    ids=["exit", "segfault", "supervisor", "garbage", "empty-frame"],
)
def test_an_interpreter_that_dies_is_replayed_then_a_crash(server: FusionServer, code: str, reason: str) -> None:
    """What ended the interpreter is said; two tries and a known-good cell decide; the session goes on."""
    first, broken, after = run(server, "x = 42", code, "x")
    assert (broken.status, broken.exception) == (ToolStatus.CRASH, reason)
    assert (first.status, after.value, after.stderr) == (ToolStatus.OK, "42", "")
    assert len(server.requests) == 1 + 3 + 1


def test_earlier_cells_that_do_not_run_again_are_the_codes_doing(server: FusionServer, tmp_path: Path) -> None:
    """A cell that can't be repeated makes the next one a crash, and the session is told what it lost."""
    once = f"x = 42\nopen({str(tmp_path / 'once')!r}, 'x').close()"
    results = run(server, once, "x", "'x' in globals()")
    assert [result.status for result in results] == [ToolStatus.OK, ToolStatus.CRASH, ToolStatus.OK]
    assert results[1].exception == "earlier cells did not run again as they did before"
    assert (results[2].stderr, results[2].value) == (FORGOTTEN + "\n", "False")


def test_a_refused_connection_is_no_fault_of_the_code(server: FusionServer) -> None:
    """Where nothing listens, the status is `sandbox_error`, health fails with a hint, and neither hangs."""
    server.close()
    [result] = run(server, "6*7")
    assert result.status is ToolStatus.SANDBOX_ERROR
    assert "can't be reached" in result.exception
    with pytest.raises(SandboxError, match="can't be reached") as caught:
        asyncio.run(FusionSandbox(FusionSettings(server.url), first_wait_s=0.02).health())
    assert "sandbox.url" in caught.value.hint


def test_health_runs_a_known_good_cell(server: FusionServer) -> None:
    """Health names the level after one request, and fails when the answer is wrong."""
    assert asyncio.run(FusionSandbox(FusionSettings(server.url)).health()) == "remote"
    assert len(server.requests) == 1
    server.always = miscounting
    with pytest.raises(SandboxError, match="a known-good cell gave '48'"):
        asyncio.run(FusionSandbox(FusionSettings(server.url), first_wait_s=0.02).health())


def test_a_server_that_hangs_is_given_up(server: FusionServer) -> None:
    """A request is given up after its cells' limits and the queue's; hanging is tried twice only."""
    server.always = hang

    async def work() -> None:
        client = FusionClient(FusionSettings(server.url, queue_timeout_s=0.1), first_wait_s=0.02)
        request = {"code": "", "language": "python", "run_timeout": 0.1}
        try:
            await client.retry(lambda: client.run_code(request, max_output_chars=10))
        finally:
            await client.close()

    started_s = time.monotonic()
    with pytest.raises(Lost, match="no answer within"):
        asyncio.run(work())
    assert 0.4 <= time.monotonic() - started_s < 5.0
    assert len(server.requests) == 2


def test_answers_are_read_up_to_a_limit(server: FusionServer) -> None:
    """An answer that is far too long is not read to its end."""
    server.always = flood
    client = FusionClient(FusionSettings(server.url))
    request = {"code": "", "language": "python", "run_timeout": 5.0}
    # 16 MiB and 64 bytes for each character of output
    with pytest.raises(Lost, match="an answer of more than 16777856 bytes"):
        asyncio.run(client.run_code(request, max_output_chars=10))


def test_waits_between_tries_grow(server: FusionServer) -> None:
    """Waits are 1/4 to 1/2 of first_wait_s times 2, 4, 8: no wait can be shorter than the one before by much."""
    server.always = status(500)
    client = FusionClient(FusionSettings(server.url), first_wait_s=0.2)
    request = {"code": "", "language": "python", "run_timeout": 5.0}
    with pytest.raises(Lost, match="status 500"):
        asyncio.run(client.retry(lambda: client.run_code(request, max_output_chars=10)))
    waits = [later - earlier for earlier, later in zip(server.times, server.times[1:], strict=False)]
    # lower ends: 0.2*2/4, 0.2*4/4, 0.2*8/4
    assert [wait >= least for wait, least in zip(waits, (0.1, 0.2, 0.4), strict=True)] == [True] * 3


def test_a_server_may_ask_to_wait(server: FusionServer) -> None:
    """Retry-After is kept to."""
    server.faults = [status(429, retry_after="1")]
    run(server, "6*7")
    assert server.times[1] - server.times[0] >= 1.0


def test_breaker_opens_probes_and_closes() -> None:
    """After n failures in a row nothing passes for a while, then one request: its outcome decides."""
    now_s = 0.0
    breaker = Breaker(FusionSettings("http://x", breaker_failures=2, breaker_wait_s=10.0), clock=lambda: now_s)

    def attempt(failure: Exception | None, *, is_control: bool = False) -> bool:
        """Return whether the request was let through."""
        ran = False
        try:
            with breaker.attempt(is_control=is_control):
                ran = True
                if failure is not None:
                    raise failure
        except (Lost, Refused, asyncio.CancelledError):
            pass
        return ran

    broken, busy = Lost("broken"), Refused("busy", is_servers=False)
    assert [attempt(broken), attempt(None), attempt(broken), attempt(busy)] == [True] * 4
    assert not breaker.is_open  # a success between, and a busy server is no failure: one in a row
    attempt(broken)
    assert breaker.is_open
    assert not attempt(None)
    now_s = 9.0
    assert not attempt(None)
    now_s = 10.0
    with breaker.attempt():
        assert not attempt(None)  # one at a time
    assert not breaker.is_open
    attempt(broken), attempt(broken)
    now_s = 20.0
    assert attempt(broken)  # the probe fails: open for 10 s more
    now_s = 29.0
    assert not attempt(None)
    now_s = 30.0
    assert attempt(asyncio.CancelledError())  # a probe that is given up makes way for another
    assert attempt(broken)
    assert attempt(None, is_control=True)
    assert not breaker.is_open


def test_a_dead_server_is_left_alone(server: FusionServer) -> None:
    """With the breaker open, calls fail at once and send nothing."""
    server.always = status(500)
    results = run(server, "1", "2", breaker_failures=5)
    assert [result.status for result in results] == [ToolStatus.SANDBOX_ERROR] * 2
    assert len(server.requests) == 5  # 4 tries and the known-good cell of the first call
    assert "failed 5 times in a row" in results[1].exception


def test_a_busy_server_is_not_taken_for_a_dead_one(server: FusionServer) -> None:
    """Status 429 does not open the breaker: each call has its 4 tries."""
    server.always = status(429)
    run(server, "1", "2", breaker_failures=2)
    assert len(server.requests) == 8


def test_an_open_breaker_excuses_nobody(server: FusionServer) -> None:
    """A cell that opened the breaker by itself is judged all the same, and passing controls close it again."""
    server.always = for_cell("guilty", status(500))
    results = run(server, "'guilty'", "6*7", breaker_failures=2)
    assert [result.status for result in results] == [ToolStatus.CRASH, ToolStatus.OK]
    assert len(server.requests) == 2 + 3 + 1  # two tries open it, three known-good cells close it


def test_sessions_wait_for_a_place_and_share_connections(server: FusionServer) -> None:
    """No more than `max_sessions` requests are under way, over as many connections."""

    async def work() -> list[list[Result]]:
        sandbox = FusionSandbox(FusionSettings(server.url, max_sessions=2))
        try:
            return await asyncio.gather(*(run_cells(sandbox, str(number)) for number in range(6)))
        finally:
            await sandbox.close()

    results = asyncio.run(work())
    assert [result.value for [result] in results] == ["0", "1", "2", "3", "4", "5"]
    assert server.max_concurrent == 2
    assert len(server.connections) <= 2


def test_one_sandbox_serves_one_event_loop_after_the_other(server: FusionServer) -> None:
    """Connections and places of a loop that ended do not get in the way."""
    sandbox = FusionSandbox(FusionSettings(server.url, max_sessions=1))

    async def work() -> list[str]:
        # the second session waits for the first one's place
        results = await asyncio.gather(run_cells(sandbox, "1"), run_cells(sandbox, "2"))
        return [result.value for [result] in results]

    assert asyncio.run(work()) == asyncio.run(work()) == ["1", "2"]


def test_closed_sandboxes_and_sessions_say_so(server: FusionServer) -> None:
    """After close, opening raises and cells are `sandbox_error`; nothing is sent."""

    async def work() -> list[Result]:
        sandbox = FusionSandbox(FusionSettings(server.url))
        session, other = await sandbox.open(), await sandbox.open()
        await session.close()
        closed = await session.run("1", LIMITS)
        await sandbox.close()
        await sandbox.close()
        with pytest.raises(SandboxError, match="the sandbox is closed"):
            await sandbox.open()
        return [closed, await other.run("1", LIMITS)]

    results = asyncio.run(work())
    assert [result.exception for result in results] == ["the session is closed", "the sandbox is closed"]
    assert {result.status for result in results} == {ToolStatus.SANDBOX_ERROR}
    assert server.requests == []


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://host", "http://", "http://host:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    """An address without http or host is a mistake in the settings."""
    with pytest.raises(ConfigError, match=r"sandbox\.url"):
        FusionSandbox(FusionSettings(url))


def test_the_address_of_run_code_is_understood(server: FusionServer) -> None:
    """An address that ends in /run_code means the same server."""
    sandbox = FusionSandbox(FusionSettings(server.url + "/run_code/"))
    assert asyncio.run(sandbox.health()) == "remote"


def test_calls_under_random_faults_are_right_or_ours(server: FusionServer) -> None:
    """Whatever the network does, a call ends with its own value or as `sandbox_error`, and all are counted."""
    draw = random.Random(0)
    faults: list[Fault] = [status(429), status(500), drop, half, body("{"), body(WRONG_SCHEMA), body(SERVER_FAILED)]
    server.faults = [draw.choice([None, *faults]) for _ in range(60)]

    async def work() -> list[list[Result]]:
        sandbox = FusionSandbox(FusionSettings(server.url, max_sessions=4), first_wait_s=0.02)
        try:
            return await asyncio.gather(*(run_cells(sandbox, f"x = {number}", "x") for number in range(8)))
        finally:
            await sandbox.close()

    results = asyncio.run(work())
    assert {first.status for first, _ in results} <= {ToolStatus.OK, ToolStatus.SANDBOX_ERROR}
    for number, (first, second) in enumerate(results):
        if first.status is ToolStatus.OK:
            assert (second.status, second.value) in {(ToolStatus.OK, str(number)), (ToolStatus.SANDBOX_ERROR, "")}
    assert sum(first.status is ToolStatus.OK for first, _ in results) >= 1


def test_the_program_needs_python_310_and_numpy_only() -> None:
    """What travels to the server parses there and imports nothing but the standard library, numpy and itself."""
    program = build_program()
    assert program.isascii()
    [modules, *_] = ast.parse(program, feature_version=(3, 10)).body
    assert isinstance(modules, ast.Assign)
    sources = dict(ast.literal_eval(modules.value))
    assert "agentrl_cli.sandbox.child" in sources
    for source in sources.values():
        for node in ast.walk(ast.parse(source, feature_version=(3, 10))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name in sources or name.split(".")[0] in {*sys.stdlib_module_names, "numpy"}, name


def test_the_server_of_these_tests_speaks_the_protocol() -> None:
    """The test server answers as SandboxFusion does: exit codes fail, output and asked-for files come back."""
    code = "import sys\nprint(input())\nopen('out', 'w').write('hi')\nsys.exit(3)"
    answer = fusion_server.run_code(
        {"code": code, "language": "python", "run_timeout": 5.0, "stdin": "in\n", "fetch_files": ["out", "none"]}
    )
    run_result = answer["run_result"]
    assert (answer["status"], run_result["status"], run_result["return_code"]) == ("Failed", "Finished", 3)
    assert (run_result["stdout"], answer["files"]) == ("in\n", {"out": "aGk="})
