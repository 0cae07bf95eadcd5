"""What a sandbox for model-written Python must offer.

One session per trajectory: variables live on between its cells. A session is cheap to open and
belongs to one coroutine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agentrl_cli.types import ToolStatus


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one cell."""

    timeout_s: float
    memory_mib: int
    """Allowance on top of what the interpreter with its libraries needs."""
    max_output_chars: int
    """Per stream; the middle is cut with a marker that says how much."""


@dataclass(frozen=True, slots=True)
class Result:
    """What running one cell came to."""

    status: ToolStatus
    stdout: str = ""
    stderr: str = ""
    value: str = ""
    """repr of the cell's last expression, empty if there is none or it is None."""
    exception: str = ""
    """Short traceback (at most 2 KB) when status is `error`, or a one-line reason for other failures."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_mib: float = 0.0
    truncated: bool = False
    isolation: str = ""


class Session(Protocol):
    """One interpreter with its variables."""

    async def run(self, code: str, limits: Limits) -> Result:
        """Run a cell; never raises for what the code did, failures are statuses."""
        ...

    async def close(self) -> None:
        """End the interpreter and everything it started; safe to call twice."""
        ...


class Sandbox(Protocol):
    """A source of isolated sessions."""

    async def open(self) -> Session:
        """Hand out a fresh session, waiting while all are in use.

        Raises:
            SandboxError: none can be had.
        """
        ...

    async def health(self) -> str:
        """Return the isolation level in force after running a known-good cell.

        Raises:
            SandboxError: the known-good cell did not run.
        """
        ...

    async def close(self) -> None:
        """End all processes; safe to call twice."""
        ...
