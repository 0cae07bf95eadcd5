"""The table of a job's steps: which columns it has, how values are written, and how long it will take.

Pure text of at most 80 columns; `agentrl_cli.console` puts it on the terminal.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

HEADER_EVERY = 20
"""Lines of steps between two headers."""
_ETA_WIDTH = 8
"""Of the last column, with the space before it."""
_RECENT = 10
"""Steps that the remaining time is estimated from."""


@dataclass(frozen=True, slots=True)
class Column:
    """A metric of the table, or the sum of several."""

    label: str
    names: Sequence[str]
    width: int
    write: Callable[[float], str]


def _three_digits(value: float) -> str:
    return f"{value:.3g}"


def _fixed(value: float) -> str:
    return f"{value:.3f}"


def _count(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


COLUMNS = (
    Column("outcome", ["reward/outcome"], 7, _fixed),
    Column("acc", ["accuracy"], 5, _fixed),
    Column("entropy", ["entropy"], 7, _three_digits),
    Column("clip", ["clip_ratio/low_mean", "clip_ratio/high_mean"], 7, _three_digits),
    Column("calls", ["tools/call_frequency"], 5, _count),
    Column("len", ["completions/mean_length"], 5, _count),
    Column("tok/s", ["perf/sample_tokens_per_s"], 6, _count),
    Column("loss", ["loss"], 8, _three_digits),
    Column("eval loss", ["eval_loss"], 9, _three_digits),
    Column("lr", ["learning_rate"], 8, _three_digits),
    Column("s", ["time/step_s"], 5, _count),
)
"""All columns, the most important first; a table has those that its first step has values for and that fit."""


class StepTable:
    """Writes lines of equal columns; the first step decides which."""

    def __init__(self, *, width: int) -> None:
        self._width = width
        self._columns: list[Column] | None = None
        self._num_lines = 0

    def lines(self, step: int, total: int, metrics: Mapping[str, float], *, eta_s: float | None) -> list[str]:
        """Return the line of a step, with the header above it where one is due."""
        counter = f"{step}/{total}"
        lead = max(len("step"), 2 * len(str(total)) + 1)
        if self._columns is None:
            self._columns = self._choose(metrics, room=self._width - lead - _ETA_WIDTH)
        lines = []
        if self._num_lines % HEADER_EVERY == 0:
            labels = [f"{column.label:>{column.width}}" for column in self._columns]
            lines.append(" ".join([f"{'step':>{lead}}", *labels, f"{'eta':>{_ETA_WIDTH - 1}}"]))
        values = [f"{_value(column, metrics):>{column.width}}" for column in self._columns]
        lines.append(" ".join([f"{counter:>{lead}}", *values, f"{write_seconds(eta_s):>{_ETA_WIDTH - 1}}"]))
        self._num_lines += 1
        return lines

    def _choose(self, metrics: Mapping[str, float], *, room: int) -> list[Column]:
        chosen = []
        for column in COLUMNS:
            if any(name in metrics for name in column.names) and column.width < room:
                chosen.append(column)
                room -= column.width + 1
        return chosen


class Clock:
    """Estimates the time that is left from how long the last steps took, what lies between them included."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._per_step_s: list[float] = []

    def eta_s(self, step: int, total: int, *, now_s: float, step_s: float | None) -> float | None:
        """Note that `step` of `total` is done and return the seconds that are left, or None if that is unknown.

        Args:
            now_s: Of any clock that only goes forward.
            step_s: What the step took by its own account; used for the first, whose begin nobody saw.
        """
        if self._last is not None:
            last_step, last_s = self._last
            self._per_step_s.append((now_s - last_s) / max(1, step - last_step))
        elif step_s is not None:
            self._per_step_s.append(step_s)
        self._last = (step, now_s)
        if not self._per_step_s:
            return None
        return (total - step) * statistics.median(self._per_step_s[-_RECENT:])


def write_seconds(seconds: float | None) -> str:
    """Write a duration in at most six characters: 42s, 3m05s, 2h07m, 3d04h."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    for unit, size, below, below_size in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // below_size:02d}{below}"
    return f"{whole}s"


def _value(column: Column, metrics: Mapping[str, float]) -> str:
    found = [metrics[name] for name in column.names if name in metrics]
    return column.write(sum(found)) if found else "-"
