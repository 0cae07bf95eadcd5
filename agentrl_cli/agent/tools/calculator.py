"""The calculator: one arithmetic expression, exact where it can be."""

from __future__ import annotations

import time
from typing import Any

from agentrl_cli.agent.arguments import read_checked
from agentrl_cli.agent.base import ToolRunner
from agentrl_cli.agent.tools.arithmetic import MAX_CHARS, MAX_DIGITS, ArithmeticProblem, evaluate, show
from agentrl_cli.agent.tools.declared import IN_PROCESS, Card, ProcessTool
from agentrl_cli.sandbox.output import cut_middle
from agentrl_cli.types import ToolCall, ToolResult, ToolStatus

_EXPRESSION: dict[str, Any] = {
    "type": "string",
    "maxLength": MAX_CHARS,
    "description": "Numbers, + - * / // % **, parentheses, pi, e, and functions such as sqrt, abs, min, max, round, "
    "floor, factorial, comb, gcd, lcm, log, exp, sin.",
}
CARD = Card(
    schema={
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Evaluate an arithmetic expression exactly, or to 15 digits where it has no exact value.",
            "parameters": {"type": "object", "properties": {"expression": _EXPRESSION}, "required": ["expression"]},
        },
    },
    doc="Evaluates arithmetic. Integers, fractions and decimals stay exact: 0.1 + 0.2 is 0.3. What has no rational "
    "value (roots, logarithms, angles in radians) comes to 15 digits behind a ≈.",
    cost=f"{IN_PROCESS}, less than a tenth of a second",
    limits=("sandbox.max_output_chars",),
    fixed_limits={"expression": f"{MAX_CHARS} characters", "numbers": f"about {MAX_DIGITS} digits"},
)


def calculator_tool(max_output_chars: int) -> ProcessTool:
    """Return the tool; longer results are cut in the middle."""
    return ProcessTool(CARD, lambda: _Runner(max_output_chars))


class _Runner(ToolRunner):
    def __init__(self, max_output_chars: int) -> None:
        self._max_output_chars = max_output_chars

    async def run(self, call: ToolCall) -> ToolResult:
        start = time.perf_counter()
        try:
            status, text = ToolStatus.OK, show(evaluate(read_checked(call)["expression"]))
        except ArithmeticProblem as problem:
            status, text = ToolStatus.ERROR, f"Error: {problem}"
        return ToolResult(status, cut_middle(text, self._max_output_chars), wall_s=time.perf_counter() - start)

    async def close(self) -> None:
        """Nothing is held."""
