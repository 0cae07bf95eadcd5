"""Tools that a model may call, and what it sees of their results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_cli.agent.base import Toolbox, ToolSession
from agentrl_cli.config.schema import SandboxConfig, ToolsConfig
from agentrl_cli.errors import SandboxError
from agentrl_cli.sandbox.base import Limits, Result, Sandbox, Session
from agentrl_cli.types import ToolCall, ToolResult, ToolStatus

PYTHON_SCHEMA: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run Python code and return its output.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}},
            "required": ["code"],
        },
    },
}

_FAILURES = {
    ToolStatus.TIMEOUT: "Error: timed out",
    ToolStatus.MEMORY: "Error: out of memory",
    ToolStatus.OUTPUT_LIMIT: "Error: too much output",
    ToolStatus.CRASH: "Error: the interpreter crashed",
    ToolStatus.DENIED: "Error: operation not permitted",
}


def build_toolbox(tools: ToolsConfig, sandbox: Sandbox, limits: SandboxConfig) -> Toolbox:
    """Return the tools that the settings name, over one sandbox."""
    cell_limits = Limits(
        timeout_s=limits.timeout_s, memory_mib=limits.memory_mib, max_output_chars=limits.max_output_chars
    )
    return PythonToolbox(sandbox, cell_limits, names=tools.names)


class PythonToolbox:
    """The Python tool: one interpreter per trajectory, opened at its first call."""

    def __init__(self, sandbox: Sandbox, limits: Limits, *, names: Sequence[str]) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self.schemas: Sequence[Mapping[str, Any]] = [PYTHON_SCHEMA] if "python" in names else []

    def open(self) -> ToolSession:
        """Start a session for one trajectory; costs nothing until it calls."""
        return _PythonToolSession(self._sandbox, self._limits, has_python=bool(self.schemas))


class _PythonToolSession:
    def __init__(self, sandbox: Sandbox, limits: Limits, *, has_python: bool) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._has_python = has_python
        self._session: Session | None = None

    async def call(self, call: ToolCall) -> ToolResult:
        code, error = read_code(call, has_python=self._has_python)
        if error:
            return ToolResult(ToolStatus.INVALID, f"Error: {error}")
        try:
            if self._session is None:
                self._session = await self._sandbox.open()
            result = await self._session.run(code, self._limits)
        except SandboxError as failure:
            return ToolResult(ToolStatus.SANDBOX_ERROR, failure.message)
        return ToolResult(result.status, show_result(result), wall_s=result.wall_s)

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


def read_code(call: ToolCall, *, has_python: bool = True) -> tuple[str, str]:
    """Return (code, error): the code of a python call, or what is wrong with it in words for the model."""
    if call.error:
        return "", call.error
    if call.name != "python" or not has_python:
        offered = "the tool on offer is 'python'" if has_python else "no tools are on offer"
        return "", f"unknown tool {call.name!r}; {offered}"
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return "", "the arguments are not valid JSON"
    code = arguments.get("code") if isinstance(arguments, dict) else None
    if not isinstance(code, str):
        return "", "python needs the argument 'code', a string"
    return code, ""


def show_result(result: Result) -> str:
    """Return the text that the model sees: output, echoed value, warnings, then what went wrong."""
    parts = [result.stdout.rstrip("\n"), result.value, result.stderr.rstrip("\n")]
    if result.status is ToolStatus.ERROR:
        parts.append(result.exception.rstrip("\n"))
    elif result.status in _FAILURES:
        detail = f" ({result.exception})" if result.exception else ""
        parts.append(_FAILURES[result.status] + detail)
    return "\n".join(part for part in parts if part) or "(no output)"
