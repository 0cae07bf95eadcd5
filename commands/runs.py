"""`agentrl runs`: list, prune and compare runs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import options
from agentrl_cli.commands.runs_prune import Root, prune

runs = typer.Typer(name="runs", help="List, prune and compare runs.", no_args_is_help=True)
runs.command("prune")(prune)


@runs.command("list")
@options.examples(
    "agentrl runs list",
)
def list_(root: Root = Path("runs"), as_json: options.Json = False, debug: options.Debug = False) -> None:
    """List runs, newest first: state, steps, scores and size."""
    from agentrl_cli.runs_index.listing import list_runs, render_runs

    found = list_runs(root)
    if as_json:
        console.print_json({"runs": [run.to_json() for run in found]})
    else:
        console.print_text(render_runs(found, now=datetime.now(UTC)))


@runs.command("compare")
@options.examples(
    "agentrl runs compare runs/a runs/b",
)
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="Run, by path or name.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Run to compare with it.")],
    root: Root = Path("runs"),
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Compare settings, metrics and evaluations of two runs."""
    from agentrl_cli.runs_index.compare import compare_runs
    from agentrl_cli.runs_index.compare_text import render_comparison
    from agentrl_cli.runs_index.listing import find_run

    result = compare_runs(find_run(root, a), find_run(root, b))
    if as_json:
        console.print_json(result)
    else:
        console.print_text(render_comparison(result))
