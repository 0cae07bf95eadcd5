"""What a run says of itself, read without opening it for writing."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from agentrl_cli.errors import DataError, RunError
from agentrl_cli.files import try_lock
from agentrl_cli.runs import RunFolder, step_entries

_MARKS = ("metrics.jsonl", "events.log", ".lock")
NOT_SET = "(not set)"
"""Stands for a setting that one of two versions does not have."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The content of a run's config.json."""

    path: Path
    kind: str
    version: str
    """Of agentrl."""
    created: datetime
    model: Mapping[str, str]
    """What identifies the model that the run began with."""
    settings: dict[str, Any]
    """Resolved settings by section."""
    model_path: str
    planned: int | None
    """Steps that the settings ask for; None for sft, which counts epochs."""


def read_facts(path: Path) -> RunFacts:
    """Read a run's config.json.

    Raises:
        RunError: the folder is no run, of another version, or damaged.
    """
    RunFolder.open(path, read_only=True)
    file = path / "config.json"
    facts = read_json(file)
    try:
        created = datetime.fromisoformat(facts["created"])
        settings = facts["config"]
        return RunFacts(
            path,
            kind=facts["kind"],
            version=facts["agentrl"],
            created=created,
            model=facts["model"],
            settings=settings,
            model_path=settings["model"]["path"],
            planned=int(settings["run"]["steps"]) if facts["kind"] == "rl" else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{str(file)!r} is damaged: {type(error).__name__} {error}") from error


def looks_like_run(path: Path) -> bool:
    """Whether something that only runs have is in the folder, readable or not."""
    return path.is_dir() and any((path / mark).exists() for mark in _MARKS)


def is_running(path: Path) -> bool:
    """Whether a process has the run's lock, and so may be writing."""
    lock = path / ".lock"
    try:
        descriptor = os.open(lock, os.O_RDWR if os.access(lock, os.W_OK) else os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def latest_checkpoint(run: Path) -> Path | None:
    """Return the newest complete checkpoint of a run, or None."""
    return next(reversed(step_entries(run / "checkpoints")), None)


def lookup(table: Mapping[str, Any], name: str) -> Any:
    """Return a value of a nested table by its dotted name (a key may hold dots itself), or `NOT_SET`."""
    if name in table:
        return table[name]
    section, _, rest = name.partition(".")
    below = table.get(section)
    return lookup(below, rest) if rest and isinstance(below, dict) else NOT_SET


def held_out_results(path: Path) -> list[dict[str, Any]]:
    """Return what was measured on held-out problems during a run, in order of steps.

    Raises:
        DataError: a file is damaged.
    """
    needs = ("step", "accuracy", "accuracy_greedy", "stderr", "n", "k")
    return [read_json(file, needs=needs) for file in step_entries(path / "eval", ".json")]


def read_json(file: Path, *, needs: Collection[str] = ()) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        DataError: the file can't be read, holds something else, or lacks one of the keys in `needs`.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{str(file)!r} can't be read: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{str(file)!r} holds {type(value).__name__}, not a JSON object")
    missing = [name for name in needs if name not in value]
    if missing:
        raise DataError(f"{str(file)!r} lacks {', '.join(missing)}")
    return value


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files under a folder; what vanishes meanwhile counts nothing."""
    total = 0
    for entry in [path, *path.rglob("*")]:
        try:
            total += 0 if entry.is_dir() else entry.lstat().st_size
        except FileNotFoundError:
            continue
    return total


def show_size(num_bytes: int) -> str:
    """Return a size for people: 512 B, 3.9 MiB."""
    size, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
