"""`agentrl runs prune`: gives disk space back without touching what a run needs to go on.

Two things are never removed: anything of a run that a process is writing, and the newest checkpoint of
a run that stays. What another run starts from (its `model.path`) stays as well. Each checkpoint, step of
trajectories or run goes as a whole: a kill on the way leaves none of them half there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from agentrl_cli.errors import ConfigError, RunError
from agentrl_cli.files import clean_leftovers, remove_dir, try_lock
from agentrl_cli.runs import PRUNED, RunFolder, step_entries, step_of
from agentrl_cli.runs_index.facts import is_running, show_size, size_of
from agentrl_cli.runs_index.listing import RunSummary, State, find_run, list_runs, summarise_run

WHAT = ("checkpoints", "trajectories", "runs")
_DAY_S = 86400


@dataclass(frozen=True, slots=True)
class PruneItem:
    """Something that goes as a whole."""

    run: Path
    name: str
    """Inside the run; empty for the run itself."""
    paths: tuple[Path, ...]
    """In the order in which they go."""
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """What goes (or went), and what was asked for but stays, with the reason."""

    what: str
    items: tuple[PruneItem, ...]
    skipped: tuple[tuple[str, str], ...]

    @property
    def size_bytes(self) -> int:
        """What the items take on disk."""
        return sum(item.size_bytes for item in self.items)

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        """Return the result of the command."""
        return {
            "what": self.what,
            "dry_run": dry_run,
            "items": [{"run": str(item.run), "name": item.name, "size_bytes": item.size_bytes} for item in self.items],
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped],
            "size_bytes": self.size_bytes,
        }

    def to_text(self, *, verb: str) -> str:
        """Return a line for each run and one for the total."""
        lines = []
        for run, group in groupby(self.items, key=lambda item: item.run):
            items = list(group)
            names = [item.name for item in items if item.name]
            span = f"  {', '.join(names) if len(names) <= 3 else f'{names[0]} to {names[-1]} ({len(names)})'}"
            size = show_size(sum(item.size_bytes for item in items))
            lines.append(f"{verb} {run}{span if names else ''}  {size}")
        lines += [f"stays: {name}: {reason}" for name, reason in self.skipped]
        return "\n".join([*lines, f"{verb} {len(self.items)} {self.what}, {show_size(self.size_bytes)} in all"])


def plan_prune(
    root: Path, names: Sequence[str], *, what: str, keep: int | None, older_than_days: float | None, now: datetime
) -> PrunePlan:
    """Choose what goes; an item must meet every condition that is given.

    Args:
        names: Runs, by path or by name under `root`; all under `root` if empty. Damaged ones go only by name.
        what: `checkpoints`, `trajectories` or `runs`.
        keep: Newest ones to keep: checkpoints of each run beside its best (1 unless given, and no fewer), steps
            of trajectories of each run (0 unless given), or runs.
        older_than_days: Only runs whose last metrics were written at least so long ago.

    Raises:
        ConfigError: the conditions make no sense; RunError: a name is no run.
    """
    _check(names, what=what, keep=keep, older_than_days=older_than_days)
    everything = list_runs(root) if root.is_dir() or not names else []
    chosen = [summarise_run(find_run(root, name)) for name in dict.fromkeys(names)] or everything
    if what == "runs" and keep is not None:
        chosen = sorted(chosen, key=lambda run: run.created, reverse=True)[keep:]
    skipped = []
    items: list[PruneItem] = []
    for run in chosen:
        if older_than_days is not None and now.timestamp() - _last_written(run.path) < older_than_days * _DAY_S:
            continue
        reason = _reason_to_stay(run, is_named=bool(names), what=what)
        if reason:
            skipped.append((str(run.path), reason))
        else:
            items += _items(run.path, what=what, keep=keep)
    return _without_needed(PrunePlan(what, tuple(items), tuple(skipped)), everything)


def apply_prune(plan: PrunePlan) -> PrunePlan:
    """Remove what was planned and return what went; a run that a process has begun to write meanwhile stays."""
    removed: list[PruneItem] = []
    skipped = list(plan.skipped)
    for run, group in groupby(plan.items, key=lambda item: item.run):
        items = list(group)
        try:
            removed += _remove_run(items[0]) if plan.what == "runs" else _remove_parts(run, items)
        except RunError as error:
            skipped.append((str(run), error.message))
    return PrunePlan(plan.what, tuple(removed), tuple(skipped))


def _check(names: Sequence[str], *, what: str, keep: int | None, older_than_days: float | None) -> None:
    if what not in WHAT:
        raise ConfigError(f"--what {what!r} is unknown", hint=f"one of {', '.join(WHAT)}")
    if what == "checkpoints" and keep == 0:
        raise ConfigError(
            "--keep 0 would take the newest checkpoint of runs that stay", hint="give --keep 1, or --what runs"
        )
    if what == "runs" and not names and keep is None and older_than_days is None:
        raise ConfigError("nothing says which runs are to go", hint="name them, or give --keep N or --older-than DAYS")


def _last_written(path: Path) -> float:
    file = path / "metrics.jsonl"
    return (file if file.exists() else path).stat().st_mtime


def _reason_to_stay(run: RunSummary, *, is_named: bool, what: str) -> str:
    if is_running(run.path):
        return "a process is writing it"
    if what == "runs" and run.path.is_symlink():
        return "it is a link to another folder"
    if run.state is not State.DAMAGED:
        return ""
    if what != "runs":
        return f"it is damaged: {run.reason}"
    return "" if is_named else "it is damaged; name it to remove it"


def _items(run: Path, *, what: str, keep: int | None) -> list[PruneItem]:
    if what == "runs":
        return [PruneItem(run, "", (run,), size_of(run))]
    if what == "checkpoints":
        num_kept = keep or 1
        best = RunFolder.open(run, read_only=True).best_checkpoint()
        parts: list[tuple[Path, ...]] = [(folder,) for folder in step_entries(run / what)]
    else:
        num_kept, best = keep or 0, None
        parts = _trajectory_files(run / what)
    return [
        PruneItem(run, f"{what}/{paths[-1].name.split('.')[0]}", paths, sum(map(size_of, paths)))
        for paths in parts[: max(0, len(parts) - num_kept)]
        if best not in paths
    ]


def _trajectory_files(folder: Path) -> list[tuple[Path, ...]]:
    """Return the files of each step: the sidecar goes first, since rows can be read without it."""
    files = [*step_entries(folder, ".safetensors"), *step_entries(folder, ".jsonl")]
    return [tuple(group) for _, group in groupby(sorted(files, key=step_of), key=step_of)]


def _without_needed(plan: PrunePlan, runs: Sequence[RunSummary]) -> PrunePlan:
    """Let stay what another run, which stays itself, starts from."""
    going = {item.run.resolve() for item in plan.items if not item.name}
    needed = {
        Path(run.model).resolve(): run.name
        for run in runs
        if run.model and Path(run.model).exists() and run.path.resolve() not in going
    }
    items, skipped = [], list(plan.skipped)
    for item in plan.items:
        targets = [path.resolve() for path in item.paths]
        user = next((name for path, name in needed.items() if any(path.is_relative_to(t) for t in targets)), None)
        if user is None:
            items.append(item)
        else:
            skipped.append((str(item.run / item.name), f"the run {user} starts from it"))
    return PrunePlan(plan.what, tuple(items), tuple(skipped))


def _remove_parts(path: Path, items: Sequence[PruneItem]) -> list[PruneItem]:
    """Remove parts of a run under its lock; newest and best checkpoint stay even if they have changed meanwhile."""
    run = RunFolder.open(path)
    try:
        stay = {run.latest_checkpoint(), run.best_checkpoint()}
        removed = [item for item in items if stay.isdisjoint(item.paths)]
        for item in removed:
            for part in item.paths:
                _remove(part)
        if removed:
            run.log_event(f"{PRUNED} {len(removed)} {removed[0].name.partition('/')[0]}")
    finally:
        run.close()
    return removed


def _remove_run(item: PruneItem) -> list[PruneItem]:
    with _locked(item.run):
        remove_dir(item.run)
    clean_leftovers(item.run.parent, of=item.run.name)
    return [item]


def _remove(path: Path) -> None:
    if path.is_dir():
        remove_dir(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a run that may be damaged.

    Raises:
        RunError: another process has it.
    """
    descriptor = os.open(path / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        if not try_lock(descriptor):
            raise RunError("a process is writing it")
        yield
    finally:
        os.close(descriptor)
