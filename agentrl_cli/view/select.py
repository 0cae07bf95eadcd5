"""Finds the records that someone wants to look at."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_cli.errors import DataError
from agentrl_cli.files import read_rows
from agentrl_cli.records import row_to_trajectory
from agentrl_cli.runs import step_entries

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Selection:
    """Records of one file."""

    file: Path
    rows: list[Row]
    places: list[int]
    """Of each row in the file, from 0."""
    num_matching: int
    """Rows that meet the conditions; more than `rows` if a limit cut them."""
    num_rows: int
    """Rows of the file."""
    is_torn: bool
    """A killed writer left half a last line, which is left out."""

    def counts(self) -> dict[str, Any]:
        """Return what is to be known of the file, as JSON can hold it."""
        return {
            "file": str(self.file),
            "num_rows": self.num_rows,
            "num_matching": self.num_matching,
            "is_torn": self.is_torn,
        }


def select_records(path: Path, *, record_id: str | None, correct: bool | None, limit: int) -> Selection:
    """Read the records that meet the conditions.

    Args:
        path: A file of records, a run (its newest trajectories, or else its newest evaluation; with an id,
            the newest file that has it), or the folder of an evaluation.
        record_id: Of a trajectory, or of a problem for all its trajectories.
        correct: Only right ones, or only those that are not (lost ones included); None takes both.
        limit: Most records.

    Raises:
        DataError: the file is missing or damaged, holds other rows, or has no such id.
    """
    file = _file_with(find_files(path), record_id)
    rows, is_torn = read_rows(file)
    for row in rows:
        row_to_trajectory(row)
    if not rows:
        raise DataError(f"{str(file)!r} holds no trajectory" + (" but half a line" if is_torn else ""))
    if record_id is not None:
        _require_id(rows, record_id, file)
    places = [i for i, row in enumerate(rows) if _matches(row, record_id=record_id, correct=correct)]
    shown = places[:limit]
    return Selection(file, [rows[i] for i in shown], shown, len(places), len(rows), is_torn)


def find_files(path: Path) -> list[Path]:
    """Return the files of records that a path means, the newest first.

    Raises:
        DataError: there is none.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{str(path)!r} does not exist", hint="give a run, or a file of trajectories (JSONL)")
    if (path / "samples.jsonl").is_file():
        return [path / "samples.jsonl"]
    samples = sorted((path / "eval").glob("*/samples.jsonl"), key=lambda file: file.stat().st_mtime)
    by_step = [step_entries(path / name, ".jsonl") for name in ("eval", "trajectories")]
    files = [*samples, *by_step[0], *by_step[1]]
    if not files:
        raise DataError(f"{str(path)!r} holds no trajectories", hint="give a file of trajectories (JSONL)")
    return files[::-1]


def _file_with(files: list[Path], record_id: str | None) -> Path:
    """Return the newest file that mentions an id, or the newest of all."""
    if record_id is None:
        return files[0]
    wanted = json.dumps(record_id, ensure_ascii=False).encode()
    return next((file for file in files if wanted in file.read_bytes()), files[0])


def is_correct(row: Row) -> bool:
    """Whether the answer was found right; a trajectory that was lost has no verdict and is not."""
    return row["verdict"] is not None and bool(row["verdict"]["correct"])


def _matches(row: Row, *, record_id: str | None, correct: bool | None) -> bool:
    is_wanted = record_id is None or record_id in (row["id"], row["problem_id"])
    return is_wanted and (correct is None or is_correct(row) is correct)


def _require_id(rows: list[dict[str, Any]], record_id: str, file: Path) -> None:
    known = {str(row[name]) for row in rows for name in ("id", "problem_id")}
    if record_id in known:
        return
    close = difflib.get_close_matches(record_id, sorted(known), n=1, cutoff=0.0)
    raise DataError(f"no trajectory or problem {record_id!r} in {str(file)!r}", hint=f"the nearest is {close[0]}")
