"""The terminal: results to stdout, everything else to stderr. The only module that imports rich.

Colour and live lines appear on a terminal alone and never carry meaning; NO_COLOR is honoured (by rich).
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from agentrl_cli.errors import AgentRLError

PLAIN_WIDTH = 80
COLUMNS = {
    "accuracy": "acc",
    "reward/mean": "reward",
    "entropy": "entropy",
    "tools/call_frequency": "calls",
    "completions/mean_length": "tokens",
    "loss": "loss",
    "eval/loss": "eval_loss",
    "learning_rate": "lr",
    "time/step_s": "s",
}
"""Metrics that a step's line shows, in order of importance, and their short names."""


def print_error(error: AgentRLError, *, debug: bool = False) -> None:
    """Write `error:` and, after a blank line, `hint:` to stderr; with `debug` the traceback first."""
    console = _stderr()
    if debug:
        console.file.write("".join(traceback.format_exception(error)))
    console.print(f"[bold red]error:[/] {escape(error.message)}", soft_wrap=True, highlight=False)
    if error.hint:
        console.print(f"\n[bold cyan]hint:[/] {escape(error.hint)}", soft_wrap=True, highlight=False)


def print_fault(error: Exception, *, debug: bool = False) -> None:
    """Report an exception that nobody foresaw: a fault of ours."""
    reason = " ".join(str(error).split())[:500]
    hint = "" if debug else "this is a fault in agentrl; --debug shows the traceback to report it with"
    wrapped = AgentRLError(f"unexpected {type(error).__name__}: {reason}", hint=hint).with_traceback(
        error.__traceback__
    )
    wrapped.__cause__ = error
    print_error(wrapped, debug=debug)


def print_json(value: Mapping[str, Any]) -> None:
    """Write one JSON object on one line to stdout."""
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_text(text: str) -> None:
    """Write a result to stdout as it is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_result(value: Mapping[str, Any]) -> None:
    """Write a result for people to stdout: a line per value, nested names joined by dots."""
    rows = list(_flatten(value))
    width = max((len(name) for name, _ in rows), default=0)
    print_text("\n".join(f"{name:<{width}}  {shown}" for name, shown in rows))


def _flatten(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """List nested values with their dotted names, as text."""
    rows: list[tuple[str, str]] = []
    for name, item in value.items():
        if isinstance(item, Mapping):
            rows += _flatten(item, prefix=f"{prefix}{name}.")
        else:
            rows.append((prefix + name, f"{item:.4g}" if isinstance(item, float) else str(item)))
    return rows


class ConsoleReporter:
    """Shows progress on stderr: a bar under the newest lines on a terminal, plain lines in a pipe."""

    def __init__(self) -> None:
        self._console = _stderr()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ConsoleReporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def info(self, text: str) -> None:
        """Write a line."""
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def warn(self, text: str) -> None:
        """Write a line that starts with `warning:`."""
        self._console.print(f"[bold yellow]warning:[/] {escape(text)}", soft_wrap=True, highlight=False)

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Write the step's line and move the bar."""
        self.info(step_line(step, total, metrics, width=self._console.width))
        if self._console.is_terminal:
            progress, task = self._bar(total)
            progress.update(task, completed=step, total=total)

    def _bar(self, total: int) -> tuple[Progress, TaskID]:
        """Return the bar, started by the first step."""
        if self._progress is None or self._task is None:
            columns = (TextColumn("step"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.start()
            self._task = self._progress.add_task("step", total=total)
        return self._progress, self._task


def step_line(step: int, total: int, metrics: Mapping[str, float], *, width: int) -> str:
    """Return what fits into `width` of a step's metrics, the most important first."""
    digits = len(str(total))
    line = f"step {step:>{digits}}/{total}"
    for name, label in COLUMNS.items():
        part = f"  {label} {metrics[name]:.3g}" if name in metrics else ""
        if len(line) + len(part) > width:
            break
        line += part
    return line


def _stderr() -> Console:
    """Return a console on stderr; outside of a terminal lines have 80 columns."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else PLAIN_WIDTH)
