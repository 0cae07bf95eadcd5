"""Arguments of a call against the tool's schema: what is refused, and in which words."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agentrl_cli.agent.arguments import read_arguments
from agentrl_cli.agent.tools import build_toolbox
from agentrl_cli.config.schema import SandboxConfig, ToolsConfig
from agentrl_cli.sandbox.local import LocalSandbox
from agentrl_cli.types import ToolCall, ToolResult, ToolStatus

PROPERTIES: dict[str, Any] = {
    "text": {"type": "string", "maxLength": 5},
    "count": {"type": "integer", "minimum": 1, "maximum": 3},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "kind": {"type": "string", "enum": ["a", "b"]},
    "words": {"type": "array", "items": {"type": "string"}},
    "maybe": {"type": "integer", "nullable": True},
    "either": {"type": ["integer", "string"]},
    "any_of": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
    "free": {},
}


def schema(**parameters: Any) -> dict[str, Any]:
    """Return a function schema with these parameters."""
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **parameters}}}


def error_of(arguments: str, **parameters: Any) -> str:
    """Return what is wrong with arguments, by default against PROPERTIES."""
    parameters = parameters or {"properties": PROPERTIES}
    return read_arguments(ToolCall("1", "f", arguments), schema(**parameters))[1]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"text": "five!", "count": 3, "ratio": 1, "flag": False, "kind": "b", "words": ["x"], "free": [1, {"y": None}]},
        {"maybe": None, "either": "x", "any_of": None, "place": {"x": 0.5}},
        {"maybe": 1, "either": 1, "any_of": 1, "words": []},
    ],
)
def test_fitting_arguments_come_back_as_they_are(arguments: dict[str, Any]) -> None:
    """Every type and both ends of the bounds pass."""
    assert read_arguments(ToolCall("1", "f", json.dumps(arguments)), schema(properties=PROPERTIES)) == (arguments, "")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"text": 1}, "f: 'text' must be a string, got 1"),
        ({"text": "sixsix"}, "f: 'text' may have 5 characters, got 6"),
        ({"count": 1.0}, "f: 'count' must be an integer, got 1.0"),
        ({"count": True}, "f: 'count' must be an integer, got true"),
        ({"count": "1"}, "f: 'count' must be an integer, got \"1\""),
        ({"count": 0}, "f: 'count' must be at least 1, got 0"),
        ({"count": 4}, "f: 'count' must be at most 3, got 4"),
        ({"ratio": "0.5"}, "f: 'ratio' must be a number, got \"0.5\""),
        ({"flag": 1}, "f: 'flag' must be a boolean, got 1"),
        ({"kind": "c"}, 'f: \'kind\' must be one of "a", "b", got "c"'),
        ({"words": "x"}, "f: 'words' must be an array, got \"x\""),
        ({"words": ["x", 2]}, "f: 'words[1]' must be a string, got 2"),
        ({"text": None}, "f: 'text' must be a string, got null"),
        ({"either": []}, "f: 'either' must be an integer or a string, got []"),
        ({"any_of": "x"}, "f: 'any_of' has a type that is not allowed, got \"x\""),
        ({"place": {}}, "f: missing a required argument: 'place.x'"),
        ({"place": {"x": "1"}}, "f: 'place.x' must be a number, got \"1\""),
        ({"texts": "x" * 100, "text": 1}, "f: got an unknown argument 'texts' (it takes "),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], error: str) -> None:
    """The message says which argument is wrong, what it must be and what was got."""
    assert error_of(json.dumps(arguments)).startswith(error)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "the arguments are not valid JSON"),
        ("{", "the arguments are not valid JSON"),
        ("[" * 100_000, "the arguments are not valid JSON"),
        ('{"ratio": NaN}', "the arguments are not valid JSON"),
        ('{"ratio": -Infinity}', "the arguments are not valid JSON"),
        ('{"count": ' + "9" * 5000 + "}", "the arguments are not valid JSON"),
        ("null", "the arguments must be a JSON object"),
        ('["a"]', "the arguments must be a JSON object"),
        ('"a"', "the arguments must be a JSON object"),
    ],
)
def test_what_is_no_json_object_is_refused(text: str, error: str) -> None:
    """Also what Python's reader would take, and what exhausts its stack."""
    assert error_of(text) == error


def test_missing_and_unknown_names() -> None:
    """A required name must be there; one that is not listed must not, unless the schema says so."""
    listed = {"properties": {"x": {}}, "required": ["x"]}
    assert error_of("{}", **listed) == "f: missing a required argument: 'x'"
    assert error_of('{"x": 1, "y": 2}', **listed) == "f: got an unknown argument 'y' (it takes 'x')"
    assert error_of('{"x": 1, "y": 2}', **listed, additionalProperties=True) == ""
    others = {**listed, "additionalProperties": {"type": "string"}}
    assert error_of('{"x": 1, "y": 2}', **others) == "f: 'y' must be a string, got 2"
    assert error_of('{"y": 2}', properties={}) == "f: got an unknown argument 'y' (it takes none)"


def test_a_value_that_is_nested_deeply_is_refused() -> None:
    """A schema that refers to itself in `items` ends at 50 levels."""
    item: dict[str, Any] = {"type": "array"}
    item["items"] = item
    assert error_of(json.dumps({"x": []}), properties={"x": item}) == ""
    assert error_of('{"x": ' + "[" * 60 + "]" * 60 + "}", properties={"x": item}).endswith("is nested too deeply")


def test_the_message_shows_little_of_a_long_value() -> None:
    """A megabyte of text does not come back as a megabyte."""
    assert len(error_of(json.dumps({"count": "x" * 1_000_000}))) < 120
    assert len(error_of(json.dumps({"x" * 1_000_000: 1}))) < 300


def call_all(names: list[str], *calls: ToolCall) -> list[ToolResult]:
    """Make calls in one session."""

    async def play() -> list[ToolResult]:
        limits = SandboxConfig(pool_size=1)
        sandbox = LocalSandbox(limits)
        session = build_toolbox(ToolsConfig.model_validate({"names": names}), sandbox, limits).open()
        try:
            return [await session.call(call) for call in calls]
        finally:
            await session.close()
            await sandbox.close()

    return asyncio.run(play())


def test_each_tool_of_the_package_refuses_wrong_arguments_before_it_starts() -> None:
    """They are invalid calls, not failed ones: nothing was executed."""
    results = call_all(
        ["python", "calculator", "symbolic"],
        ToolCall("1", "python", '{"cod": "1"}'),
        ToolCall("2", "python", '{"code": 1}'),
        ToolCall("3", "calculator", '{"expression": "1", "digits": 3}'),
        ToolCall("3", "calculator", json.dumps({"expression": "1+" * 500_000})),
        ToolCall("4", "symbolic", '{"operation": "cube", "expression": "x"}'),
        ToolCall("5", "search", '{"query": "x"}'),
        ToolCall("6", "python", "", error="the call is cut off"),
    )
    assert {result.status for result in results} == {ToolStatus.INVALID}
    assert [result.content for result in results[:4]] == [
        "Error: python: missing a required argument: 'code'",
        "Error: python: 'code' must be a string, got 1",
        "Error: calculator: got an unknown argument 'digits' (it takes 'expression')",
        "Error: calculator: 'expression' may have 1000 characters, got 1000000",
    ]
    assert results[4].content.startswith("Error: symbolic: 'operation' must be one of \"simplify\", ")
    tools = "'python', 'calculator', 'symbolic'"
    assert results[5].content == f"Error: unknown tool 'search'; the tools on offer are {tools}"
    assert results[6].content == "Error: the call is cut off"
