"""The terminal: results to stdout, everything else to stderr. The only part that imports rich.

It does so when something is shown, since `--help` is to cost little more than its interpreter.
Colour and live lines appear on a terminal alone and never carry meaning; NO_COLOR is honoured (by rich).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentrl_cli.errors import AgentRLError

if TYPE_CHECKING:
    from rich.console import Console

    from agentrl_cli.console.reporter import ConsoleReporter

PLAIN_WIDTH = 80


def open_reporter() -> ConsoleReporter:
    """Return what shows progress on stderr; use it as a context manager."""
    from agentrl_cli.console.reporter import ConsoleReporter

    return ConsoleReporter()


def print_error(error: AgentRLError, *, debug: bool = False) -> None:
    """Write `error:` and, after a blank line, `hint:` to stderr; with `debug` the traceback first."""
    from rich.markup import escape

    console = stderr()
    if debug:
        import traceback

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
    """List nested values with their dotted names, as text; what has no value is left out."""
    rows: list[tuple[str, str]] = []
    for name, item in value.items():
        if isinstance(item, Mapping):
            rows += _flatten(item, prefix=f"{prefix}{name}.")
        elif isinstance(item, list) and item and all(isinstance(part, str) for part in item) and len(item) > 1:
            rows += [(prefix + name, part) for part in item]
        elif item is None:
            continue
        else:
            rows.append((prefix + name, f"{item:.4g}" if isinstance(item, float) else str(item)))
    return rows


def stderr() -> Console:
    """Return a console on stderr; outside of a terminal lines have 80 columns."""
    from rich.console import Console

    return Console(stderr=True, width=None if sys.stderr.isatty() else PLAIN_WIDTH)
