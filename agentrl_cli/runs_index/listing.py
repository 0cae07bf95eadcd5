"""`agentrl runs list`: every run of a folder, how far it came and what it takes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentrl_cli.diagnosis.series import MetricLog, read_metric_log
from agentrl_cli.errors import AgentRLError, RunError
from agentrl_cli.runs import DONE, FAILED, STOPPED, how_it_ended
from agentrl_cli.runs_index.facts import is_running, looks_like_run, read_facts, show_size, size_of

_HEADER = ("name", "kind", "model", "state", "steps", "acc", "eval", "size", "age")


class State(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of the list; of a damaged one only name, state, reason and size are known."""

    name: str
    path: Path
    state: State
    reason: str
    """Why it stopped or failed, or what is damaged, else empty."""
    size_bytes: int
    kind: str = ""
    model: str = ""
    created: str = ""
    """ISO 8601."""
    steps: int = 0
    """The last step in metrics.jsonl."""
    planned: int | None = None
    """Steps that the settings ask for; None for sft."""
    accuracy: float | None = None
    """Of the last training step that has one."""
    eval: Mapping[str, float] = field(default_factory=dict)
    """The last value of each held-out score."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON can hold them."""
        names = ("name", "state", "reason", "size_bytes", "kind", "model", "created", "steps", "planned", "accuracy")
        return {name: getattr(self, name) for name in names} | {"path": str(self.path), "eval": dict(self.eval)}


def list_runs(root: Path) -> list[RunSummary]:
    """Return the runs right under a folder, newest first, damaged ones last.

    Raises:
        RunError: there is no such folder.
    """
    if not root.is_dir():
        raise RunError(f"no folder {str(root)!r}", hint="give the folder that holds the runs: --root FOLDER")
    folders = [path for path in sorted(root.iterdir()) if not path.name.startswith(".") and looks_like_run(path)]
    return sorted((summarise_run(path) for path in folders), key=lambda run: run.created, reverse=True)


def find_run(root: Path, name: str) -> Path:
    """Return the run that a path, or a name under the root, means.

    Raises:
        RunError: it means none; the hint names the nearest.
    """
    path = next((path for path in (Path(name), root / name) if looks_like_run(path)), None)
    if path is not None:
        return path if path.name not in ("", "..") else path.resolve()
    known = [entry.name for entry in sorted(root.iterdir()) if looks_like_run(entry)] if root.is_dir() else []
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "agentrl runs list shows what there is"
    raise RunError(f"{name!r} is no run, nor is there one of that name in {str(root)!r}", hint=hint)


def summarise_run(path: Path) -> RunSummary:
    """Return how one run stands; what can't be read makes it a damaged one, not an error."""
    size = size_of(path)
    try:
        facts = read_facts(path)
        log = _metrics(path)
        state, reason = _state(path)
    except (AgentRLError, OSError, UnicodeDecodeError) as error:
        return RunSummary(path.name, path, State.DAMAGED, str(error), size)
    return RunSummary(
        name=path.name,
        path=path,
        state=state,
        reason=reason,
        size_bytes=size,
        kind=facts.kind,
        model=facts.model_path,
        created=facts.created.isoformat(),
        steps=max(log.steps, default=0),
        planned=facts.planned,
        accuracy=_last(log, "accuracy"),
        eval={name: value for name in _eval_names(log) if (value := _last(log, name)) is not None},
    )


def render_runs(runs: Sequence[RunSummary], *, now: datetime) -> str:
    """Return the list as a table; reasons stand below it."""
    if not runs:
        return "no runs"
    rows = [_HEADER, *(_cells(run, now) for run in runs)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    reasons = [f"{run.name}: {run.state}: {run.reason}" for run in runs if run.reason]
    return "\n".join([*lines, *([""] if reasons else []), *reasons])


def _metrics(path: Path) -> MetricLog:
    try:
        return read_metric_log(path)
    except RunError:
        return MetricLog(source=str(path), series={}, steps=[])


def _state(path: Path) -> tuple[State, str]:
    """Return the state by lock and events: what was killed left no event of its end."""
    if is_running(path):
        return State.RUNNING, ""
    end = how_it_ended(path)
    if end == DONE:
        return State.DONE, ""
    if end.startswith(FAILED):
        return State.FAILED, end.removeprefix(f"{FAILED}: ")
    return State.STOPPED, end.removeprefix(f"{STOPPED} ") or "killed, or the machine went down"


def _eval_names(log: MetricLog) -> list[str]:
    return sorted(name for name in log.series if name == "eval_loss" or (name.startswith("eval/") and "/avg@" in name))


def _last(log: MetricLog, name: str) -> float | None:
    values = log.series.get(name)
    return values[max(values)] if values else None


def _cells(run: RunSummary, now: datetime) -> tuple[str, ...]:
    if run.state is State.DAMAGED:
        return (run.name, "", "", run.state, "", "", "", show_size(run.size_bytes), "")
    score = next(iter(run.eval.values()), None)
    return (
        run.name,
        run.kind,
        run.model.rstrip("/").replace(":", "/").rpartition("/")[2],
        run.state,
        str(run.steps) if run.planned is None else f"{run.steps}/{run.planned}",
        "" if run.accuracy is None else f"{run.accuracy:.3f}",
        "" if score is None else f"{score:.3f}",
        show_size(run.size_bytes),
        _age(now.timestamp() - datetime.fromisoformat(run.created).timestamp()),
    )


def _age(seconds: float) -> str:
    """Return an age in its largest whole unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{max(0, int(seconds))}s"
