"""What a tool of the package declares of itself, and the interpreter that the sandboxed ones share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl_cli.agent.base import ToolRunner
from agentrl_cli.config.schema import SandboxConfig
from agentrl_cli.errors import SandboxError
from agentrl_cli.sandbox.base import Limits, Result, Sandbox, Session
from agentrl_cli.types import ToolStatus

IN_SANDBOX = "in the sandbox: the trajectory's interpreter, opened at its first call; a process and its memory"
IN_PROCESS = "in this process: no interpreter"


@dataclass(frozen=True, slots=True)
class Card:
    """A tool as it is known without starting it."""

    schema: Mapping[str, Any]
    """OpenAI function schema; its bounds are checked before a call."""
    doc: str
    """One paragraph for people."""
    cost: str
    """What a call takes."""
    limits: tuple[str, ...] = ()
    """Full names of the settings that bound it."""
    fixed_limits: Mapping[str, str] = field(default_factory=dict)
    """Bounds that no setting changes."""

    @property
    def name(self) -> str:
        """What the model calls it."""
        return str(self.schema["function"]["name"])


@dataclass(frozen=True, slots=True)
class ProcessTool:
    """A tool of the package that runs in this process; see `Tool`."""

    card: Card
    start: Callable[[], ToolRunner]

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.card.name

    @property
    def schema(self) -> Mapping[str, Any]:
        """OpenAI function schema."""
        return self.card.schema

    def open(self) -> ToolRunner:
        """Return a runner for one trajectory."""
        return self.start()


@dataclass(frozen=True, slots=True)
class SandboxTool:
    """A tool of the package that runs in the sandbox; see `Tool`."""

    card: Card
    sandbox: Sandbox
    start: Callable[[Interpreter], ToolRunner]

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.card.name

    @property
    def schema(self) -> Mapping[str, Any]:
        """OpenAI function schema."""
        return self.card.schema

    def open(self) -> ToolRunner:
        """Return a runner with an interpreter of its own, which starts at the first call."""
        return self.open_in(Interpreter(self.sandbox))

    def open_in(self, interpreter: Interpreter) -> ToolRunner:
        """Return a runner that shares an interpreter with the other tools of the trajectory."""
        return self.start(interpreter)


class Interpreter:
    """The one sandbox session of a trajectory, opened at the first cell.

    Its tools share it: a trajectory that held one session and waited for a second could wait for ever, once all
    places of the sandbox are held by others that do the same.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._session: Session | None = None

    async def run(self, code: str, limits: Limits) -> Result:
        """Run a cell; a sandbox that fails is a status too."""
        try:
            if self._session is None:
                self._session = await self._sandbox.open()
            return await self._session.run(code, limits)
        except SandboxError as failure:
            return Result(ToolStatus.SANDBOX_ERROR, exception=failure.message)

    async def close(self) -> None:
        """End the session; safe to call twice."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


def cell_limits(limits: SandboxConfig) -> Limits:
    """Return the bounds of one cell that the settings give."""
    return Limits(timeout_s=limits.timeout_s, memory_mib=limits.memory_mib, max_output_chars=limits.max_output_chars)
