"""The folder of a run: what is in it, that it is never overwritten, and that one process writes it.

config.json     resolved settings, their digest, the version of agentrl, what identifies the model
metrics.jsonl   one row a step
trajectories/   one JSONL and one token file a step
checkpoints/    step-000010 and so on, complete or not there
eval/           what was measured on held-out problems
events.log      what happened when
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from agentrl_cli import __version__
from agentrl_cli.config.load import resolved_dump
from agentrl_cli.config.schema import Config
from agentrl_cli.errors import RunError
from agentrl_cli.files import RowWriter, clean_leftovers, read_rows, remove_dir, try_lock, write_atomic, write_rows

SCHEMA = 1
ROOT = Path("runs")
"""Where runs go that are given no name."""
DONE, STOPPED, FAILED = "done", "stopped", "failed"
"""First words of how a run ended, in events.log."""
PRUNED = "pruned"
"""First word of the event that `runs prune` leaves; it says nothing about how the run ended."""
HELD_OUT = "eval/held_out/avg@"
"""Begins the name of accuracy on held-out problems; the number of samples follows."""
_STEP_FOLDERS = ("trajectories", "eval")


class RunFolder:
    """An open run; use it as a context manager, or close it."""

    def __init__(self, path: Path, facts: dict[str, Any], *, read_only: bool) -> None:
        self.path = path
        self._facts = facts
        self._lock: int | None = None
        self._is_new = False
        self._metrics: RowWriter | None = None
        if not read_only:
            self._lock = _take_lock(path)
            for folder in (path, path / "checkpoints", *(path / name for name in _STEP_FOLDERS)):
                folder.mkdir(exist_ok=True)
                clean_leftovers(folder)
            self._metrics = RowWriter(path / "metrics.jsonl")

    @classmethod
    def create(cls, config: Config, *, kind: str, out: Path | None, digest: str) -> RunFolder:
        """Make a new run.

        Args:
            kind: The command, for the default name runs/KIND-MODEL-TIME.
            out: Folder to make; it may exist if it is empty.
            digest: Of the settings; a resumed run must have the same.

        Raises:
            RunError: there is something in the folder, or it can't be made.
        """
        path = _make_folder(out) if out else _make_default_folder(f"{kind}-{_short_name(config.model.path)}")
        facts = {
            "schema": SCHEMA,
            "kind": kind,
            "agentrl": __version__,
            "created": datetime.now(UTC).isoformat(timespec="microseconds"),
            "digest": digest,
            "model": {},
            "config": resolved_dump(config),
        }
        run = cls(path, facts, read_only=False)
        if (path / "config.json").exists():
            run.close()
            raise RunError(f"another process made the run {str(path)!r} at the same time", hint="give another --out")
        run._write_facts()
        run.log_event("created")
        run._is_new = True
        return run

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> RunFolder:
        """Open an existing run.

        Raises:
            RunError: it is no run, of another version, or another process writes it.
        """
        return cls(path, _read_facts(path), read_only=read_only)

    @property
    def digest(self) -> str:
        """Digest of the settings that the run began with."""
        return str(self._facts["digest"])

    @property
    def kind(self) -> str:
        """The command that made the run."""
        return str(self._facts["kind"])

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
        self._write_facts()

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row; what is not finite becomes the text "NaN", "Infinity" or "-Infinity"."""
        assert self._metrics is not None, "the run is open for reading"
        self._metrics.write({"step": step, **{name: encode_metric(value) for name, value in metrics.items()}})

    def metric_rows(self) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl; a torn last one is left out."""
        rows, _ = read_rows(self.path / "metrics.jsonl")
        return rows

    def has_step(self, step: int) -> bool:
        """Whether a row of this step is in metrics.jsonl."""
        return any(row["step"] == step for row in self.metric_rows())

    def log_event(self, text: str) -> None:
        """Append a line with the time to events.log."""
        assert self._lock is not None, "the run is open for reading"
        with (self.path / "events.log").open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {' '.join(text.split())}\n")

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint of a step lies or will lie."""
        return self.path / "checkpoints" / f"step-{step:06d}"

    def checkpoints(self) -> list[Path]:
        """All complete checkpoints, oldest first."""
        return step_entries(self.path / "checkpoints")

    def latest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint, or None."""
        return next(reversed(self.checkpoints()), None)

    def best_checkpoint(self) -> Path | None:
        """The complete checkpoint that did best on what was held out, or the newest where none was measured.

        Best is the highest `eval/held_out/avg@k` (rl) or the lowest `eval_loss` (sft); the later one of equals.
        """
        scores = {row["step"]: score for row in self.metric_rows() if (score := _score(row)) is not None}
        measured = [path for path in self.checkpoints() if step_of(path) in scores]
        if not measured:
            return self.latest_checkpoint()
        return max(measured, key=lambda path: (scores[step_of(path)], step_of(path)))

    def prune_checkpoints(self, keep: int) -> None:
        """Delete all complete checkpoints but the last `keep` and the best."""
        best = self.best_checkpoint()
        for folder in self.checkpoints()[:-keep]:
            if folder != best:
                remove_dir(folder)

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

    def _write_facts(self) -> None:
        assert self._lock is not None, "the run is open for reading"
        write_atomic(self.path / "config.json", json.dumps(self._facts, indent=1))

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._lock is not None:
            with suppress(OSError):  # on a full disk it must not hide what went wrong
                self.log_event(_ending(error))
        if error is not None and self._is_new and not self._holds_anything():
            remove_dir(self.path)
        self.close()

    def _holds_anything(self) -> bool:
        """Whether something has been computed; what failed before that would only be in the way of the next try."""
        folders = (self.path / "checkpoints", *(self.path / name for name in _STEP_FOLDERS))
        return bool(self.metric_rows()) or any(any(folder.iterdir()) for folder in folders)


def _ending(error: BaseException | None) -> str:
    """Return how a run ended, as events.log says it."""
    if error is None:
        return DONE
    if isinstance(error, KeyboardInterrupt):
        return f"{STOPPED} by Ctrl-C"
    if isinstance(error, SystemExit):
        return f"{STOPPED} by SIGTERM"
    return f"{FAILED}: {type(error).__name__}: {error}"


def how_it_ended(path: Path) -> str:
    """Return what events.log last says of a run's end: beginning with `DONE`, `STOPPED` or `FAILED`; or nothing.

    A run that goes on, or that was killed, has left no word of it.
    """
    file = path / "events.log"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    events = [text for line in lines if not (text := line.partition(" ")[2]).startswith(PRUNED)]
    return events[-1] if events and events[-1].startswith((DONE, STOPPED, FAILED)) else ""


def find_run_folder(name: str, root: Path = ROOT) -> Path:
    """Return the folder that a path, or the name of a run under the root, means; nothing is looked up in it."""
    path = Path(name)
    return root / name if not path.exists() and (root / name).is_dir() else path


def step_of(path: Path) -> int:
    """Return the number in a name like step-000010 or step-000010.jsonl."""
    return int(path.name.split(".")[0].removeprefix("step-"))


def step_entries(folder: Path, suffix: str = "") -> list[Path]:
    """Return what is named step-N with this suffix, in order of steps; copies under other names do not count."""
    pattern = re.compile(rf"step-\d+{re.escape(suffix)}")
    return sorted((path for path in folder.glob("step-*") if pattern.fullmatch(path.name)), key=step_of)


def newest_run(root: Path = ROOT) -> Path | None:
    """Return the run that was created last under a folder, or None."""
    return next(iter(runs_by_age(root)), None)


def newest_trained_run(root: Path = ROOT) -> Path | None:
    """Return the newest run that has a checkpoint; the newest of all where none has, or None."""
    runs = runs_by_age(root)
    return next((run for run in runs if step_entries(run / "checkpoints")), next(iter(runs), None))


def runs_by_age(root: Path = ROOT) -> list[Path]:
    """Return the runs under a folder, the one that was created last first."""
    runs = [(created, path) for path in root.glob("*") if (created := _created(path))]
    return [path for _, path in sorted(runs, reverse=True)]


def _score(row: Mapping[str, Any]) -> float | None:
    """Return how good a step was on what was held out (more is better), or None if it was not measured."""
    for name, value in row.items():
        if name.startswith(HELD_OUT) and isinstance(value, int | float):
            return float(value)
    loss = row.get("eval_loss")
    return -loss if isinstance(loss, int | float) else None


def encode_metric(value: float) -> float | str:
    """Return a number as JSON can hold it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _created(path: Path) -> str:
    """Return when a run was created, or an empty text if the folder is no run that can be read."""
    if not (path / "metrics.jsonl").exists():
        return ""
    try:
        return str(_read_facts(path)["created"])
    except RunError:
        return ""


def _read_facts(path: Path) -> dict[str, Any]:
    """Read config.json, which models have too, with other content."""
    try:
        facts = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = "no such folder" if not path.is_dir() else f"no readable config.json ({error})"
        raise RunError(f"{str(path)!r} is not a run: {reason}") from error
    if not isinstance(facts, dict) or not {"schema", "agentrl", "digest", "config"} <= set(facts):
        raise RunError(f"{str(path)!r} is not a run: its config.json was not written by agentrl")
    if facts["schema"] != SCHEMA:
        raise RunError(
            f"{str(path)!r} was written by agentrl {facts['agentrl']} (schema {facts['schema']!r}, this one reads "
            f"{SCHEMA})",
            hint="use that version for it",
        )
    return facts


def _make_folder(path: Path) -> Path:
    """Make a folder that is named by the user, or take an empty one."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(
            f"{str(path)!r} exists and is not empty; a run is never overwritten",
            hint=f"give another --out, or go on with it: --resume {path}",
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"can't make the run {str(path)!r}: {error.strerror}") from error
    return path


def _make_default_folder(name: str) -> Path:
    """Make runs/NAME-TIME, with a number behind it where that is taken; safe against other processes."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        path = ROOT / f"{name}-{stamp}{suffix}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise RunError(f"{str(ROOT)!r} has 999 runs of this second", hint="give --out")


def _short_name(model: str) -> str:
    """Return the last part of a model's path or name, as a file name can hold it."""
    last = model.rstrip("/").replace(":", "/").rpartition("/")[2]
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in last)[:40] or "model"


def _take_lock(path: Path) -> int:
    """Take the run's lock; a process that was killed has let go of it."""
    descriptor = os.open(path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    if not try_lock(descriptor):
        os.close(descriptor)
        raise RunError(f"another process writes the run {str(path)!r}", hint="wait for it, or stop it")
    return descriptor
