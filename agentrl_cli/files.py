"""Files that survive a kill at any moment: whole or not there, or, for logs, whole up to the last line."""

from __future__ import annotations

import fcntl
import glob
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from agentrl_cli.errors import DataError

_PARTIAL = ".partial-"
"""In the name of what a kill may leave behind; `clean_leftovers` removes it."""


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Give a file to fill; a reader sees the old content or, once the block is done, all of the new.

    If the block raises, the old content stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never part of it."""
    with atomic_file(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


@contextmanager
def atomic_dir(path: Path) -> Iterator[Path]:
    """Give a folder to fill; it gets its name once it is complete and on disk.

    A folder of that name is replaced (a kill at that instant leaves neither). If the block raises,
    nothing of the new one stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(path)
    partial.mkdir()
    try:
        yield partial
        for entry in partial.rglob("*"):
            _sync(entry)
        _sync(partial)
        remove_dir(path)
        os.rename(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync(path.parent)


def remove_dir(path: Path) -> None:
    """Delete a folder if it is there; a kill on the way leaves no folder of that name with part of its content."""
    if path.exists():
        doomed = _partial(path)
        os.rename(path, doomed)
        shutil.rmtree(doomed)


def clean_leftovers(folder: Path, *, of: str = "") -> None:
    """Delete what a killed writer left half-done in a folder; nobody may be writing there.

    Args:
        of: Only leftovers of the file or folder with this name.
    """
    for leftover in folder.glob(f".{glob.escape(of) or '*'}{_PARTIAL}*"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file; returns False if another has it.

    The system drops the lock when the file is closed or the process ends, however it ends.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def encode_row(row: Mapping[str, Any]) -> bytes:
    """Return a row as one line of UTF-8 JSON.

    Raises:
        ValueError: it holds NaN or infinity, which JSON has no word for.
    """
    try:
        return (json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
    except UnicodeEncodeError:
        # half a surrogate pair, as models write it into escapes, has no UTF-8
        return (json.dumps(row, allow_nan=False) + "\n").encode("ascii")


class RowWriter:
    """Appends JSON rows to a file, each whole and handed to the system at once."""

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        """Open the file to append to, and cut off a torn last line.

        Args:
            exclusive: Refuse the file if another writer that asked the same has it open.

        Raises:
            DataError: another process writes it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab")
        if exclusive and not (try_lock(self._file.fileno()) and _is_same(path, self._file)):
            self._file.close()
            raise DataError(f"another process writes {str(path)!r}", hint="wait for it, or give another --out")
        _cut_torn_line(path)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row.

        Raises:
            ValueError: it holds NaN or infinity.
        """
        self._file.write(encode_row(row))
        self._file.flush()

    def sync(self) -> None:
        """Wait until everything is on disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._file.close()

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a JSONL file with its place in it."""

    number: int
    """From 1; blank lines count."""
    offset: int
    """Bytes before it."""
    raw: bytes
    """Without the newline."""
    row: dict[str, Any]


class RowReader:
    """Reads a JSONL file line by line; once read, `torn` says whether a torn last line was left out."""

    def __init__(self, path: Path, *, on_bad: Callable[[DataError], None] | None = None) -> None:
        """Prepare to read.

        Args:
            on_bad: Is told of each line that is no JSON object, which is then left out; without it such a
                line ends the reading, unless it is a torn last one.
        """
        self.path = path
        self.torn = False
        self._on_bad = on_bad

    def __iter__(self) -> Iterator[Line]:
        """Yield the lines that are not blank.

        Raises:
            DataError: the file can't be read, or another line than a torn last one is no JSON object.
        """
        self.torn = False
        offset = 0
        try:
            with self.path.open("rb") as file:
                for number, raw in enumerate(file, start=1):
                    row = self._parse(raw, number) if raw.strip() else None
                    if row is not None:
                        yield Line(number, offset, raw.rstrip(b"\r\n"), row)
                    offset += len(raw)
        except OSError as error:
            raise DataError(f"{str(self.path)!r} can't be read: {error.strerror}") from error

    def _parse(self, raw: bytes, number: int) -> dict[str, Any] | None:
        try:
            row = json.loads(raw)
        except (ValueError, RecursionError) as error:
            self.torn = not raw.endswith(b"\n")
            if self.torn and self._on_bad is None:
                return None
            self._refuse(DataError(f"line {number} of {str(self.path)!r} is not JSON: {error}"))
            return None
        if not isinstance(row, dict):
            found = type(row).__name__
            self._refuse(DataError(f"line {number} of {str(self.path)!r} is {found}, not a JSON object"))
            return None
        return row

    def _refuse(self, error: DataError) -> None:
        if self._on_bad is None:
            raise error
        self._on_bad(error)


def read_rows(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """Return all rows of a JSONL file, and whether a torn last line (of a killed writer) was left out.

    Raises:
        DataError: the file can't be read, or another line is no JSON object.
    """
    reader = RowReader(path)
    rows = [line.row for line in reader]
    return rows, reader.torn


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSONL file, the whole of it or nothing."""
    with atomic_file(path) as file:
        for row in rows:
            file.write(encode_row(row))


def card_path(path: Path) -> Path:
    """Return where the card of a data file lies, which says where its rows come from: NAME.card.json."""
    return path.with_name(f"{path.stem}.card.json")


def _cut_torn_line(path: Path) -> None:
    """Cut a file back to its last whole line, or end the last line if it is whole but for its newline."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        tail = _last_line(file, size)
        if not tail:
            return
        try:
            json.loads(tail)
        except ValueError:
            file.truncate(size - len(tail))
        else:
            file.seek(size)
            file.write(b"\n")


def _last_line(file: BinaryIO, size: int) -> bytes:
    """Return what follows the last newline, without reading the whole file."""
    tail, start = b"", size
    while start > 0 and b"\n" not in tail:
        length = min(1 << 16, start)
        start -= length
        file.seek(start)
        tail = file.read(length) + tail
    return tail.rpartition(b"\n")[2]


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}{_PARTIAL}{secrets.token_hex(6)}")


def _is_same(path: Path, file: BinaryIO) -> bool:
    """Whether an open file still has its name: another process may have replaced it in between."""
    return path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno()))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
