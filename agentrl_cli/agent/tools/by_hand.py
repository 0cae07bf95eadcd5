"""Tools as people look at them: listed, described, and called once as a model would call them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentrl_cli.agent.setting import open_setting
from agentrl_cli.agent.tools.declared import Card
from agentrl_cli.agent.tools.registry import CARDS
from agentrl_cli.agent.user_tools import load_tools
from agentrl_cli.config.load import resolved_dump
from agentrl_cli.config.schema import Config
from agentrl_cli.errors import ConfigError
from agentrl_cli.types import ToolCall, ToolResult

_OWN_COST = "in this process, with all of its rights: your own code"


def list_tools(config: Config) -> list[dict[str, Any]]:
    """Return name, description and place of each tool, and whether the settings offer it to the model."""
    return [
        {
            "name": card.name,
            "is_offered": _is_offered(card, config),
            "description": card.schema["function"]["description"],
        }
        for card in _cards(config).values()
    ]


def describe_tool(config: Config, name: str) -> dict[str, Any]:
    """Return what one tool declares, with the values of the settings that bound it.

    Raises:
        ConfigError: there is no such tool.
    """
    card = _card(config, name)
    values = {key: _setting(config, key) for key in card.limits}
    return {
        "name": card.name,
        "is_offered": _is_offered(card, config),
        "doc": card.doc,
        "cost": card.cost,
        "limits": {**card.fixed_limits, **values},
        "schema": dict(card.schema),
    }


def call_tool(config: Config, name: str, arguments: str) -> dict[str, Any]:
    """Call a tool once, whether or not the settings offer it; returns status, result and seconds.

    Args:
        arguments: JSON object as text, as a model writes it.

    Raises:
        AgentRLError: there is no such tool, or it can't be started.
    """
    _card(config, name)
    tools = {"names": [name], "module": ""} if name in CARDS else {"names": []}
    alone = config.model_copy(update={"tools": config.tools.model_copy(update=tools)})
    with open_setting(alone) as (setting, runner, _):
        session = setting.toolbox.open()

        async def call() -> ToolResult:
            try:
                return await session.call(ToolCall("by-hand", name, arguments))
            finally:
                await session.close()

        result = runner.run(call())
    return {"tool": name, "status": str(result.status), "wall_s": result.wall_s, "result": result.content}


def list_text(tools: list[dict[str, Any]]) -> str:
    """Return the list for people: a line a tool, a star for those that are offered."""
    width = max(len(tool["name"]) for tool in tools)
    lines = [f"{'*' if tool['is_offered'] else ' '} {tool['name']:<{width}}  {tool['description']}" for tool in tools]
    return "\n".join([*lines, "", "* offered to the model (tools.names, tools.module)"])


def describe_text(tool: Mapping[str, Any]) -> str:
    """Return a description for people."""
    limits = [f"  {name} = {json.dumps(value)}" for name, value in tool["limits"].items()]
    offered = "offered to the model" if tool["is_offered"] else "not offered to the model: see tools.names"
    parts = [f"{tool['name']} ({offered})", tool["doc"], f"cost: {tool['cost']}", "\n".join(["limits:", *limits])]
    return "\n\n".join([*parts, f"schema:\n{json.dumps(tool['schema'], indent=2, ensure_ascii=False)}"])


def _cards(config: Config) -> dict[str, Card]:
    """Return the tools of the package and the user's, by name."""
    cards = dict(CARDS)
    if config.tools.module:
        limit = config.sandbox.max_output_chars
        for tool in load_tools(config.tools.module, timeout_s=config.tools.timeout_s, max_output_chars=limit):
            doc = tool.schema["function"]["description"]
            cards[tool.name] = Card(tool.schema, doc, _OWN_COST, ("tools.timeout_s", "sandbox.max_output_chars"))
    return cards


def _card(config: Config, name: str) -> Card:
    cards = _cards(config)
    if name not in cards:
        raise ConfigError(f"no tool is called {name!r}", hint=f"there are {', '.join(cards)}")
    return cards[name]


def _is_offered(card: Card, config: Config) -> bool:
    return card.name in config.tools.names or card.name not in CARDS


def _setting(config: Config, key: str) -> Any:
    value: Any = resolved_dump(config)
    for part in key.split("."):
        value = value[part]
    return value
