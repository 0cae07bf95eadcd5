"""The folder of a run: what is in it, that it is never overwritten, and that one process writes it.

    config.json     resolved settings, their digest, the version of agentrl, what identifies the model
    metrics.jsonl   one row a step
    trajectories/   one JSONL and one token file a step
    checkpoints/    step-000010 and so on, complete or not there
    eval/           what was measured on held-out problems
    events.log      what happened when
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from agentrl_cli import __version__
from agentrl_cli.config.load import resolved_dump
from agentrl_cli.config.schema import Config
from agentrl_cli.errors import RunError
from agentrl_cli.files import RowWriter, clean_leftovers, read_rows, remove_dir, write_atomic
from agentrl_cli.records import write_rows

SCHEMA = 1
ROOT = Path("runs")
_STEP_FOLDERS = ("trajectories", "eval")


class RunFolder:
    """An open run; use it as a context manager, or close it."""

    def __init__(self, path: Path, facts: dict[str, Any], *, read_only: bool) -> None:
        self.path = path
        self._facts = facts
        self._lock: int | None = None
        self._metrics: RowWriter | None = None
        if not read_only:
            self._lock = _lock(path)
            for folder in (path, path / "checkpoints", *(path / name for name in _STEP_FOLDERS)):
                folder.mkdir(exist_ok=True)
                clean_leftovers(folder)
            self._metrics = RowWriter(path / "metrics.jsonl")

    @classmethod
    def create(cls, config: Config, *, kind: str, out: Path | None, digest: str) -> RunFolder:
        """Make a new run.

        Args:
            kind: The command, for the default name runs/KIND-TIME.
            out: Folder to make; it may exist if it is empty.
            digest: Of the settings; a resumed run must have the same.

        Raises:
            RunError: there is something in the folder.
        """
        path = out or _free_name(kind)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(
                f"{str(path)!r} exists and is not empty; a run is never overwritten",
                hint=f"give another --out, or go on with it: --resume {path}",
            )
        path.mkdir(parents=True, exist_ok=True)
        facts = {
            "schema": SCHEMA,
            "kind": kind,
            "agentrl": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "digest": digest,
            "model": {},
            "config": resolved_dump(config),
        }
        write_atomic(path / "config.json", json.dumps(facts, indent=1))
        run = cls(path, facts, read_only=False)
        run.log_event("created")
        return run

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> RunFolder:
        """Open an existing run.

        Raises:
            RunError: it is no run, of a newer version, or another process writes it.
        """
        try:
            facts = json.loads((path / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{str(path)!r} is not a run: no readable config.json ({error})") from error
        if facts.get("schema") != SCHEMA:
            raise RunError(
                f"{str(path)!r} was written by agentrl {facts.get('agentrl')} (schema {facts.get('schema')!r})",
                hint="use that version for it",
            )
        return cls(path, facts, read_only=read_only)

    @property
    def digest(self) -> str:
        """Digest of the settings that the run began with."""
        return str(self._facts["digest"])

    @property
    def settings(self) -> dict[str, Any]:
        """Resolved settings that the run began with."""
        return dict(self._facts["config"])

    @property
    def trajectories(self) -> Path:
        """Folder of the trajectories of training."""
        return self.path / "trajectories"

    def record_identity(self, identity: Mapping[str, str]) -> None:
        """Add to config.json what identifies the model that the run starts from."""
        self._facts = {**self._facts, "model": dict(identity)}
        write_atomic(self.path / "config.json", json.dumps(self._facts, indent=1))

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row; what is not finite becomes the text "NaN", "Infinity" or "-Infinity"."""
        assert self._metrics is not None, "the run is open for reading"
        self._metrics.write({"step": step, **{name: encode_metric(value) for name, value in metrics.items()}})

    def log_event(self, text: str) -> None:
        """Append a line with the time to events.log."""
        with (self.path / "events.log").open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}\n")

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint of a step lies or will lie."""
        return self.path / "checkpoints" / f"step-{step:06d}"

    def checkpoints(self) -> list[Path]:
        """All complete checkpoints, oldest first."""
        return sorted((self.path / "checkpoints").glob("step-*"), key=step_of)

    def latest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint, or None."""
        return next(reversed(self.checkpoints()), None)

    def truncate_after(self, step: int) -> None:
        """Cut the run back to a step: later metrics, trajectories, evaluations and checkpoints go."""
        assert self._metrics is not None, "the run is open for reading"
        self._metrics.close()
        file = self.path / "metrics.jsonl"
        rows, _ = read_rows(file)
        write_rows(file, [row for row in rows if row["step"] <= step])
        self._metrics = RowWriter(file)
        for name in _STEP_FOLDERS:
            for later in (self.path / name).glob("step-*"):
                if step_of(later) > step:
                    later.unlink()
        for checkpoint in self.checkpoints():
            if step_of(checkpoint) > step:
                remove_dir(checkpoint)
        self.log_event(f"resumed after step {step}")

    def sync(self) -> None:
        """Wait until the metrics are on disk."""
        if self._metrics is not None:
            self._metrics.sync()

    def close(self) -> None:
        """Let go of the files and of the lock."""
        if self._metrics is not None:
            self._metrics.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._lock is not None:
            self.log_event("done" if error is None else f"ended by {type(error).__name__}: {error}")
        self.close()


def step_of(path: Path) -> int:
    """Return the number in a name like step-000010.jsonl."""
    return int(path.name.split(".")[0].removeprefix("step-"))


def newest_run(root: Path = ROOT) -> Path | None:
    """Return the run that was created last under a folder, or None."""
    runs = [(created, path) for path in root.glob("*") if (created := _created(path))]
    return max(runs)[1] if runs else None


def encode_metric(value: float) -> float | str:
    """Return a number as JSON can hold it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _created(path: Path) -> str:
    if not (path / "metrics.jsonl").exists():
        return ""
    try:
        return str(json.loads((path / "config.json").read_text(encoding="utf-8")).get("created", ""))
    except (OSError, ValueError):
        return ""


def _free_name(kind: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    names = (ROOT / f"{kind}-{stamp}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(path for path in names if not path.exists())


def _lock(path: Path) -> int:
    """Take the run's lock; the system drops it when the process ends, however it ends."""
    handle = os.open(path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise RunError(f"another process writes the run {str(path)!r}", hint="wait for it, or stop it") from error
    return handle
