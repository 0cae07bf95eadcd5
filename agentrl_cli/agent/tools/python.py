"""The Python tool: the trajectory's interpreter, in which variables live on between calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl_cli.agent.arguments import read_checked
from agentrl_cli.agent.base import ToolRunner
from agentrl_cli.agent.tools.declared import IN_SANDBOX, Card, Interpreter, SandboxTool
from agentrl_cli.sandbox.base import Limits, Result, Sandbox
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
CARD = Card(
    schema=PYTHON_SCHEMA,
    doc="Runs Python with numpy and sympy and shows what it prints, the value of its last expression, warnings and "
    "errors. Variables live on between the calls of a trajectory, not between trajectories.",
    cost=IN_SANDBOX,
    limits=("sandbox.timeout_s", "sandbox.memory_mib", "sandbox.max_output_chars"),
)

_FAILURES = {
    ToolStatus.TIMEOUT: "Error: timed out",
    ToolStatus.MEMORY: "Error: out of memory",
    ToolStatus.OUTPUT_LIMIT: "Error: too much output",
    ToolStatus.CRASH: "Error: the interpreter crashed",
    ToolStatus.DENIED: "Error: operation not permitted",
    ToolStatus.SANDBOX_ERROR: "Error: the sandbox failed",
}


def python_tool(sandbox: Sandbox, limits: Limits) -> SandboxTool:
    """Return the tool over a sandbox."""
    return SandboxTool(CARD, sandbox, lambda interpreter: _Runner(interpreter, limits))


class _Runner(ToolRunner):
    def __init__(self, interpreter: Interpreter, limits: Limits) -> None:
        self._interpreter = interpreter
        self._limits = limits

    async def run(self, call: ToolCall) -> ToolResult:
        result = await self._interpreter.run(read_checked(call)["code"], self._limits)
        return ToolResult(result.status, show_result(result), wall_s=result.wall_s)

    async def close(self) -> None:
        await self._interpreter.close()


def show_result(result: Result) -> str:
    """Return the text that the model sees: output, echoed value, warnings, then what went wrong."""
    parts = [result.stdout.rstrip("\n"), result.value, result.stderr.rstrip("\n")]
    if result.status is ToolStatus.ERROR:
        parts.append(result.exception.rstrip("\n"))
    elif result.status in _FAILURES:
        detail = f" ({result.exception})" if result.exception else ""
        parts.append(_FAILURES[result.status] + detail)
    return "\n".join(part for part in parts if part) or "(no output)"
