"""Loads problems: generated ones (`generated:sft|train|test`) or a JSONL file."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from agentrl_cli.config.schema import GeneratedConfig
from agentrl_cli.data.generated import Split, generate_problems
from agentrl_cli.errors import DataError
from agentrl_cli.types import AnswerKind, Problem

GENERATED = "generated:"

_TEXT_KEYS = ("problem", "prompt", "question")
_INTEGER = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)")
_DECIMAL = re.compile(r"[+-]?(\d+|\d{1,3}(,\d{3})+)?\.\d+")


def load_problems(source: str, *, generated: GeneratedConfig, seed: int, count: int = 0) -> list[Problem]:
    """Return the problems of a source, in a fixed order.

    A row of a JSONL file needs its text under `problem`, `prompt` or `question`, and `answer`; it may
    have `id`, `kind`, `source`, `family`, `level` and `meta`. Without `kind`, the gold decides:
    integer, decimal, else math. Without `id`, a digest of text and answer is taken.

    Args:
        source: `generated:SPLIT` or the path of a JSONL file.
        generated: Families and levels of generated problems, and `num_train`, the number of them where
            `count` is 0.
        seed: Of the generated problems; a file is always read in its own order.
        count: Most problems to return; 0 returns all of a file.

    Raises:
        DataError: the source can't be read, a row is not a problem, or two rows have one id.
        ConfigError: families, levels or the number of generated problems do not fit.
    """
    if source.startswith(GENERATED):
        return generate_problems(
            _split(source.removeprefix(GENERATED)),
            count=count or generated.num_train,
            seed=seed,
            families=generated.families,
            levels=generated.levels,
        )
    problems = _read_file(Path(source))
    return problems[:count] if count else problems


def infer_kind(answer: str) -> AnswerKind:
    """Return how a gold answer without a stated kind is compared."""
    text = answer.strip()
    if _INTEGER.fullmatch(text):
        return AnswerKind.INTEGER
    return AnswerKind.DECIMAL if _DECIMAL.fullmatch(text) else AnswerKind.MATH


def _split(name: str) -> Split:
    if name in get_args(Split):
        return cast(Split, name)
    known = ", ".join(f"{GENERATED}{split}" for split in get_args(Split))
    raise DataError(f"unknown source '{GENERATED}{name}'", hint=f"generated sources are {known}")


def _read_file(path: Path) -> list[Problem]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"can't read problems from '{path}': {error}", hint="give a UTF-8 JSONL file") from error
    problems: dict[str, Problem] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        problem = _read_row(line, where=f"{path}:{number}", source=path.stem)
        if problem.id in problems:
            raise DataError(f"{path}:{number}: the id {problem.id!r} stands twice", hint="give each row its own id")
        problems[problem.id] = problem
    if not problems:
        raise DataError(f"'{path}' holds no problems", hint="each line is one JSON object with a problem and an answer")
    return list(problems.values())


def _read_row(line: str, *, where: str, source: str) -> Problem:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a row must be a JSON object, got {type(row).__name__}")
    text = next((row[key] for key in _TEXT_KEYS if row.get(key)), None)
    if not isinstance(text, str):
        raise DataError(f"{where}: no text under any of {list(_TEXT_KEYS)}; the keys are {list(row)}")
    answer = row.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise DataError(f"{where}: 'answer' must be a text or a number, got {answer!r}")
    gold = str(answer).strip()
    digest = hashlib.sha256(f"{text}\x1f{gold}".encode()).hexdigest()[:16]
    return Problem(
        id=str(row.get("id", digest)),
        prompt=text,
        answer=gold,
        kind=_kind(row, gold, where=where),
        source=str(row.get("source") or source),
        family=str(row.get("family") or ""),
        level=_level(row, where=where),
        meta=row["meta"] if isinstance(row.get("meta"), dict) else {},
    )


def _kind(row: Mapping[str, Any], gold: str, *, where: str) -> AnswerKind:
    if "kind" not in row:
        return infer_kind(gold)
    try:
        return AnswerKind(row["kind"])
    except ValueError as error:
        known = ", ".join(AnswerKind)
        raise DataError(f"{where}: unknown kind {row['kind']!r}", hint=f"kinds are {known}") from error


def _level(row: Mapping[str, Any], *, where: str) -> int:
    level = row.get("level") or 0
    # MATH rows say "Level 5"
    text = str(level).removeprefix("Level ")
    if not text.isdecimal():
        raise DataError(f"{where}: 'level' must be a whole number, got {level!r}")
    return int(text)
