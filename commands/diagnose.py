"""`agentrl diagnose`: what is wrong with a run, and which setting to change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import options


def diagnose(
    run: Annotated[Path, typer.Argument(metavar="RUN", exists=True, help="Run folder, or a metrics log.")],
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Say what is wrong with a run and what to change."""
    from agentrl_cli.diagnosis import diagnose_run

    diagnosis = diagnose_run(run)
    if as_json:
        console.print_json(diagnosis.to_json())
    else:
        console.print_text(diagnosis.to_text())
