"""`agentrl doctor`: what this machine can do, and which presets fit it."""

from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import options


@options.examples(
    "agentrl doctor",
    "agentrl doctor --preset 4b --json",
)
def doctor(
    preset: Annotated[
        str | None, typer.Option("--preset", metavar="NAME", help="Hold this preset alone against the machine.")
    ] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Say what this machine can do.

    Python, torch, devices, engines, sandbox, and what each preset would need here. Exit code 1 if torch
    or the sandbox does not work.
    """
    from agentrl_cli.doctor import examine, report_text, require_basics

    report = examine([preset] if preset else [])
    if as_json:
        console.print_json(report)
    else:
        console.print_text(report_text(report))
    require_basics(report)
