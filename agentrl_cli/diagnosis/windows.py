"""Robust statistics that all rules share: a baseline, windows, a trend.

Baseline: the median of steps 3 to 12 of the run itself, since absolute levels do not carry over between
models. Windows: the last five stretches of 10 steps, counted back from the last step, that do not
overlap; each stands for its median. A bound is broken if at least 3 of them break it, so that neither a
bad moment nor a short excursion counts. Compared with the baseline, windows begin after it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentrl_cli.diagnosis.series import MetricLog

BASELINE_STEPS = range(3, 13)
WINDOW_STEPS = 10
NUM_WINDOWS = 5
NUM_BROKEN = 3
_MIN_BASELINE_VALUES = 5
_MIN_WINDOW_VALUES = 3


class NoDataError(Exception):
    """A rule can't be judged; the text says why."""


@dataclass(frozen=True, slots=True)
class Window:
    """The median of a metric over a stretch of steps, both ends included."""

    first: int
    last: int
    value: float


@dataclass(frozen=True, slots=True)
class Broken:
    """How many of the judged windows break a bound."""

    count: int
    of: int

    @property
    def fires(self) -> bool:
        """Enough of them."""
        return self.count >= NUM_BROKEN

    @property
    def is_all(self) -> bool:
        """Every one of them."""
        return self.count == self.of


def baseline(log: MetricLog, name: str) -> float:
    """Return the run's own level of a metric.

    Raises:
        NoDataError: too few of the steps have it.
    """
    values = [value for step, value in _series(log, name).items() if step in BASELINE_STEPS]
    if len(values) < _MIN_BASELINE_VALUES:
        raise NoDataError(f"no baseline: {name!r} has {len(values)} values in steps 3-12, needs {_MIN_BASELINE_VALUES}")
    return statistics.median(values)


def windows(log: MetricLog, name: str, *, after_baseline: bool) -> list[Window]:
    """Return the last windows of a metric, oldest first.

    Raises:
        NoDataError: fewer than three, so that no bound could be broken.
    """
    found = windows_of(_series(log, name), last=log.steps[-1], first=_first(log, after_baseline))
    if len(found) < NUM_BROKEN:
        needed = _first(log, after_baseline) - 1 + NUM_BROKEN * WINDOW_STEPS
        raise NoDataError(
            f"too short: {name!r} fills {len(found)} windows of {WINDOW_STEPS} steps, needs {NUM_BROKEN} "
            f"(step {needed} at least, the run is at {log.steps[-1]})"
        )
    return found


def windows_of(values: Mapping[int, float], *, last: int, first: int) -> list[Window]:
    """Cut a series into at most five whole windows that end at step `last` and begin at `first` or later."""
    found = []
    for number in range(NUM_WINDOWS):
        end = last - number * WINDOW_STEPS
        begin = end - WINDOW_STEPS + 1
        inside = [value for step, value in values.items() if begin <= step <= end]
        if begin >= first and len(inside) >= _MIN_WINDOW_VALUES:
            found.append(Window(begin, end, statistics.median(inside)))
    return found[::-1]


def count_broken(found: Sequence[Window], test: Callable[[float], bool]) -> Broken:
    """Count the windows whose median breaks a bound."""
    return Broken(sum(test(window.value) for window in found), len(found))


def latest(log: MetricLog, name: str) -> float:
    """Return the median of a metric over the last 10 steps.

    Raises:
        NoDataError: too few of them have it.
    """
    begin = log.steps[-1] - WINDOW_STEPS + 1
    values = [value for step, value in _series(log, name).items() if step >= begin]
    if len(values) < _MIN_WINDOW_VALUES:
        raise NoDataError(f"{name!r} has {len(values)} values in the last {WINDOW_STEPS} steps")
    return statistics.median(values)


def accuracy_name(log: MetricLog) -> str:
    """Return the unshaped measure of success that the log has: a bonus would raise shaped reward.

    Raises:
        NoDataError: it has none.
    """
    for name in ("accuracy", "reward/outcome"):
        if name in log.series:
            return name
    raise NoDataError("neither 'accuracy' nor 'reward/outcome' is in the log")


def latest_accuracy(log: MetricLog) -> float:
    """Return the share of right answers over the last 10 steps; outcomes of +1 and -1 are turned into it."""
    name = accuracy_name(log)
    value = latest(log, name)
    return value if name == "accuracy" else (value + 1) / 2


def rise(log: MetricLog, name: str) -> float:
    """Return by how much a metric rose over the windows' steps: Theil-Sen slope times their number."""
    begin = log.steps[-1] - NUM_WINDOWS * WINDOW_STEPS + 1
    points = [(step, value) for step, value in _series(log, name).items() if step >= begin]
    slopes = [(y2 - y1) / (x2 - x1) for i, (x1, y1) in enumerate(points) for x2, y2 in points[i + 1 :]]
    if not slopes:
        raise NoDataError(f"{name!r} has {len(points)} values in the last {NUM_WINDOWS * WINDOW_STEPS} steps")
    return statistics.median(slopes) * (points[-1][0] - points[0][0])


def success_rise(log: MetricLog) -> float:
    """Return by how much the share of right answers rose over the windows' steps."""
    name = accuracy_name(log)
    return rise(log, name) if name == "accuracy" else rise(log, name) / 2


def _series(log: MetricLog, name: str) -> Mapping[int, float]:
    if name not in log.series:
        raise NoDataError(f"metric {name!r} is missing")
    return log.series[name]


def _first(log: MetricLog, after_baseline: bool) -> int:
    return BASELINE_STEPS[-1] + 1 if after_baseline else log.steps[0]
