"""Checks the verifier against cases whose verdict is known."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, TypeVar

from agentrl_cli.errors import DataError
from agentrl_cli.rewards.verify import Response, check_gold, verify_all
from agentrl_cli.types import AnswerKind, Problem, Verdict, VerdictStatus

_Enum = TypeVar("_Enum", AnswerKind, VerdictStatus)

_FIELDS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "kind": (str,),
    "gold": (str,),
    "response": (str,),
    "correct": (bool,),
    "status": (str, list),
}


class Disagreement(TypedDict):
    """One case that the verifier decides otherwise."""

    id: str
    kind: str
    gold: str
    extracted: str
    expected_correct: bool
    correct: bool
    expected_status: list[str]
    status: str


class AuditReport(TypedDict):
    """What an audit came to."""

    cases: int
    agree: int
    by_kind: dict[str, str]
    """`agreeing/all` by kind of answer."""
    disagreements: list[Disagreement]


@dataclass(frozen=True, slots=True)
class _Case:
    problem: Problem
    response: str
    is_correct: bool
    statuses: list[VerdictStatus]


def audit_cases(path: Path, *, timeout_s: float) -> AuditReport:
    """Verify every case of a file and report where the verifier disagrees.

    Args:
        path: JSONL with rows `{id, kind, gold, response, correct, status}`; `status` may be a list of those
            that are accepted.
        timeout_s: Limit of verifying one answer.

    Raises:
        DataError: the file can't be read or a row is malformed; it names the line.
    """
    cases = _read_cases(path)
    verdicts = verify_all([Response(case.response, case.problem) for case in cases], timeout_s=timeout_s)
    disagreements = []
    all_of, agree_of = Counter[str](), Counter[str]()
    for case, verdict in zip(cases, verdicts, strict=True):
        all_of[case.problem.kind] += 1
        if verdict.correct == case.is_correct and verdict.status in case.statuses:
            agree_of[case.problem.kind] += 1
        else:
            disagreements.append(_disagreement(case, verdict))
    return {
        "cases": len(cases),
        "agree": agree_of.total(),
        "by_kind": {kind: f"{agree_of[kind]}/{count}" for kind, count in sorted(all_of.items())},
        "disagreements": disagreements,
    }


def _disagreement(case: _Case, verdict: Verdict) -> Disagreement:
    return {
        "id": case.problem.id,
        "kind": case.problem.kind.value,
        "gold": case.problem.answer,
        "extracted": verdict.extracted,
        "expected_correct": case.is_correct,
        "correct": verdict.correct,
        "expected_status": [status.value for status in case.statuses],
        "status": verdict.status.value,
    }


def _read_cases(path: Path) -> list[_Case]:
    try:
        # Not splitlines(): it would cut a row at characters that JSON allows inside a string.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"can't read cases from '{path}': {error}", hint="give a UTF-8 JSONL file") from error
    numbered = enumerate(lines, start=1)
    cases = [_read_case(line, where=f"{path}:{number}") for number, line in numbered if line.strip()]
    if not cases:
        raise DataError(f"'{path}' holds no cases", hint=f"each line is a JSON object with {', '.join(_FIELDS)}")
    return cases


def _read_case(line: str, *, where: str) -> _Case:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(row, dict):
        raise DataError(f"{where}: a case must be a JSON object, got {type(row).__name__}")
    for name, types in _FIELDS.items():
        if not isinstance(row.get(name), types):
            wanted = " or ".join(t.__name__ for t in types)
            raise DataError(f"{where}: {name!r} must be {wanted}, got {row.get(name, 'nothing')!r}")
    statuses = row["status"] if isinstance(row["status"], list) else [row["status"]]
    problem = Problem(row["id"], "", row["gold"], _enum(AnswerKind, row["kind"], name="kind", where=where))
    check_gold(problem, where=where)
    accepted = [_enum(VerdictStatus, status, name="status", where=where) for status in statuses]
    return _Case(problem, row["response"], row["correct"], accepted)


def _enum(values: type[_Enum], text: object, *, name: str, where: str) -> _Enum:
    try:
        return values(str(text))
    except ValueError as error:
        raise DataError(f"{where}: unknown {name} {text!r}", hint=f"known are {', '.join(values)}") from error
