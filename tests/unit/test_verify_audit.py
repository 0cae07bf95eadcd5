"""The audit of the verifier: what it reports and which case files it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.errors import DataError
from agentrl_cli.evaluation.audit import audit_cases

CASE: dict[str, Any] = {
    "id": "a",
    "kind": "integer",
    "gold": "12",
    "response": "\\boxed{12}",
    "correct": True,
    "status": "ok",
}


def write(path: Path, *rows: object) -> Path:
    """Write rows as JSONL; texts are written as they are."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_report_counts_agreement_and_lists_disagreements(tmp_path: Path) -> None:
    """Both a wrong verdict and a wrong status are disagreements; any of several statuses will do."""
    file = write(
        tmp_path / "cases.jsonl",
        CASE,
        {**CASE, "id": "b", "correct": False},
        {**CASE, "id": "c", "status": ["timeout", "unparsed"]},
        {**CASE, "id": "d", "kind": "choice", "gold": "C", "response": "C", "correct": False, "status": ["no_answer"]},
    )
    report = audit_cases(file, timeout_s=5)
    assert (report["cases"], report["agree"]) == (4, 2)
    assert report["by_kind"] == {"choice": "1/1", "integer": "1/3"}
    assert [case["id"] for case in report["disagreements"]] == ["b", "c"]
    first = report["disagreements"][0]
    assert (first["expected_correct"], first["correct"], first["extracted"]) == (False, True, "12")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "JSON object"),
        ({**CASE, "kind": "number"}, "unknown kind 'number'"),
        ({**CASE, "status": "fine"}, "unknown status 'fine'"),
        ({**CASE, "correct": "yes"}, "'correct' must be bool"),
        ({**CASE, "gold": "twelve"}, "no integer answer"),
        ({**CASE, "kind": "code"}, "can't be verified yet"),
        ({name: value for name, value in CASE.items() if name != "gold"}, "'gold' must be str, got 'nothing'"),
    ],
)
def test_malformed_case_names_its_line(tmp_path: Path, row: object, message: str) -> None:
    """A case that can't be read stops the audit with file, line and what is wrong."""
    file = write(tmp_path / "cases.jsonl", CASE, row)
    with pytest.raises(DataError, match=message) as error:
        audit_cases(file, timeout_s=5)
    assert f"{file}:2" in str(error.value)


def test_no_cases(tmp_path: Path) -> None:
    """A missing or empty file is the user's to fix."""
    with pytest.raises(DataError, match="can't read cases"):
        audit_cases(tmp_path / "none.jsonl", timeout_s=5)
    with pytest.raises(DataError, match="holds no cases"):
        audit_cases(write(tmp_path / "empty.jsonl", ""), timeout_s=5)
