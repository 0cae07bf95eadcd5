"""Reads the metrics of a run: one JSON object a line, `{"step": n, metric: value, …}`.

Values that are not finite stand as the texts "NaN", "Infinity" and "-Infinity", for which JSON has no
number. They are kept apart: no median is taken over them, and one rule looks for nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl_cli.errors import DataError, RunError
from agentrl_cli.files import read_rows
from agentrl_cli.runs import RunFolder

METRICS_FILE = "metrics.jsonl"
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, slots=True)
class NonFinite:
    """A value that is not a finite number."""

    step: int
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class MetricLog:
    """Metrics by name and step, and the settings that they were made under where they are known."""

    source: str
    series: Mapping[str, Mapping[int, float]]
    """Finite values by step, in order of steps."""
    steps: Sequence[int]
    """Every step that was logged, in order."""
    non_finite: Sequence[NonFinite] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Resolved settings by section; empty where only a metrics file was given."""
    notes: Sequence[str] = ()
    """What was odd about the file."""

    def setting(self, name: str) -> Any:
        """Return a setting by its full name, or None if settings are not known."""
        value: Any = self.settings
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return None
            value = value[part]
        return value


def read_metric_log(path: Path) -> MetricLog:
    """Read a run folder, or a metrics file alone.

    Raises:
        RunError: there is nothing to read there.
        DataError: a line is no JSON object or has no step.
    """
    file = path / METRICS_FILE if path.is_dir() else path
    if not file.is_file():
        raise RunError(
            f"{str(path)!r} has no {METRICS_FILE}", hint="give a run folder of `agentrl rl`, or a metrics file"
        )
    rows, is_torn = read_rows(file)
    notes = ["the last line was cut off in the middle of writing and is left out"] if is_torn else []
    if not rows:
        raise RunError(f"{str(file)!r} holds no step yet", hint="wait for the run's first step")
    return metric_log(rows, source=str(path), settings=_settings(path, notes), notes=notes, where=f" of {str(file)!r}")


def metric_log(
    rows: Sequence[Mapping[str, Any]],
    *,
    source: str,
    settings: Mapping[str, Any],
    notes: Sequence[str] = (),
    where: str = "",
) -> MetricLog:
    """Return the log that rows `{step, metric: value, …}` make; a step that stands twice counts as it stands last.

    Args:
        where: Goes into errors behind the number of the row.

    Raises:
        DataError: a row has no step.
    """
    by_name: dict[str, dict[int, float]] = {}
    non_finite: list[NonFinite] = []
    ignored: set[str] = set()
    for number, row in enumerate(rows, start=1):
        step = _step(row, f"row {number}{where}")
        for name, raw in row.items():
            value = decode_metric(raw)
            if name == "step":
                continue
            if value is None:
                ignored.add(name)
            elif math.isfinite(value):
                by_name.setdefault(name, {})[step] = value
            else:
                non_finite.append(NonFinite(step, name, value))
    left_out = [f"not numbers, left out: {', '.join(sorted(ignored))}"] if ignored else []
    return MetricLog(
        source=source,
        series={name: dict(sorted(values.items())) for name, values in by_name.items()},
        steps=sorted({row["step"] for row in rows}),
        non_finite=non_finite,
        settings=settings,
        notes=[*notes, *left_out],
    )


def decode_metric(value: object) -> float | None:
    """Return a stored metric as a float, or None if it is none."""
    if isinstance(value, str):
        return _NON_FINITE.get(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return None


def _step(row: Mapping[str, Any], where: str) -> int:
    step = row.get("step")
    if not isinstance(step, int) or isinstance(step, bool):
        raise DataError(f"{where} has no whole number as 'step', got {step!r}")
    return step


def _settings(path: Path, notes: list[str]) -> Mapping[str, Any]:
    """Return the run's settings; without readable ones a diagnosis can still be made, with fewer patches."""
    if not (path / "config.json").is_file():
        return {}
    try:
        return RunFolder.open(path, read_only=True).settings
    except RunError as error:
        notes.append(f"the settings can't be read, so patches may be missing: {error.message}")
        return {}
