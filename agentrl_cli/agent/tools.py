"""Tools that a model may call, and what it sees of their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_cli.agent.base import Tool, Toolbox, ToolRunner, ToolSession
from agentrl_cli.agent.user_tools import load_tools, read_arguments
from agentrl_cli.config.schema import SandboxConfig, ToolsConfig
from agentrl_cli.errors import ConfigError, SandboxError
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
    """Return the tools that the settings name: ours over one sandbox, and the user's own.

    Raises:
        ConfigError: the user's tools can't be loaded, or two tools have one name.
    """
    cell_limits = Limits(
        timeout_s=limits.timeout_s, memory_mib=limits.memory_mib, max_output_chars=limits.max_output_chars
    )
    offered: list[Tool] = []
    if "python" in tools.names:
        offered.append(PythonTool(sandbox, cell_limits))
    if tools.module:
        offered += load_tools(tools.module, timeout_s=tools.timeout_s, max_output_chars=limits.max_output_chars)
    names = [tool.name for tool in offered]
    if len(set(names)) != len(names):
        raise ConfigError(f"two tools have one name: {names}", hint="rename yours, or take python out: tools.names=[]")
    return Tools(offered)


class Tools:
    """Tools by name; see `Toolbox`."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = tools
        self.schemas: Sequence[Mapping[str, Any]] = [tool.schema for tool in tools]

    def open(self) -> ToolSession:
        """Start a session for one trajectory; costs nothing until it calls."""
        return _Session({tool.name: tool for tool in self._tools})


class _Session:
    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = tools
        self._open: dict[str, ToolRunner] = {}

    async def call(self, call: ToolCall) -> ToolResult:
        if call.error:
            return ToolResult(ToolStatus.INVALID, f"Error: {call.error}")
        tool = self._tools.get(call.name)
        if tool is None:
            return ToolResult(ToolStatus.INVALID, f"Error: {_unknown(call.name, list(self._tools))}")
        if call.name not in self._open:
            self._open[call.name] = tool.open()
        return await self._open[call.name].run(call)

    async def close(self) -> None:
        opened, self._open = self._open, {}
        for runner in opened.values():
            await runner.close()


class PythonTool:
    """The Python tool: one interpreter per trajectory, opened at its first call."""

    name = "python"
    schema = PYTHON_SCHEMA

    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        self._sandbox = sandbox
        self._limits = limits

    def open(self) -> ToolRunner:
        """Start nothing yet."""
        return _PythonRunner(self._sandbox, self._limits)


class _PythonRunner:
    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        self._sandbox = sandbox
        self._limits = limits
        self._session: Session | None = None

    async def run(self, call: ToolCall) -> ToolResult:
        code, error = read_code(call)
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


def _unknown(name: str, offered: Sequence[str]) -> str:
    if not offered:
        return f"unknown tool {name!r}; no tools are on offer"
    if len(offered) == 1:
        return f"unknown tool {name!r}; the tool on offer is {offered[0]!r}"
    return f"unknown tool {name!r}; the tools on offer are {', '.join(map(repr, offered))}"


def read_code(call: ToolCall) -> tuple[str, str]:
    """Return (code, error): the code of a python call, or what is wrong with it in words for the model."""
    if call.error:
        return "", call.error
    if call.name != PythonTool.name:
        return "", _unknown(call.name, [PythonTool.name])
    arguments, error = read_arguments(call)
    if error:
        return "", error
    code = arguments.get("code")
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
