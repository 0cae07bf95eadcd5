"""The symbolic tool: sympy's operations on expressions as text, in the sandbox."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_cli.agent.arguments import read_checked
from agentrl_cli.agent.base import ToolRunner
from agentrl_cli.agent.tools.declared import IN_SANDBOX, Card, Interpreter, SandboxTool
from agentrl_cli.agent.tools.python import show_result
from agentrl_cli.sandbox.base import Limits, Sandbox
from agentrl_cli.types import ToolCall, ToolResult, ToolStatus

MAX_CHARS = 1000
_MAX_ORDER = 20
_TAKES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "simplify": ((), ()),
    "expand": ((), ()),
    "factor": ((), ()),
    "solve": ((), ("variable",)),
    "integrate": ((), ("variable", "lower", "upper")),
    "differentiate": ((), ("variable", "order")),
    "limit": (("point",), ("variable", "side")),
    "evaluate": ((), ("values",)),
    "equal": (("other",), ()),
}
"""What each operation needs beside the expression, and what else it may take."""


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "maxLength": MAX_CHARS, "description": description}


_PARAMETERS = {
    "operation": {"type": "string", "enum": list(_TAKES), "description": "What to do."},
    "expression": _text("Such as x**2 - 1; for solve equations such as x**2 = 4, several separated by ;"),
    "variable": _text("Name of the variable (of several, for solve); may be left out if there is only one."),
    "lower": _text("Lower bound of an integral."),
    "upper": _text("Upper bound of an integral."),
    "order": {"type": "integer", "minimum": 1, "maximum": _MAX_ORDER, "description": "Of a derivative; 1 by default."},
    "point": _text("Where to take a limit: a value, oo or -oo."),
    "side": {"type": "string", "enum": ["both", "left", "right"], "description": "From where to take a limit."},
    "values": _text("Values to put in for evaluate, such as x=2, y=1/3."),
    "other": _text("For equal: the expression to compare with."),
}
CARD = Card(
    schema={
        "type": "function",
        "function": {
            "name": "symbolic",
            "description": "Do algebra and calculus on an expression, exactly. Returns text and LaTeX.",
            "parameters": {
                "type": "object",
                "properties": _PARAMETERS,
                "required": ["operation", "expression"],
            },
        },
    },
    doc="Does algebra and calculus with sympy: simplify, expand, factor, solve, integrate, differentiate, limit, "
    "evaluate with values, and whether two expressions are equal. 2x and x^2 are read as 2*x and x**2, e and i are "
    "Euler's number and the imaginary unit unless the call names them as variables, decimals are taken exactly. "
    "Returns text and LaTeX, and numbers to 15 digits. It shares the interpreter of python, not its variables.",
    cost=IN_SANDBOX,
    limits=("sandbox.timeout_s", "sandbox.memory_mib", "sandbox.max_output_chars"),
    fixed_limits={"texts": f"{MAX_CHARS} characters", "order": f"{_MAX_ORDER}"},
)


def symbolic_tool(sandbox: Sandbox, limits: Limits) -> SandboxTool:
    """Return the tool over a sandbox."""
    return SandboxTool(CARD, sandbox, lambda interpreter: _Runner(interpreter, limits))


class _Runner(ToolRunner):
    def __init__(self, interpreter: Interpreter, limits: Limits) -> None:
        self._interpreter = interpreter
        self._limits = limits

    async def run(self, call: ToolCall) -> ToolResult:
        arguments = read_checked(call)
        error = _misfit(arguments)
        if error:
            return ToolResult(ToolStatus.INVALID, f"Error: symbolic: {error}")
        result = await self._interpreter.run(make_cell(arguments), self._limits)
        return ToolResult(result.status, show_result(result), wall_s=result.wall_s)

    async def close(self) -> None:
        await self._interpreter.close()


def make_cell(arguments: Mapping[str, Any]) -> str:
    """Return one line of Python that prints the answer and leaves no name behind in the interpreter.

    What the model wrote goes in as the text of a JSON object, never as code.
    """
    program = f"{_source()}\n\nprint(answer(REQUEST))\n"
    names = {"__name__": "__main__", "REQUEST": json.dumps(arguments)}
    return f"exec({program!r}, {names!r})"


def _misfit(arguments: Mapping[str, Any]) -> str:
    """Return which argument the operation lacks or has no use for, or an empty string."""
    operation = arguments["operation"]
    needs, may_have = _TAKES[operation]
    for name in needs:
        if name not in arguments:
            return f"{operation} needs the argument {name!r}"
    for name in arguments:
        if name not in ("operation", "expression", *needs, *may_have):
            return f"{operation} has no use for the argument {name!r}"
    if ("lower" in arguments) != ("upper" in arguments):
        return "an integral has both bounds or none"
    return ""


@functools.cache
def _source() -> str:
    return Path(__file__).with_name("symbolic_cell.py").read_text(encoding="utf-8")
