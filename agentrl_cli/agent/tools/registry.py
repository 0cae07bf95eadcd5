"""The tools on offer: the package's own by name, and the user's; and the tools of one trajectory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_cli.agent.arguments import read_arguments
from agentrl_cli.agent.base import Tool, Toolbox, ToolRunner, ToolSession
from agentrl_cli.agent.tools import calculator, python, search, symbolic
from agentrl_cli.agent.tools.declared import Card, Interpreter, SandboxTool, cell_limits
from agentrl_cli.agent.user_tools import load_tools
from agentrl_cli.config.schema import SandboxConfig, ToolsConfig
from agentrl_cli.errors import ConfigError
from agentrl_cli.sandbox.base import Sandbox
from agentrl_cli.types import ToolCall, ToolResult, ToolStatus

CARDS: Mapping[str, Card] = {card.name: card for card in (python.CARD, calculator.CARD, symbolic.CARD, search.CARD)}
"""The tools of the package, in the order in which they are listed."""


def build_toolbox(tools: ToolsConfig, sandbox: Sandbox, limits: SandboxConfig) -> Toolbox:
    """Return the tools that the settings name: ours over one sandbox, and the user's own.

    Raises:
        AgentRLError: the user's tools or the texts to search can't be loaded, or two tools have one name.
    """
    offered: list[Tool] = [make_tool(name, tools, sandbox, limits) for name in tools.names]
    if tools.module:
        offered += load_tools(tools.module, timeout_s=tools.timeout_s, max_output_chars=limits.max_output_chars)
    names = [tool.name for tool in offered]
    if len(set(names)) != len(names):
        raise ConfigError(f"two tools have one name: {names}", hint="rename yours, or take ours out of tools.names")
    return Tools(offered, sandbox)


def make_tool(name: str, tools: ToolsConfig, sandbox: Sandbox, limits: SandboxConfig) -> Tool:
    """Return one tool of the package.

    Raises:
        AgentRLError: what it works with is missing or can't be read.
    """
    if name == python.CARD.name:
        return python.python_tool(sandbox, cell_limits(limits))
    if name == symbolic.CARD.name:
        return symbolic.symbolic_tool(sandbox, cell_limits(limits))
    if name == calculator.CARD.name:
        return calculator.calculator_tool(limits.max_output_chars)
    assert name == search.CARD.name, f"no tool is called {name!r}"
    return search.search_tool(tools.search)


class Tools:
    """Tools by name; see `Toolbox`."""

    def __init__(self, tools: Sequence[Tool], sandbox: Sandbox) -> None:
        self._tools = tools
        self._sandbox = sandbox
        self.schemas: Sequence[Mapping[str, Any]] = [tool.schema for tool in tools]

    def open(self) -> ToolSession:
        """Start a session for one trajectory; costs nothing until it calls."""
        return _Session({tool.name: tool for tool in self._tools}, Interpreter(self._sandbox))


class _Session:
    def __init__(self, tools: Mapping[str, Tool], interpreter: Interpreter) -> None:
        self._tools = tools
        self._interpreter = interpreter
        self._open: dict[str, ToolRunner] = {}

    async def call(self, call: ToolCall) -> ToolResult:
        if call.error:
            return ToolResult(ToolStatus.INVALID, f"Error: {call.error}")
        tool = self._tools.get(call.name)
        if tool is None:
            return ToolResult(ToolStatus.INVALID, f"Error: {_unknown(call.name, list(self._tools))}")
        _, error = read_arguments(call, tool.schema)
        if error:
            return ToolResult(ToolStatus.INVALID, f"Error: {error}")
        if call.name not in self._open:
            # the sandboxed ones share the trajectory's interpreter
            opened = tool.open_in(self._interpreter) if isinstance(tool, SandboxTool) else tool.open()
            self._open[call.name] = opened
        return await self._open[call.name].run(call)

    async def close(self) -> None:
        opened, self._open = self._open, {}
        for runner in opened.values():
            await runner.close()


def _unknown(name: str, offered: Sequence[str]) -> str:
    if not offered:
        return f"unknown tool {name!r}; no tools are on offer"
    if len(offered) == 1:
        return f"unknown tool {name!r}; the tool on offer is {offered[0]!r}"
    return f"unknown tool {name!r}; the tools on offer are {', '.join(map(repr, offered))}"
