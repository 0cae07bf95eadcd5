"""Progress on stderr: the table of steps, and on a terminal a bar and the lights below it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from agentrl_cli.console import stderr
from agentrl_cli.diagnosis.lights import Light, LightState, lights
from agentrl_cli.progress import Clock, StepTable, write_seconds

_MARKS = {
    LightState.OK: ("green", "+"),
    LightState.INFO: ("cyan", "i"),
    LightState.WARN: ("bold yellow", "!"),
    LightState.CRITICAL: ("bold red", "X"),
    LightState.NO_DATA: ("dim", "."),
}
"""Colour and sign of a light; the sign alone says everything."""


class ConsoleReporter:
    """Shows progress on stderr: lines of a table, and on a terminal a bar and the rules' lights below them."""

    def __init__(self) -> None:
        self._console = stderr()
        self._table = StepTable(width=self._console.width)
        self._clock = Clock()
        self._progress: Progress | None = None
        self._live: Live | None = None
        self._rows: list[Mapping[str, Any]] | None = None
        self._settings: Mapping[str, Any] = {}
        self._lights: list[Light] = []

    def __enter__(self) -> ConsoleReporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def info(self, text: str) -> None:
        """Write a line."""
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def warn(self, text: str) -> None:
        """Write a line that starts with `warning:`."""
        self._console.print(f"[bold yellow]warning:[/] {escape(text)}", soft_wrap=True, highlight=False)

    def begin_rl(self, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
        """Watch the steps that follow with the rules of `agentrl diagnose`."""
        self._rows, self._settings = list(rows), settings

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Write the step's line, say which lights changed, and move the bar."""
        eta_s = self._clock.eta_s(step, total, now_s=time.monotonic(), step_s=metrics.get("time/step_s"))
        for line in self._table.lines(step, total, metrics, eta_s=eta_s):
            self.info(line)
        if self._rows is not None:
            self._rows.append({"step": step, **metrics})
            self._look(step, lights(self._rows, self._settings))
        if self._console.is_terminal:
            self._show(step, total, eta_s)

    def _look(self, step: int, now: list[Light]) -> None:
        """Say which rules have begun to fire, or ceased to."""
        before = {light.rule: light.state for light in self._lights}
        for light in now:
            is_bad = light.state in (LightState.WARN, LightState.CRITICAL)
            was = before.get(light.rule, LightState.NO_DATA)
            if light.state is not was and is_bad:
                self.warn(f"step {step}: {light.name} ({light.state}): {light.text}")
            elif was in (LightState.WARN, LightState.CRITICAL) and not is_bad:
                self.info(f"step {step}: {light.name} is over")
        self._lights = now

    def _show(self, step: int, total: int, eta_s: float | None) -> None:
        """Draw what stays at the bottom: the bar, and the lights."""
        if self._progress is None:
            self._progress = Progress(
                TextColumn("step"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[eta]}")
            )
            self._progress.add_task("step", total=total, eta="")
            self._live = Live(console=self._console, transient=True, auto_refresh=False)
            self._live.start()
        assert self._live is not None
        self._progress.update(
            self._progress.task_ids[0], completed=step, total=total, eta=f"{write_seconds(eta_s)} left"
        )
        self._live.update(Group(self._progress, *self._light_line()), refresh=True)

    def _light_line(self) -> list[Text]:
        if not self._lights:
            return []
        parts = []
        for light in self._lights:
            style, mark = _MARKS[light.state]
            parts.append(Text(f"{mark} {light.name}".replace(" ", "\u00a0"), style=style))
        return [Text("  ").join(parts)]
