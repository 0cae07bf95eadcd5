"""Requests to a SandboxFusion server: connections, limits on answers, retries and a circuit breaker.

Speaks `POST /run_code` as SandboxFusion's sandbox/server/sandbox_api.py of 2024 defines it (the protocol has no
version number): the request is `{"code", "language", "compile_timeout", "run_timeout", "stdin", "files",
"fetch_files"}`, the answer `{"status": "Success" | "Failed" | "SandboxError", "message", "compile_result",
"run_result": {"status": "Finished" | "Error" | "TimeLimitExceeded", "execution_time", "return_code", "stdout",
"stderr"}, "files"}`, with files in base64. What a program prints is not relied on: the server reads it
without waiting and loses what is long, so results come back as a file.

Two kinds of failure are told apart. `Refused`: the server did not run the code, so it can't be the code's
doing. `Lost`: the code may have run; whose doing it is, is decided in `fusion.py`.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from agentrl_cli.errors import ConfigError
from agentrl_cli.sandbox.base import Result
from agentrl_cli.sandbox.output import cut_bytes, make_safe

MAX_WAIT_S = 30.0
"""Longest wait between two tries, whatever the server asks for."""
_CONNECT_TIMEOUT_S = 10.0
_MAX_QUOTED_BYTES = 300
_MAX_ANSWER_BYTES = 16 << 20
_BYTES_PER_OUTPUT_CHAR = 64
"""Of the answer: three texts, JSON escapes within JSON, base64."""
_RUN_STATUSES = ("Finished", "Error", "TimeLimitExceeded")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class FusionSettings:
    """How to reach the server and how patient to be with it."""

    url: str
    """Address of the server, without /run_code."""
    max_sessions: int = 256
    """Sessions open at the same time, and so requests under way; further trajectories wait."""
    memory_mib: int = 512
    """Memory that a cell may take on top of the loaded interpreter."""
    stateless: bool = False
    """Each cell runs alone, without the variables of earlier ones."""
    max_retries: int = 3
    """Further tries of a request that failed through no fault of its own."""
    queue_timeout_s: float = 60.0
    """How long a request may take beyond its cells' own limits: waiting in the server's queue, start-up."""
    breaker_failures: int = 10
    """Failures in a row after which the server is left alone for a while."""
    breaker_wait_s: float = 15.0
    """For how long."""


class Failure(Exception):
    """A request that did not do what it should."""

    def __init__(self, reason: str, *, cost: int = 1, wait_s: float = 0.0, is_servers: bool = True) -> None:
        """Note the failure.

        Args:
            reason: What went wrong, safe to show.
            cost: Tries that it counts for; slow and sure failures are repeated less.
            wait_s: What the server asked to wait.
            is_servers: It counts for the circuit breaker.
        """
        super().__init__(reason)
        self.reason = reason
        self.cost = cost
        self.wait_s = wait_s
        self.is_servers = is_servers


class Refused(Failure):
    """The server did not run the code."""


class LeftAlone(Refused):
    """Nothing was sent: the circuit breaker is open."""


class Lost(Failure):
    """The code may have run, but what came of it is not known or the interpreter broke."""

    def __init__(self, reason: str, *, cost: int = 1, is_servers: bool = True, result: Result | None = None) -> None:
        """Note the failure; `result` is what is known of the cell if it turns out to be its own doing."""
        super().__init__(reason, cost=cost, is_servers=is_servers)
        self.result = result


class Breaker:
    """Lets no requests through for a while after too many failures in a row, then one at a time."""

    def __init__(self, settings: FusionSettings, clock: Callable[[], float] = time.monotonic) -> None:
        """Start closed, that is letting everything through."""
        self._settings = settings
        self._clock = clock
        self._num_failures = 0
        self._opened_s = 0.0
        self._is_probing = False
        self._last = ""

    @property
    def is_open(self) -> bool:
        """Requests are held back, or let through one at a time."""
        return self._num_failures >= self._settings.breaker_failures

    @contextmanager
    def attempt(self, *, is_control: bool = False) -> Iterator[None]:
        """Let a request through and learn from how it went; a control is always let through.

        Raises:
            LeftAlone: the request does not pass.
        """
        is_probe = self.is_open and not is_control
        if is_probe:
            self._admit()
        try:
            yield
        except Failure as failure:
            if failure.is_servers:
                self._num_failures += 1
                self._opened_s, self._last = self._clock(), failure.reason
            raise
        else:
            self._num_failures = 0
        finally:
            if is_probe:
                self._is_probing = False

    def _admit(self) -> None:
        rest_s = self._opened_s + self._settings.breaker_wait_s - self._clock()
        if rest_s > 0 or self._is_probing:
            raise LeftAlone(
                f"failed {self._num_failures} times in a row and is tried again in {max(0.0, rest_s):.0f} s; "
                f"the last time: {self._last}",
                cost=_NO_MORE_TRIES,
                is_servers=False,
            )
        self._is_probing = True


_NO_MORE_TRIES = 1 << 30


class FusionClient:
    """One server and the connections to it."""

    def __init__(self, settings: FusionSettings, *, first_wait_s: float = 0.5) -> None:
        """Send nothing yet.

        Args:
            settings: The server.
            first_wait_s: Wait before the second try; each further one waits up to twice as long.

        Raises:
            ConfigError: the address is none.
        """
        self._settings = settings
        self._first_wait_s = first_wait_s
        self._url = _read_url(settings.url)
        self.breaker = Breaker(settings)
        self._jitter = random.Random(0)
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __str__(self) -> str:
        return f"the sandbox server at {self._url}"

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def retry(self, attempt: Callable[[], Awaitable[_T]]) -> _T:
        """Await `attempt()`, again after failures, with growing waits.

        Raises:
            Refused | Lost: it failed the last time too. If only the circuit breaker stopped the tries, what was
                lost before still wants to be judged: code that breaks the server must not be excused by that.
        """
        spent = 0
        lost: Lost | None = None
        while True:
            try:
                with self.breaker.attempt():
                    return await attempt()
            except Failure as failure:
                if isinstance(failure, LeftAlone) and lost is not None:
                    raise lost from failure
                lost = failure if isinstance(failure, Lost) else lost
                spent += failure.cost
                if spent > self._settings.max_retries:
                    raise
                wait_s = max(failure.wait_s, self._first_wait_s * 2.0**spent * self._jitter.uniform(0.25, 0.5))
            await asyncio.sleep(min(MAX_WAIT_S, wait_s))

    async def run_code(self, request: Mapping[str, Any], *, max_output_chars: int) -> dict[str, Any]:
        """Send one request and return the server's answer, its schema checked; no retries.

        Raises:
            Refused | Lost: there is none.
        """
        timeout_s = request["run_timeout"] + self._settings.queue_timeout_s
        most = _MAX_ANSWER_BYTES + _BYTES_PER_OUTPUT_CHAR * max_output_chars
        try:
            async with asyncio.timeout(timeout_s):
                status, headers, body = await self._post(request, most)
        except TimeoutError as error:
            raise Lost(f"no answer within {timeout_s:g} s", cost=self._settings.max_retries // 2 + 1) from error
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Refused(f"can't be reached: {quote(error)}") from error
        except httpx.RequestError as error:
            raise Lost(f"the connection was lost: {quote(error)}") from error
        _check_status(status, headers, body)
        return _read_answer(body)

    async def _post(self, request: Mapping[str, Any], most: int) -> tuple[int, httpx.Headers, bytes]:
        content = json.dumps(request).encode("ascii")
        headers = {"content-type": "application/json"}
        async with self._connection().stream("POST", "run_code", content=content, headers=headers) as response:
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > most:
                    raise Lost(f"an answer of more than {most} bytes")
            return response.status_code, response.headers, bytes(body)

    def _connection(self) -> httpx.AsyncClient:
        """Return the client of the running event loop; connections can't outlive their loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._settings.max_sessions)
            timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
            self._client = httpx.AsyncClient(base_url=self._url, timeout=timeout, limits=limits)
            self._loop = loop
        return self._client


def _read_url(text: str) -> httpx.URL:
    """Return the server's address; the one of `/run_code`, which other tools ask for, is understood too."""
    hint = 'give the address of a SandboxFusion server: sandbox.url="http://localhost:8080"'
    try:
        url = httpx.URL(text.rstrip("/").removesuffix("/run_code"))
    except httpx.InvalidURL as error:
        raise ConfigError(f"sandbox.url={text!r} is no address: {error}", hint=hint) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"sandbox.url={text!r} is no http address", hint=hint)
    return url


def _check_status(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Raise what an answer's HTTP status means, if it is not 200."""
    if status == 200:
        return
    reason = f"status {status}: {quote(body.decode('utf-8', 'replace'))}"
    if status in (429, 503):
        raise Refused(reason, wait_s=_retry_after_s(headers), is_servers=status != 429)
    if status == 413:
        # it is the code that is so long
        raise Lost(reason, cost=_NO_MORE_TRIES, is_servers=False)
    if status >= 500 or status == 408:
        raise Lost(reason)
    raise Refused(f"{reason} (is this a SandboxFusion server?)", cost=_NO_MORE_TRIES)


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds that the server asks to wait; a date is not understood and gives 0."""
    text = headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _read_answer(body: bytes) -> dict[str, Any]:
    """Return the fields of an answer.

    Raises:
        Lost: it is none, or the server says that it failed.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Lost(f"an answer that is no JSON: {quote(body.decode('utf-8', 'replace'))}") from error
    if not isinstance(answer, dict) or not _is_answer(answer):
        raise Lost(f"an answer with other fields than SandboxFusion's: {quote(body.decode('utf-8', 'replace'))}")
    if answer["status"] == "SandboxError":
        raise Lost(f"the server failed: {quote(answer.get('message'))}")
    return answer


def _is_answer(answer: Mapping[str, Any]) -> bool:
    status, files = answer.get("status"), answer.get("files")
    if status == "SandboxError":
        return True
    run = answer.get("run_result")
    if status not in ("Success", "Failed") or not isinstance(files, dict) or not isinstance(run, dict):
        return False
    texts = [*files.values(), run.get("stdout") or "", run.get("stderr") or ""]
    return run.get("status") in _RUN_STATUSES and all(isinstance(text, str) for text in texts)


def quote(text: object) -> str:
    """Return foreign text, short, safe and in one line."""
    words = text if isinstance(text, str) else str(text) or type(text).__name__
    return cut_bytes(make_safe(" ".join(words[: 4 * _MAX_QUOTED_BYTES].split())), _MAX_QUOTED_BYTES)
