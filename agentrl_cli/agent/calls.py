"""Reads tool calls out of what a model wrote.

Two formats: `hermes` (`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, as Qwen3's template
asks for) and `python_block` (fenced ```python code). A call that can't be read is still a call, with
`error` set: the model is told what was wrong and may try again.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from agentrl_cli.types import Message, ToolCall

CallFormat = Literal["hermes", "python_block"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK_END = "</think>"
_PYTHON_BLOCK = re.compile(r"```(?:python|py)[ \t]*\n(.*?)\n?```", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """What one assistant text says: the text outside its calls, and the calls in order."""

    content: str
    calls: tuple[ToolCall, ...]

    def message(self) -> Message:
        """Return the OpenAI message of this turn."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                for c in self.calls
            ]
        return message


def parse_turn(text: str, *, call_format: CallFormat, turn: int) -> ParsedTurn:
    """Split an assistant text into content and calls; only text after the think block may call.

    Args:
        text: The decoded turn without its end-of-turn marker.
        turn: Number of the turn, from 0; call ids are made of it, so that they are unique in a trajectory.
    """
    think_end = text.rfind(_THINK_END)
    if think_end < 0 and text.lstrip().startswith("<think>"):
        return ParsedTurn(text, ())
    cut = 0 if think_end < 0 else think_end + len(_THINK_END)
    head, body = text[:cut], text[cut:]
    if call_format == "hermes":
        rest, raw_calls = _split_hermes(body)
        calls = tuple(_read_hermes(raw, f"call_{turn}_{i}") for i, raw in enumerate(raw_calls))
        return ParsedTurn((head + rest).strip(), calls)
    blocks = _PYTHON_BLOCK.findall(body)
    calls = tuple(
        ToolCall(f"call_{turn}_{i}", "python", json.dumps({"code": code}, ensure_ascii=False))
        for i, code in enumerate(blocks)
    )
    return ParsedTurn(text.strip(), calls)


def _split_hermes(body: str) -> tuple[str, list[str]]:
    """Return the text outside the call markers, and the raw text inside each pair (the last may be open)."""
    outside, calls = [], []
    position = 0
    while (start := body.find(_OPEN, position)) >= 0:
        outside.append(body[position:start])
        end = body.find(_CLOSE, start)
        inner_end = len(body) if end < 0 else end
        calls.append(body[start + len(_OPEN) : inner_end])
        position = len(body) if end < 0 else end + len(_CLOSE)
    outside.append(body[position:])
    return "".join(outside), calls


def _read_hermes(raw: str, call_id: str) -> ToolCall:
    """Read one call; what is wrong with it goes into `error`, in words for the model."""
    try:
        # strict=False: models write raw newlines inside JSON strings
        value = json.loads(raw, strict=False)
    except (ValueError, RecursionError) as error:
        return ToolCall(call_id, "", raw.strip(), f"the call is not valid JSON ({_first_line(error)})")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return ToolCall(call_id, "", raw.strip(), 'the call needs a JSON object with "name" and "arguments"')
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        text = json.dumps(arguments, ensure_ascii=False)
        return ToolCall(call_id, value["name"], text, '"arguments" must be a JSON object')
    return ToolCall(call_id, value["name"], json.dumps(arguments, ensure_ascii=False))


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
