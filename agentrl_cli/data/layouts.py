r"""Recognises the layouts of public problem sets by their columns and makes problems of their rows.

| layout | text | gold answer |
|---|---|---|
| plain | `problem`, `question`, `prompt` | `answer`, `ground_truth`, `gold` |
| GSM8K | `question` | what follows `####` in `answer` |
| verl (DAPO, Open-AgentRL, Skywork) | `prompt`, a list of messages | `reward_model.ground_truth`, bare or `["8"]` |

Upper and lower case of column names do not matter. Any other layout needs a column map (`data.columns`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_cli.config.schema import ColumnsConfig
from agentrl_cli.errors import DataError
from agentrl_cli.types import AnswerKind, Problem

TEXT_COLUMNS = ("problem", "question", "prompt", "messages")
ANSWER_COLUMNS = ("answer", "ground_truth", "gold")
_ID_COLUMNS = ("id", "unique_id", "task_id", "question_id")
_FAMILY_COLUMNS = ("family", "subject", "domain", "ability")
_LEVEL_COLUMNS = ("level",)

_INTEGER = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)")
_DECIMAL = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)?\.\d+")
_GSM8K_MARK = "####"
_TEXT_LIST = re.compile(r'\s*\[\s*"')
_CODE_TRUTH = re.compile(r"\s*\{.*?[\"'](inputs|outputs|test_code)[\"']\s*:", re.DOTALL)
_CODE_SOURCE = "train-code"
_CODE_FIELDS = {"inputs", "outputs", "test_code"}


class UnanswerableError(DataError):
    """A problem that is in order, but whose answers can't be verified yet: it asks for code."""


def infer_kind(answer: str) -> AnswerKind:
    """Return how a gold answer without a stated kind is compared."""
    text = answer.strip()
    if _INTEGER.fullmatch(text):
        return AnswerKind.INTEGER
    return AnswerKind.DECIMAL if _DECIMAL.fullmatch(text) else AnswerKind.MATH


def read_problem(
    row: Any, *, where: str, source: str, kind: AnswerKind | None = None, columns: ColumnsConfig | None = None
) -> Problem:
    """Return the problem that a row of any known layout, or of the named columns, holds.

    Args:
        where: Place of the row, for messages.
        source: Where the row itself names no source.
        kind: Of all answers of the set; None takes the row's own, else the gold decides.
        columns: Columns to read in place of the known ones.

    Raises:
        UnanswerableError: it is a code problem.
        DataError: it is no problem; the message says where and why.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: a row must be a JSON object, got {type(row).__name__}")
    named = columns or ColumnsConfig()
    _check_named(named, list(row), where=where)
    fields = {str(name).lower(): value for name, value in row.items() if value is not None}
    if _is_code(fields):
        raise UnanswerableError(f"{where}: answers of kind 'code' can't be verified yet")
    prompt = _text(fields, named, where=where)
    gold = _gold(fields, named, where=where)
    return Problem(
        id=_id(fields, named, prompt=prompt, gold=gold),
        prompt=prompt,
        answer=gold,
        kind=kind or _kind(fields, gold, where=where),
        source=str(fields.get("source") or fields.get("data_source") or source),
        family=str(_first(fields, _names(named.family, _FAMILY_COLUMNS)) or ""),
        level=_level(_first(fields, _names(named.level, _LEVEL_COLUMNS))),
        meta=_meta(fields),
    )


def _check_named(columns: ColumnsConfig, present: Sequence[Any], *, where: str) -> None:
    found = {str(name).lower() for name in present}
    for setting, column in columns.model_dump().items():
        if column and column.lower() not in found:
            raise DataError(
                f"{where}: no column {column!r}, as data.columns.{setting} names it; the columns are {list(present)}",
                hint=f"set data.columns.{setting} to one of them",
            )


def _names(named: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns to look in: the one that was named, else the known ones."""
    return (named.lower(),) if named else known


def _first(fields: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the first value that is there and not blank, or None."""
    values = (fields[name] for name in names if name in fields)
    return next((value for value in values if not isinstance(value, str) or value.strip()), None)


def _text(fields: Mapping[str, Any], columns: ColumnsConfig, *, where: str) -> str:
    names = _names(columns.problem, TEXT_COLUMNS)
    value = _first(fields, names)
    if isinstance(value, list):
        return _conversation(value, where=where)
    if not isinstance(value, str):
        raise DataError(f"{where}: no text in any of the columns {list(names)}, found {list(fields)}")
    return value


def _conversation(messages: Sequence[Any], *, where: str) -> str:
    """Return one user message as text, with the system message, if there is one, in front of it."""
    if not all(isinstance(m, Mapping) and isinstance(m.get("content"), str) for m in messages):
        raise DataError(f"{where}: the prompt is a list, but not of messages with role and content")
    roles = [message.get("role") for message in messages]
    if roles not in (["user"], ["system", "user"]):
        raise DataError(f"{where}: a prompt is one user message, got the roles {roles}")
    return "\n\n".join(message["content"] for message in messages if message["content"].strip())


def _gold(fields: Mapping[str, Any], columns: ColumnsConfig, *, where: str) -> str:
    names = _names(columns.answer, ANSWER_COLUMNS)
    answer = _first(fields, names)
    if answer is None and not columns.answer:
        answer = _only(_object(fields.get("reward_model")).get("ground_truth"), where=where)
    if answer is None:
        raise DataError(f"{where}: 'answer' is missing: nothing in the columns {list(names)}, found {list(fields)}")
    is_number = isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer)
    gold = str(answer).rpartition(_GSM8K_MARK)[2].strip()
    if not (is_number or isinstance(answer, str)) or not gold:
        raise DataError(f"{where}: 'answer' must be a text or a number, got {answer!r}")
    return gold


def _only(truth: Any, *, where: str) -> Any:
    """Unwrap `["8"]`, as a list or as its JSON text; `[0,1]` stays, for it is an interval."""
    items = truth
    if isinstance(truth, str) and _TEXT_LIST.match(truth):
        try:
            items = json.loads(truth)
        except ValueError:
            return truth
    if not isinstance(items, list):
        return truth
    if len(items) != 1:
        raise DataError(f"{where}: the ground truth lists {len(items)} answers; only one can be compared")
    return items[0]


def _object(value: Any) -> Mapping[str, Any]:
    """Return a JSON object that may be given as its text; anything else is an empty one."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, Mapping) else {}


def _is_code(fields: Mapping[str, Any]) -> bool:
    """Whether a row asks for code, by its kind, its source or its truth (tests, as JSON or a Python literal)."""
    labels = (str(fields.get("kind")), str(fields.get("ability")))
    if "code" in [label.lower() for label in labels] or str(fields.get("data_source")).startswith(_CODE_SOURCE):
        return True
    for truth in (_object(fields.get("reward_model")).get("ground_truth"), _first(fields, ANSWER_COLUMNS)):
        if isinstance(truth, Mapping) and _CODE_FIELDS & truth.keys():
            return True
        if isinstance(truth, str) and _CODE_TRUTH.match(truth):
            return True
    return False


def _id(fields: Mapping[str, Any], columns: ColumnsConfig, *, prompt: str, gold: str) -> str:
    """Return the row's own id, else a digest of what it says: a row that is repeated gets the same one."""
    given = _first(fields, _names(columns.id, _ID_COLUMNS))
    return hashlib.sha256(f"{prompt}\x1f{gold}".encode()).hexdigest()[:16] if given is None else str(given)


def _meta(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `meta`, else the index of verl's layout: that counts in one file of a mixture, so it is no id."""
    meta = fields.get("meta")
    if isinstance(meta, Mapping):
        return meta
    index = _object(fields.get("extra_info")).get("index")
    return {} if index is None else {"index": index}


def _kind(fields: Mapping[str, Any], gold: str, *, where: str) -> AnswerKind:
    if "kind" not in fields:
        return infer_kind(gold)
    try:
        return AnswerKind(str(fields["kind"]))
    except ValueError as error:
        known = ", ".join(AnswerKind)
        raise DataError(f"{where}: unknown kind {fields['kind']!r}", hint=f"kinds are {known}") from error


def _level(value: Any) -> int:
    """Return a difficulty such as 5, "5.0" or "Level 5"; 0 where the source has none or names it in words."""
    text = str(value).removeprefix("Level ").removesuffix(".0")
    return int(text) if text.isdecimal() else 0
