"""A trajectory as plain text for a terminal.

Models write anything, terminal commands included: whatever is not a visible character is shown escaped.
"""

from __future__ import annotations

import json
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl_cli.records import row_to_trajectory
from agentrl_cli.types import Message, ToolEvent, Trajectory

_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode categories of control and format characters, half surrogate pairs, line and paragraph separators."""
_MIN_WIDTH = 20
_TEXT, _CODE = "  ", "    "


def escape_text(text: str) -> str:
    """Return a text in which all but visible characters, newlines and tabs are escaped as in Python."""
    return "".join(
        char.encode("unicode_escape").decode()
        if char not in "\n\t" and unicodedata.category(char) in _INVISIBLE
        else char
        for char in text
    )


def render_trajectory(row: Mapping[str, Any], width: int) -> str:
    """Return a record as text: what it came to, then turn by turn what was said, called and answered.

    Args:
        width: Columns for prose; code and tool output keep their lines.

    Raises:
        DataError: the row is no record.
    """
    trajectory = row_to_trajectory(row)
    lines = [f"trajectory {escape_text(trajectory.id)}"]
    facts = list(_header(trajectory, row["step"]))
    pad = max(len(name) for name, _ in facts)
    lines += [f"  {name:<{pad}}  {_one_line(value)}" for name, value in facts]
    events = {event.call.id: event for event in trajectory.events}
    turn = 0
    for message in trajectory.messages:
        turn += message["role"] == "assistant"
        lines += ["", *_message(message, events, turn=turn, width=max(width, _MIN_WIDTH))]
    return "\n".join(lines)


def _header(t: Trajectory, step: int | None) -> Iterator[tuple[str, str]]:
    problem = t.problem
    origin = [problem.source, problem.family, f"level {problem.level}" if problem.level else ""]
    yield "problem", f"{problem.id} ({', '.join(part for part in origin if part)})"
    if problem.answer:
        yield "gold", problem.answer
    if t.verdict is None:
        yield "verdict", "none"
    else:
        answer = f", answer {t.verdict.extracted}" if t.verdict.extracted else ""
        yield "verdict", f"{'right' if t.verdict.correct else 'wrong'} ({t.verdict.status}){answer}"
    yield "ending", f"{t.ending}: {t.error}" if t.error else str(t.ending)
    if t.verdict is not None:
        parts = ", ".join(f"{name} {value:.4g}" for name, value in t.reward_parts.items())
        yield "reward", f"{t.reward:.4g}" + (f" ({parts}; before weights)" if parts else "")
    if step is not None:
        yield "advantage", f"{t.advantage:.4g}"
    where = f"step {step}, " if step is not None else ""
    counts = f"{t.num_turns} turns, {t.num_calls} executed calls, {t.num_generated} generated tokens"
    yield "size", f"{where}{counts}, {t.wall_s:.2f} s"


def _message(message: Message, events: Mapping[str, ToolEvent], *, turn: int, width: int) -> Iterator[str]:
    role, content = message["role"], message.get("content") or ""
    if role == "tool":
        event = events.get(message.get("tool_call_id", ""))
        yield _one_line(f"tool {message.get('name', '')}" + (f": {_outcome(event)}" if event else ""))
        yield from _indented(content, _CODE)
        return
    yield _one_line(f"{role} (turn {turn})" if role == "assistant" else str(role))
    yield from _wrapped(content, width)
    for call in message.get("tool_calls") or ():
        event = events.get(call["id"])
        error = f" (not executed: {event.call.error})" if event and event.call.error else ""
        yield _one_line(f"{_TEXT}call {call['function']['name'] or '?'}{error}", keep_indent=True)
        yield from _indented(_arguments(call["function"]["arguments"]), _CODE)


def _outcome(event: ToolEvent) -> str:
    return f"{event.result.status}, {event.result.wall_s:.2f} s"


def _arguments(text: str) -> str:
    """Return call arguments for reading: code as code, others a line each."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(arguments, dict):
        return text
    if list(arguments) == ["code"] and isinstance(arguments["code"], str):
        return arguments["code"]
    return "\n".join(
        f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in arguments.items()
    )


def _one_line(text: str, *, keep_indent: bool = False) -> str:
    """Return a text in one line, newlines escaped."""
    escaped = escape_text(text).replace("\n", "\\n").replace("\t", "\\t")
    return escaped if keep_indent else escaped.strip()


def _indented(text: str, indent: str) -> list[str]:
    return [f"{indent}{line}".rstrip() for line in escape_text(text).split("\n")] if text else []


def _wrapped(text: str, width: int) -> Iterator[str]:
    for line in escape_text(text).split("\n") if text else ():
        yield from textwrap.wrap(
            line,
            width,
            initial_indent=_TEXT,
            subsequent_indent=_TEXT,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        ) or [""]
