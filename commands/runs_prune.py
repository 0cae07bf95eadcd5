"""`agentrl runs prune`: give disk space back."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import options
from agentrl_cli.errors import ConfigError

Root = Annotated[Path, typer.Option("--root", metavar="FOLDER", help="Folder that holds the runs.")]


@options.examples(
    "agentrl runs prune --dry-run",
    "agentrl runs prune --what trajectories --older-than 30 --yes",
)
def prune(
    names: Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Paths or names; all if none.")] = None,
    keep: Annotated[int | None, typer.Option("--keep", metavar="N", min=0, help="Keep the N newest.")] = None,
    days: Annotated[float | None, typer.Option("--older-than", metavar="DAYS", min=0, help="Only older runs.")] = None,
    what: Annotated[str, typer.Option("--what", metavar="KIND", help="checkpoints, trajectories or runs.")] = (
        "checkpoints"
    ),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    root: Root = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and stop.")] = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Free disk space.

    Runs being written and the newest and best checkpoint of each run stay.
    """
    from agentrl_cli.runs_index.prune import apply_prune, plan_prune

    plan = plan_prune(root, names or [], what=what, keep=keep, older_than_days=days, now=datetime.now(UTC))
    if plan.items and not dry_run:
        if not yes:
            _ask(plan.to_text(verb="remove"))
        plan = apply_prune(plan)
    if as_json:
        console.print_json(plan.to_json(dry_run=dry_run))
    else:
        console.print_text(plan.to_text(verb="would remove" if dry_run else "removed"))


def _ask(what_goes: str) -> None:
    """Show what goes and go on only if the user says so."""
    if not sys.stdin.isatty():
        raise ConfigError("nobody is there to ask", hint="give --yes, or look first with --dry-run")
    console.open_reporter().info(what_goes)
    typer.confirm("remove it?", abort=True, err=True)
