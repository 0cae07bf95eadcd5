"""Processes of the verifier: limits, crashes, and whose fault they are."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import pytest

from agentrl_cli.rewards.math_pool import MathPool, WorkerDied, WorkerTimeout
from agentrl_cli.rewards.verify import verify
from agentrl_cli.types import AnswerKind, Problem, VerdictStatus

TOWER = "9^{9^{9^{9}}}"

WORKER = """
import json, os, sys
print("{}", flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "crash" in request["answer"]:
        os._exit(1)
    print(json.dumps({"id": request["id"], "status": "ok", "correct": True, "key": str(os.getpid())}), flush=True)
"""
"""Speaks a worker's protocol, finds everything right and dies of one word."""

ALWAYS_DYING = """
import sys
print("{}", flush=True)
sys.stdin.readline()
"""


def is_alive(pid: int) -> bool:
    """Whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def pool() -> Iterator[MathPool]:
    """A pool of one real worker."""
    pool = MathPool(size=1)
    yield pool
    pool.close()


def test_worker_lives_on_between_requests(pool: MathPool) -> None:
    """One process answers request after request."""
    assert pool.ask("x+1", gold="1+x", timeout_s=5).is_equal
    first = pool.pids()
    assert not pool.ask("x+2", gold="1+x", timeout_s=5).is_equal
    assert pool.pids() == first
    assert len(first) == 1


def test_a_worker_past_its_limit_is_killed_and_replaced(pool: MathPool) -> None:
    """An endless comparison ends at its limit, its process is gone, and the next request is answered."""
    pool.ask("1", gold="x", timeout_s=5)
    (stuck,) = pool.pids()
    start = time.monotonic()
    with pytest.raises(WorkerTimeout):
        pool.ask(TOWER, gold="x", timeout_s=0.5)
    assert time.monotonic() - start >= 0.5
    assert not is_alive(stuck)
    assert pool.pids() == []
    assert pool.ask("x+1", gold="1+x", timeout_s=5).is_equal


def test_timeout_is_wrong_and_says_so(pool: MathPool) -> None:
    """An answer that can't be compared in time is wrong with status timeout."""
    verdict = verify(f"\\boxed{{{TOWER}}}", Problem("p", "", "1", AnswerKind.MATH), timeout_s=0.5, pool=pool)
    assert (verdict.correct, verdict.status) == (False, VerdictStatus.TIMEOUT)


def test_close_ends_the_processes() -> None:
    """A closed pool leaves no process behind, and can be used again."""
    pool = MathPool(size=2)
    pool.ask("1", gold="x", timeout_s=5)
    pids = pool.pids()
    pool.close()
    assert len(pids) == 1
    assert not any(is_alive(pid) for pid in pids)
    assert pool.ask("x", gold="x", timeout_s=5).is_equal
    pool.close()


def expression(answer: str) -> tuple[str, Problem]:
    """A response that needs a worker, and its problem."""
    return f"\\boxed{{{answer}}}", Problem("p", "", "x^2", AnswerKind.MATH)


def test_an_input_that_crashes_fresh_workers_is_wrong() -> None:
    """If the control passes, dying twice on one input is the input's fault: unparsed, not infrastructure."""
    pool = MathPool(size=1, command=[sys.executable, "-c", WORKER])
    text, problem = expression("y + crash")
    verdict = verify(text, problem, timeout_s=5, pool=pool)
    assert (verdict.correct, verdict.status) == (False, VerdictStatus.UNPARSED)
    text, problem = expression("y")
    assert verify(text, problem, timeout_s=5, pool=pool).status is VerdictStatus.OK
    pool.close()


@pytest.mark.parametrize("program", [ALWAYS_DYING, "raise SystemExit(3)"])
def test_a_verifier_that_fails_its_control_is_infrastructure(program: str) -> None:
    """If known-good input fails too, the verdict says nothing about the answer."""
    pool = MathPool(size=1, command=[sys.executable, "-c", program])
    text, problem = expression("y")
    verdict = verify(text, problem, timeout_s=5, pool=pool)
    assert (verdict.correct, verdict.status) == (False, VerdictStatus.INFRA_ERROR)
    assert pool.pids() == []


def test_a_worker_killed_from_outside_is_tried_again() -> None:
    """One death is nobody's fault: a fresh worker answers."""
    pool = MathPool(size=1)
    pool.ask("1", gold="x", timeout_s=5)
    os.kill(pool.pids()[0], 9)
    verdict = verify(r"\boxed{x \cdot x}", Problem("p", "", "x^2", AnswerKind.MATH), timeout_s=5, pool=pool)
    assert (verdict.correct, verdict.status) == (True, VerdictStatus.OK)
    pool.close()


def test_a_missing_program_counts_as_dead() -> None:
    """A worker that does not start is an error of the pool, not an answer."""
    pool = MathPool(size=1, command=[sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(WorkerDied):
        pool.ask("1", gold="1", timeout_s=1)
