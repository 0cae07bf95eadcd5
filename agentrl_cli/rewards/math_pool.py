"""Processes that compare expressions, each killed and replaced when it exceeds its limit or dies.

A thread takes a free worker, sends one request and waits for the reply, so the pool works from any thread and
under asyncio (`asyncio.to_thread`). Workers start when they are first needed and live until the pool closes.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl_cli.types import VerdictStatus

_START_LIMIT_S = 60.0
_MAX_WORKERS = 4
_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import agentrl_cli.rewards.math_worker as w; w.main()"
_CONTROL = {"gold": r"\frac{1}{2}", "answer": r"\frac{2}{4}"}


class WorkerTimeout(Exception):
    """The request took longer than its limit; the worker was killed."""


class WorkerDied(Exception):
    """The worker did not start or ended in the middle of a request."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a worker found; `key` is empty where there is none."""

    status: VerdictStatus
    is_equal: bool
    key: str = ""


class MathPool:
    """A few worker processes that any thread may use."""

    def __init__(self, *, size: int, command: Sequence[str] | None = None) -> None:
        """Prepare a pool; nothing starts before the first request.

        Args:
            size: Most workers at a time; further requests wait.
            command: Program of a worker; None takes the one that uses math-verify.
        """
        self.size = size
        self._command = command
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._idle.put(None)
        self._lock = threading.Lock()
        self._alive: set[_Worker] = set()

    def ask(self, answer: str, *, gold: str | None, timeout_s: float) -> Reply:
        """Compare `answer` with `gold`, or without gold get the key of `answer`.

        Raises:
            WorkerTimeout: the limit was exceeded.
            WorkerDied: the worker could not be started, or it crashed.
        """
        worker = self._idle.get()
        try:
            if worker is None:
                worker = self._start()
            reply = worker.ask({"answer": answer, "gold": gold}, timeout_s=timeout_s)
            return Reply(VerdictStatus(reply["status"]), bool(reply["correct"]), str(reply["key"]))
        except BaseException:
            # After any interruption the pipe may hold half a message.
            if worker is not None:
                self._end(worker)
            worker = None
            raise
        finally:
            self._idle.put(worker)

    def passes_control(self, *, timeout_s: float) -> bool:
        """Whether a fresh worker still knows that two quarters are a half."""
        worker = None
        try:
            worker = self._start()
            return bool(worker.ask(_CONTROL, timeout_s=timeout_s)["correct"])
        except (WorkerDied, WorkerTimeout):
            return False
        finally:
            if worker is not None:
                self._end(worker)

    def pids(self) -> list[int]:
        """Return the process ids of the workers that are alive."""
        with self._lock:
            return sorted(worker.pid for worker in self._alive)

    def close(self) -> None:
        """End all workers; a later request starts new ones."""
        with self._lock:
            alive = list(self._alive)
        # Requests in flight fail at once and give their places back.
        for worker in alive:
            self._end(worker)
        for _ in range(self.size):
            worker_or_none = self._idle.get()
            if worker_or_none is not None:
                self._end(worker_or_none)
        for _ in range(self.size):
            self._idle.put(None)

    def _start(self) -> _Worker:
        worker = _Worker(self._command or [sys.executable, "-c", _BOOT, json.dumps(sys.path)])
        with self._lock:
            self._alive.add(worker)
        try:
            worker.wait_ready()
        except BaseException:
            self._end(worker)
            raise
        return worker

    def _end(self, worker: _Worker) -> None:
        with self._lock:
            self._alive.discard(worker)
        worker.kill()


@functools.cache
def shared_pool() -> MathPool:
    """Return the pool of this process; its workers end with it."""
    pool = MathPool(size=min(_MAX_WORKERS, os.cpu_count() or 1))
    atexit.register(pool.close)
    # A forked child must not talk through its parent's pipes.
    os.register_at_fork(after_in_child=shared_pool.cache_clear)
    return pool


class _Worker:
    """One process and its pipes."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # Ctrl-C in the terminal is the parent's to handle.
            start_new_session=True,
        )
        self._buffer = b""
        self._num_requests = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        try:
            self._read_line(time.monotonic() + _START_LIMIT_S)
        except WorkerTimeout as error:
            raise WorkerDied("the worker did not start") from error

    def ask(self, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        self._num_requests += 1
        message = json.dumps({**request, "id": self._num_requests, "limit_s": timeout_s})
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(message.encode() + b"\n")
        except OSError as error:
            raise WorkerDied(f"the worker ended: {error}") from error
        reply: dict[str, Any] = json.loads(self._read_line(time.monotonic() + timeout_s))
        assert reply["id"] == self._num_requests, (reply, self._num_requests)
        return reply

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read_line(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        file = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(file, select.POLLIN)
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise WorkerTimeout
            data = os.read(file, 65536)
            if not data:
                raise WorkerDied(f"the worker ended with {self._process.wait()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
