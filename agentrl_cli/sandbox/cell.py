"""A cell as the trainer follows it: what it has printed, how far it is, and what it answered.

The answer was perhaps written by the code that ran: it is bounded, checked, and nothing but data.
"""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import Literal

from agentrl_cli.sandbox.base import Limits
from agentrl_cli.sandbox.child import MAX_EXCEPTION_BYTES
from agentrl_cli.sandbox.output import MAX_MARKER_CHARS, BoundedText, cut_bytes, make_safe
from agentrl_cli.types import ToolStatus

_MAX_OUTPUT_BYTES = 32 << 20
"""Output of one cell at which it is stopped."""
_JSON_BYTES_PER_CHAR = 12
_STATUS = {"ok": ToolStatus.OK, "error": ToolStatus.ERROR, "memory": ToolStatus.MEMORY}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the interpreter says about a cell; its texts are bounded and safe to show."""

    status: ToolStatus
    value: str
    is_cut: bool
    exception: str
    is_spent: bool
    """Its variables leave no memory to go on with."""
    cpu_s: float
    peak_mib: float


class Cell:
    """One cell that runs; lives on one event loop."""

    def __init__(self, limits: Limits) -> None:
        loop = asyncio.get_running_loop()
        self.outputs = (BoundedText(limits.max_output_chars), BoundedText(limits.max_output_chars))
        """stdout and stderr."""
        self.began: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[Answer | str] = loop.create_future()
        """The answer, or in words how the interpreter broke."""
        self.flooded: asyncio.Future[None] = loop.create_future()
        self._max_chars = limits.max_output_chars
        self._num_bytes = 0
        self._buffer = bytearray()

    def settle(self, outcome: Answer | str) -> None:
        """Note the outcome, if it is the first."""
        if not self.began.done():
            self.began.set_result(None)
        if not self.done.done():
            self.done.set_result(outcome)

    def add_output(self, stream: Literal[0, 1] | int, data: bytes) -> None:
        """Take in output; what comes after too much of it is thrown away."""
        self._num_bytes += len(data)
        if self._num_bytes <= _MAX_OUTPUT_BYTES:
            self.outputs[stream].add(data)
        elif not self.flooded.done():
            self.flooded.set_result(None)

    def add_protocol(self, data: bytes) -> None:
        """Take in what came over the protocol socket: an empty frame at the start, then the answer."""
        self._buffer += data
        most = _JSON_BYTES_PER_CHAR * (self._max_chars + MAX_EXCEPTION_BYTES) + 4096
        while len(self._buffer) >= 4 and not self.done.done():
            length = int.from_bytes(self._buffer[:4], "big")
            if length > most or (length > 0 and not self.began.done()):
                self.settle("it wrote to the protocol")
                return
            if len(self._buffer) < 4 + length:
                return
            frame = bytes(self._buffer[4 : 4 + length])
            del self._buffer[: 4 + length]
            if not self.began.done():
                self.began.set_result(None)
            else:
                # the interpreter says nothing after its answer: one of the two is the code's
                is_alone = not self._buffer
                self.settle((is_alone and read_answer(frame, self._max_chars)) or "it wrote to the protocol")


def read_answer(frame: bytes, max_chars: int) -> Answer | None:
    """Return the answer in a frame, or None if it is none."""
    try:
        fields = json.loads(frame)
    except (ValueError, RecursionError):
        return None
    types = {
        "kind": (str,),
        "value": (str,),
        "is_cut": (bool,),
        "exception": (str,),
        "is_spent": (bool,),
        "cpu_s": (int, float),
        "peak_mib": (int, float),
    }
    if not isinstance(fields, dict) or fields.keys() != types.keys():
        return None
    if any(type(fields[name]) not in allowed for name, allowed in types.items()) or fields["kind"] not in _STATUS:
        return None
    if len(fields["value"]) > max_chars + MAX_MARKER_CHARS:
        return None
    cpu_s, peak_mib = fields["cpu_s"], fields["peak_mib"]
    if not all(-1 < number < 1e9 and math.isfinite(number) for number in (cpu_s, peak_mib)):
        return None
    return Answer(
        status=_STATUS[fields["kind"]],
        value=make_safe(fields["value"]),
        is_cut=fields["is_cut"],
        exception=cut_bytes(make_safe(fields["exception"]), MAX_EXCEPTION_BYTES),
        is_spent=fields["is_spent"],
        cpu_s=max(0.0, float(cpu_s)),
        peak_mib=max(0.0, float(peak_mib)),
    )
