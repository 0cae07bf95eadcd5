"""The arguments of a tool call: read as JSON and held against the tool's schema, in one place for all tools.

What is wrong is said in words for the model. Of JSON Schema the parts are known that function schemas use:
`type`, `nullable`, `enum`, `anyOf`, `items`, `properties`, `required`, `additionalProperties` and bounds of numbers and
lengths; others are left to the tool. Names that `properties` does not list are refused unless the schema allows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from agentrl_cli.types import ToolCall

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_SHOWN_CHARS = 60
_MAX_DEPTH = 50
"""Levels of a value that are checked; what lies deeper is refused."""


def read_arguments(call: ToolCall, schema: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return (arguments, error): the arguments of a call, or what is wrong with them in words for the model.

    Args:
        schema: OpenAI function schema of the tool.
    """
    try:
        arguments = json.loads(call.arguments, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return {}, "the arguments are not valid JSON"
    if not isinstance(arguments, dict):
        return {}, "the arguments must be a JSON object"
    function = schema["function"]
    error = _object_error(arguments, function.get("parameters", {}), "", _MAX_DEPTH)
    return ({}, f"{function['name']}: {error}") if error else (arguments, "")


def read_checked(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call in which `read_arguments` has found nothing wrong."""
    arguments = json.loads(call.arguments)
    assert isinstance(arguments, dict), f"not checked: {call.arguments[:_SHOWN_CHARS]!r}"
    return arguments


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which JSON does not have."""
    raise ValueError(name)


def _object_error(value: Mapping[str, Any], schema: Mapping[str, Any], place: str, depth: int) -> str:
    """Return what is wrong with the members of an object, or an empty string."""
    properties = schema.get("properties", {})
    for name in schema.get("required", []):
        if name not in value:
            return f"missing a required argument: {place + name!r}"
    others = schema.get("additionalProperties", not properties and bool(place))
    for name, member in value.items():
        if name in properties:
            error = _value_error(member, properties[name], place + name, depth - 1)
        elif others is False:
            takes = f"it takes {', '.join(map(repr, properties))}" if properties else "it takes none"
            error = f"got an unknown argument {_cut(repr(place + name))} ({takes})"
        else:
            error = _value_error(member, others, place + name, depth - 1)
        if error:
            return error
    return ""


def _value_error(value: Any, schema: Any, place: str, depth: int) -> str:
    """Return what is wrong with one value, or an empty string."""
    if depth < 0:
        return f"{place!r} is nested too deeply"
    if not isinstance(schema, Mapping) or (value is None and schema.get("nullable", False)):
        return ""
    choices = schema.get("anyOf")
    if choices and all(_value_error(value, choice, place, depth - 1) for choice in choices):
        return f"{place!r} has a type that is not allowed, got {_shown(value)}"
    types = schema.get("type", [])
    names = [types] if isinstance(types, str) else types
    if names and not any(_is_a(value, name) for name in names):
        return f"{place!r} must be {' or '.join(map(_article, names))}, got {_shown(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{place!r} must be one of {', '.join(map(_shown, schema['enum']))}, got {_shown(value)}"
    return _bounds_error(value, schema, place) or _inner_error(value, schema, place, depth)


def _inner_error(value: Any, schema: Mapping[str, Any], place: str, depth: int) -> str:
    """Return what is wrong inside of a list or an object, or an empty string."""
    if isinstance(value, dict):
        return _object_error(value, schema, f"{place}.", depth)
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        found = (_value_error(item, schema["items"], f"{place}[{i}]", depth - 1) for i, item in enumerate(value))
        return next(filter(None, found), "")
    return ""


def _bounds_error(value: Any, schema: Mapping[str, Any], place: str) -> str:
    """Return which bound of a number or a text is exceeded, or an empty string."""
    if isinstance(value, str):
        longest = schema.get("maxLength")
        if longest is not None and len(value) > longest:
            return f"{place!r} may have {longest} characters, got {len(value)}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            return f"{place!r} must be at least {schema['minimum']}, got {_shown(value)}"
        if "maximum" in schema and value > schema["maximum"]:
            return f"{place!r} must be at most {schema['maximum']}, got {_shown(value)}"
    return ""


def _is_a(value: Any, name: str) -> bool:
    # true is no number, though Python counts it as one
    allowed = _TYPES.get(name, (object,))
    return isinstance(value, allowed) and (not isinstance(value, bool) or bool in allowed or object in allowed)


def _article(name: str) -> str:
    return f"an {name}" if name[0] in "aio" else name if name == "null" else f"a {name}"


def _shown(value: Any) -> str:
    """Return a value as it stands in JSON, cut."""
    return _cut(json.dumps(value))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
