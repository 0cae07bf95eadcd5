"""Files that survive a kill at any moment: whole or not there, or, for logs, whole up to the last line."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl_cli.errors import DataError

_PARTIAL = ".partial-"
"""Name prefix of what a kill may leave behind; `clean_leftovers` removes it."""


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never part of it."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=_PARTIAL)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """Give a folder to fill; it gets its name once it is complete and on disk.

    A folder of that name is replaced. If the block raises, nothing of the new one stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=_PARTIAL))
    try:
        yield partial
        os.chmod(partial, 0o777 & ~_umask())
        for file in partial.rglob("*"):
            if file.is_file():
                with file.open("rb") as handle:
                    os.fsync(handle.fileno())
        remove_dir(path)
        os.rename(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync_folder(path.parent)


def remove_dir(path: Path) -> None:
    """Delete a folder; a kill on the way leaves no folder of that name with part of its content."""
    if path.exists():
        doomed = Path(tempfile.mkdtemp(dir=path.parent, prefix=_PARTIAL))
        os.rename(path, doomed / path.name)
        shutil.rmtree(doomed)


def clean_leftovers(folder: Path) -> None:
    """Delete what a killed writer left half-done in a folder."""
    for leftover in folder.glob(f"{_PARTIAL}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


class RowWriter:
    """Appends JSON rows to a file, each whole and handed to the system at once."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _cut_torn_line(path)
        self._file = path.open("ab")

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row.

        Raises:
            ValueError: it holds NaN or infinity, which JSON has no word for.
        """
        self._file.write((json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8"))
        self._file.flush()

    def sync(self) -> None:
        """Wait until everything is on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_rows(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """Return all rows of a JSONL file, and whether a torn last line (of a killed writer) was left out.

    Raises:
        DataError: the file can't be read, or another line is no JSON object.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{str(path)!r} can't be read: {error.strerror}") from error
    lines = data.split(b"\n")
    torn = bool(lines[-1].strip())
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        is_last = number == len(lines)
        try:
            row = json.loads(line)
        except ValueError as error:
            if is_last:
                break
            raise DataError(f"line {number} of {str(path)!r} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"line {number} of {str(path)!r} is {type(row).__name__}, not a JSON object")
        rows.append(row)
        torn = torn and not is_last
    return rows, torn


def _cut_torn_line(path: Path) -> None:
    """Cut a file back to its last whole line, or end the last line if it is whole but for its newline."""
    if not path.exists():
        return
    data = path.read_bytes()
    if not data or data.endswith(b"\n"):
        return
    tail = data[data.rfind(b"\n") + 1 :]
    try:
        json.loads(tail)
    except ValueError:
        os.truncate(path, len(data) - len(tail))
        return
    with path.open("ab") as file:
        file.write(b"\n")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
