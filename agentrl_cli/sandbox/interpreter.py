"""The trainer's end of one interpreter: its protocol socket, its output pipes, its exit status."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl_cli.sandbox.base import Limits, Result
from agentrl_cli.types import ToolStatus

_START_TIMEOUT_S = 30.0
"""A cell that has not begun by then has no interpreter behind it."""
_GRACE_S = 0.5
"""Between the soft stop and the hard one."""
_MAX_ANSWER_BYTES = 1 << 20
_MAX_OUTPUT_BYTES = 64 << 20
"""Output of one cell at which it is killed."""
_READ_BYTES = 1 << 16


class Broken(Exception):
    """The interpreter ended or spoke garbage while a cell ran; whose fault that is, is decided elsewhere."""

    def __init__(self, reason: str, stdout: str, stderr: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.stdout = stdout
        self.stderr = stderr


class BoundedText:
    """Keeps head and tail of a stream of bytes, and how much there was."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.num_bytes = 0

    def add(self, data: bytes) -> None:
        """Take in more of the stream."""
        self.num_bytes += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    @property
    def is_cut(self) -> bool:
        """Some of it is missing from `text`."""
        return self.num_bytes > len(self._head) + min(len(self._tail), self._half)

    def text(self) -> str:
        """Return the kept text; what a terminal would act on is shown as an escape."""
        tail = bytes(self._tail[-self._half :])
        if not self.is_cut:
            return printable(bytes(self._head) + tail)
        missing = self.num_bytes - len(self._head) - len(tail)
        return f"{printable(bytes(self._head))}\n… {missing} bytes cut …\n{printable(tail)}"


def printable(data: bytes) -> str:
    """Decode bytes; invalid UTF-8 and control characters other than tab and newline become escapes."""
    text = data.decode("utf-8", errors="backslashreplace")
    return "".join(c if c in "\n\t" or c.isprintable() or c > "\x9f" else f"\\x{ord(c):02x}" for c in text)


class Interpreter:
    """One child of the zygote; lives on the sandbox's own event loop."""

    def __init__(self, cwd: Path, *, signal: Callable[[int, int], None]) -> None:
        """Make the descriptors of both ends; the zygote gets `child_fds`."""
        self.cwd = cwd
        self.pid = -1
        self._send_signal = signal
        self._protocol, theirs = socket.socketpair()
        self._protocol.setblocking(False)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self._outputs = [out_read, err_read]
        for fd in self._outputs:
            os.set_blocking(fd, False)
        self._theirs = theirs
        self.child_fds = [theirs.fileno(), out_write, err_write]
        self._exited: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    @property
    def is_alive(self) -> bool:
        """It has neither ended nor been killed by us."""
        return not self._exited.done() and bool(self._outputs)

    def close_child_fds(self) -> None:
        """Close our copies of the child's descriptors once it has them."""
        self._theirs.close()
        for fd in self.child_fds[1:]:
            os.close(fd)
        self.child_fds = []

    def set_exited(self, status: int | None) -> None:
        """Note the wait status that the zygote reaped; None if the zygote itself is gone."""
        if not self._exited.done():
            self._exited.set_result(status)

    def close(self) -> None:
        """Let go of the descriptors; safe to call twice."""
        loop = asyncio.get_running_loop()
        for fd in self._outputs:
            loop.remove_reader(fd)
            os.close(fd)
        self._outputs = []
        self._protocol.close()

    async def run(self, code: str, limits: Limits) -> Result:
        """Run one cell.

        Raises:
            Broken: the interpreter ended, or what it said was no answer.
        """
        streams = [BoundedText(limits.max_output_chars) for _ in self._outputs]
        overflow = asyncio.Event()
        loop = asyncio.get_running_loop()
        for fd, stream in zip(self._outputs, streams, strict=True):
            loop.add_reader(fd, self._drain, fd, stream, overflow)
        began = time.monotonic()
        try:
            answer, stopped_for = await self._converse(code, limits, overflow)
        except (ConnectionError, ValueError) as error:
            self._drain_all(streams, overflow)
            raise Broken(await self._death(error), streams[0].text(), streams[1].text()) from error
        finally:
            for fd in self._outputs:
                loop.remove_reader(fd)
        self._drain_all(streams, overflow)
        truncated = any(stream.is_cut for stream in streams)
        outputs = (streams[0].text(), streams[1].text())
        wall_s = time.monotonic() - began
        if stopped_for is not None:
            reason = f"stopped after {limits.timeout_s:g} s" if stopped_for is ToolStatus.TIMEOUT else ""
            return Result(stopped_for, *outputs, exception=reason, wall_s=wall_s, truncated=truncated)
        assert answer is not None
        return Result(
            _STATUS[answer["kind"]],
            *outputs,
            value=answer["value"],
            exception=answer["exception"],
            wall_s=wall_s,
            cpu_s=answer["cpu_s"],
            peak_mib=answer["peak_mib"],
            truncated=truncated,
        )

    async def _converse(
        self, code: str, limits: Limits, overflow: asyncio.Event
    ) -> tuple[dict[str, Any] | None, ToolStatus | None]:
        """Send a cell and wait for its answer; returns (answer, None), or why it was stopped."""
        # a lone surrogate can't be sent as UTF-8; JSON's escapes can carry it
        request = json.dumps({"code": code}).encode("ascii")
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._protocol, len(request).to_bytes(4, "big") + request)
        async with asyncio.timeout(_START_TIMEOUT_S):
            if await self._read_frame() != b"":
                raise ValueError("it answered before it began")
        answer = asyncio.create_task(self._read_answer())
        too_much = asyncio.create_task(overflow.wait())
        try:
            await asyncio.wait({answer, too_much}, timeout=limits.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result(), None
            if too_much.done():
                self._kill()
                return None, ToolStatus.OUTPUT_LIMIT
            self._send_signal(self.pid, signal.SIGINT)
            await asyncio.wait({answer}, timeout=_GRACE_S)
            if not answer.done():
                self._kill()
            elif answer.exception() is None and answer.result()["kind"] == "ok":
                # it ended by itself between the limit and the signal
                return answer.result(), None
            return None, ToolStatus.TIMEOUT
        finally:
            too_much.cancel()
            answer.cancel()
            await asyncio.gather(answer, too_much, return_exceptions=True)

    def _kill(self) -> None:
        self._send_signal(self.pid, signal.SIGKILL)
        self.set_exited(None)

    async def _death(self, error: Exception) -> str:
        """Say how the interpreter broke; one that still runs has spoken garbage and is killed."""
        if isinstance(error, ConnectionError):
            done, _ = await asyncio.wait({self._exited}, timeout=1.0)
            status = self._exited.result() if done else None
            if status is not None and os.WIFSIGNALED(status):
                return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
            if status is not None:
                return f"exited with code {os.waitstatus_to_exitcode(status)}"
        self._kill()
        return "broke the connection" if isinstance(error, ConnectionError) else "wrote to the protocol"

    async def _read_answer(self) -> dict[str, Any]:
        answer = json.loads(await self._read_frame())
        texts, numbers = ("kind", "value", "exception"), ("cpu_s", "peak_mib")
        is_sound = (
            isinstance(answer, dict)
            and all(isinstance(answer.get(name), str) for name in texts)
            and all(type(answer.get(name)) in (int, float) for name in numbers)
            and answer["kind"] in _STATUS
        )
        if not is_sound:
            raise ValueError("not an answer")
        return dict(answer)

    async def _read_frame(self) -> bytes:
        length = int.from_bytes(await self._read_exactly(4), "big")
        if length > _MAX_ANSWER_BYTES:
            raise ValueError(f"a frame of {length} bytes")
        return await self._read_exactly(length)

    async def _read_exactly(self, count: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray()
        while len(data) < count:
            part = await loop.sock_recv(self._protocol, min(count - len(data), _READ_BYTES))
            if not part:
                raise ConnectionResetError("closed")
            data += part
        return bytes(data)

    def _drain(self, fd: int, stream: BoundedText, overflow: asyncio.Event) -> None:
        """Take what a pipe holds now; at its end stop listening."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(fd)
            return
        stream.add(data)
        if stream.num_bytes > _MAX_OUTPUT_BYTES:
            overflow.set()

    def _drain_all(self, streams: list[BoundedText], overflow: asyncio.Event) -> None:
        """Take what stands in the pipes; a grandchild that holds them open can't make us wait."""
        for fd, stream in zip(self._outputs, streams, strict=True):
            before = -1
            while before != stream.num_bytes and stream.num_bytes <= _MAX_OUTPUT_BYTES:
                before = stream.num_bytes
                self._drain(fd, stream, overflow)


_STATUS = {
    "ok": ToolStatus.OK,
    "error": ToolStatus.ERROR,
    "memory": ToolStatus.MEMORY,
    "interrupted": ToolStatus.ERROR,
}
