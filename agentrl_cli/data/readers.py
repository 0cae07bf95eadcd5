"""Reads the rows of local files, by suffix: JSONL, JSON, parquet, CSV. What the rows mean is decided elsewhere.

A row that can't be read is given on as a row with an error, so that the rest of its file can be used.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_cli.errors import DataError

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".csv", ".tsv")
_MORE_CELLS = "more cells than columns"
_HINT = f"give a file that ends in {', '.join(SUFFIXES)}"


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as it was read."""

    where: str
    """Its place: `file:LINE` for JSONL, `file, row N` (from 1, without the header) for the rest."""
    value: Any
    error: str = ""
    """Why it could not be read; `value` means nothing then."""


def file_rows(path: Path) -> Iterator[RawRow]:
    """Yield the rows of a file in order.

    Raises:
        DataError: the file is missing, of an unknown type, or can't be read at all.
    """
    if path.is_dir():
        inside = sorted(str(file) for file in path.rglob("*") if file.suffix in SUFFIXES)
        hint = f"give a file of it, such as {inside[0]}" if inside else _HINT
        raise DataError(f"'{path}' is a folder, not a file of problems", hint=hint)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"'{path}' has the unknown suffix {path.suffix!r}", hint=_HINT)
    try:
        if suffix == ".parquet":
            yield from _parquet_rows(path)
        elif suffix == ".json":
            yield from _json_rows(path)
        elif suffix in (".csv", ".tsv"):
            yield from _csv_rows(path)
        else:
            yield from _jsonl_rows(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"can't read problems from '{path}': {reason}", hint=_HINT) from error
    except UnicodeDecodeError as error:
        raise DataError(f"can't read problems from '{path}': {error}", hint="save it as UTF-8") from error


def _jsonl_rows(path: Path) -> Iterator[RawRow]:
    # By bytes: a torn line may end inside a character, and only a newline ends a row (not U+2028).
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                yield RawRow(where, json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8")))
            except (ValueError, RecursionError) as error:
                yield RawRow(where, None, error=f"not valid JSON ({error})")


def _json_rows(path: Path) -> Iterator[RawRow]:
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, RecursionError) as error:
        hint = "one object a line is JSONL: name such a file .jsonl"
        raise DataError(f"'{path}' is not valid JSON ({error})", hint=hint) from error
    if not isinstance(values, list):
        raise DataError(f"'{path}' must hold a list of problems, got {type(values).__name__}")
    for number, value in enumerate(values, start=1):
        yield RawRow(f"{path}, row {number}", value)


def _parquet_rows(path: Path) -> Iterator[RawRow]:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for value in batch.to_pylist():
                    number += 1
                    yield RawRow(f"{path}, row {number}", value)
    except pyarrow.ArrowException as error:
        raise DataError(f"can't read '{path}' as parquet after row {number}: {error}") from error


def _csv_rows(path: Path) -> Iterator[RawRow]:
    """Yield the rows as texts; an empty cell is no value. The header's commonest separator separates."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        header = file.readline()
        file.seek(0)
        delimiter = max(",;\t", key=header.count)
        reader = csv.DictReader(file, delimiter=delimiter, strict=True, restkey=_MORE_CELLS)
        number = 0
        while True:
            number += 1
            where = f"{path}, row {number}"
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield RawRow(where, None, error=f"not valid CSV ({error})")
                continue
            error_text = _MORE_CELLS if _MORE_CELLS in cells else ""
            yield RawRow(where, {name: cell or None for name, cell in cells.items()}, error=error_text)
