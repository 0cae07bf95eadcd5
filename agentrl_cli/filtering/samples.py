"""Reads rows of trajectories into what the detectors look at.

Two layouts: our own records, which carry statuses, ending and verdict; and rows with OpenAI `messages`
of any origin, where failed calls are told from the text of their results.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl_cli.data.sources import infer_kind
from agentrl_cli.errors import DataError
from agentrl_cli.records import check_schema, row_to_trajectory
from agentrl_cli.types import AnswerKind, Ending, Message, Problem, ToolStatus

_ROLES = {"system", "developer", "user", "assistant", "tool"}
_TRACEBACK = "Traceback (most recent call last)"
_ERROR_LINE = re.compile(r"(?:[A-Za-z_][\w.]*)?(?:Error|Exception)(?::|$)")


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model asked for, and how it went."""

    name: str
    arguments: str
    is_executed: bool
    is_failed: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """One trajectory as the detectors see it."""

    line: int
    problem: Problem
    """Its id names the problem among rows; a row that has no answer has an empty one."""
    messages: Sequence[Message]
    calls: Sequence[Call]
    ending: Ending | None
    """None where the row does not say."""
    is_correct: bool | None
    """None where nothing in the row says."""

    @property
    def final_text(self) -> str:
        """Content of the last message if the assistant has the last word, else an empty text."""
        last = self.messages[-1]
        return _text(last) if last["role"] == "assistant" else ""


def read_sample(row: Mapping[str, Any], *, line: int) -> Sample:
    """Read a row.

    Args:
        line: Of the row in its file, from 1, for errors.

    Raises:
        DataError: the row is in neither layout, or a record of another version.
    """
    try:
        return _read_record(row, line) if "schema" in row else _read_messages(row, line)
    except DataError as error:
        raise DataError(f"line {line}: {error.message}", hint=error.hint) from error


def call_results(messages: Sequence[Message]) -> list[tuple[Mapping[str, Any], Message | None]]:
    """Return all calls in order, each with the tool message that answers it.

    A turn's calls are answered by the tool messages that follow it, by id where both have one, else in order.
    """
    pairs: list[tuple[Mapping[str, Any], Message | None]] = []
    for i, message in enumerate(messages):
        calls = message.get("tool_calls") or []
        results = _results_after(messages, i) if calls else []
        by_id = {result["tool_call_id"]: result for result in results if result.get("tool_call_id")}
        in_order = iter([result for result in results if not result.get("tool_call_id")])
        pairs += [(call, by_id.get(call.get("id")) or next(in_order, None)) for call in calls]
    return pairs


def looks_failed(content: str) -> bool:
    """Whether the text of a tool's result tells of an error: it begins with one, or ends in a traceback's last line."""
    lines = content.strip().splitlines()
    if not lines:
        return False
    return _TRACEBACK in content or any(_ERROR_LINE.match(line) for line in (lines[0], lines[-1]))


def _read_record(row: Mapping[str, Any], line: int) -> Sample:
    check_schema(row)
    trajectory = row_to_trajectory(row)
    calls = [
        Call(
            name=event.call.name,
            arguments=event.call.arguments,
            is_executed=event.result.is_executed,
            is_failed=event.result.status is not ToolStatus.OK,
        )
        for event in trajectory.events
    ]
    return Sample(
        line=line,
        problem=trajectory.problem,
        messages=_checked(trajectory.messages),
        calls=calls,
        ending=trajectory.ending,
        is_correct=trajectory.verdict.correct if trajectory.verdict else None,
    )


def _read_messages(row: Mapping[str, Any], line: int) -> Sample:
    messages = _checked(row.get("messages"), keys=list(row))
    calls = []
    for call, result in call_results(messages):
        function = call["function"]
        calls.append(
            Call(
                name=str(function.get("name") or ""),
                arguments=_arguments_text(function.get("arguments")),
                is_executed=result is not None,
                is_failed=result is not None and looks_failed(_text(result)),
            )
        )
    verdict = row.get("verdict")
    return Sample(
        line=line,
        problem=_problem(row, messages),
        messages=messages,
        calls=calls,
        ending=None,
        is_correct=bool(verdict["correct"]) if isinstance(verdict, dict) and "correct" in verdict else None,
    )


def _problem(row: Mapping[str, Any], messages: Sequence[Message]) -> Problem:
    prompt = row.get("problem")
    if not isinstance(prompt, str):
        prompt = next((_text(message) for message in messages if message["role"] == "user"), "")
    answer = row.get("answer")
    gold = "" if answer is None else str(answer).strip()
    # MATH rows say "Level 5"
    level = str(row.get("level")).removeprefix("Level ")
    return Problem(
        id=str(row.get("problem_id", prompt)),
        prompt=prompt,
        answer=gold,
        kind=_kind(row, gold),
        source=str(row.get("source") or ""),
        family=str(row.get("family") or ""),
        level=int(level) if level.isdecimal() else 0,
    )


def _kind(row: Mapping[str, Any], gold: str) -> AnswerKind:
    if "kind" not in row:
        return infer_kind(gold)
    try:
        return AnswerKind(row["kind"])
    except ValueError as error:
        raise DataError(f"unknown kind {row['kind']!r}", hint=f"kinds are {', '.join(AnswerKind)}") from error


def _checked(messages: Any, *, keys: Sequence[str] = ()) -> list[Message]:
    """Return messages whose layout is OpenAI's."""
    hint = "rows are records of agentrl, or have OpenAI 'messages'"
    if not isinstance(messages, list) or not messages:
        raise DataError(f"no list of 'messages'; the keys are {list(keys)}", hint=hint)
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise DataError(f"message {i} has no role among {sorted(_ROLES)}", hint=hint)
        if not isinstance(message.get("content"), str | None):
            raise DataError(f"the content of message {i} is {type(message['content']).__name__}, not text", hint=hint)
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(c, dict) and _is_object(c.get("function")) for c in calls):
            raise DataError(f"message {i} has tool_calls that are not OpenAI's", hint=hint)
    return messages


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _results_after(messages: Sequence[Message], index: int) -> list[Message]:
    """Return the tool messages that stand directly behind a message."""
    end = index + 1
    while end < len(messages) and messages[end]["role"] == "tool":
        end += 1
    return list(messages[index + 1 : end])


def _arguments_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, sort_keys=True)


def _text(message: Message) -> str:
    return message.get("content") or ""
