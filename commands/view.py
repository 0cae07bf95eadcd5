"""`agentrl view`: read trajectories."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import options


@options.examples(
    "agentrl view runs/first --failed --limit 3",
    "agentrl view runs/first/trajectories/step-000001.jsonl --tokens",
)
def view(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|RUN", callback=options.find_run, help="Trajectories (JSONL), or a run for its newest."
        ),
    ],
    record_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Of one trajectory, or of a problem for all of its.")
    ] = None,
    correct: Annotated[bool | None, typer.Option("--correct/--failed", help="Only right ones, or only others.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Most trajectories to show.")] = 10,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show tokens, those generated in brackets.")] = False,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Show trajectories turn by turn.

    Verdict, reward and its parts, what was said, called and answered.
    """
    from agentrl_cli.view.render import render_trajectory
    from agentrl_cli.view.select import select_records
    from agentrl_cli.view.tokens import read_spans, render_spans

    found = select_records(path, record_id=record_id, correct=correct, limit=limit)
    spans = read_spans(found.file, found.places) if tokens else None
    reporter = console.open_reporter()
    if found.is_torn:
        reporter.warn(f"the last line of {found.file} is cut off and left out")
    if as_json:
        rows = [dict(row) for row in found.rows]
        if spans is not None:
            rows = [{**row, "spans": [asdict(s) for s in of]} for row, of in zip(rows, spans, strict=True)]
        console.print_json({**found.counts(), "trajectories": rows})
        return
    for i, row in enumerate(found.rows):
        console.print_text(render_trajectory(row, console.PLAIN_WIDTH) + "\n")
        if spans is not None:
            console.print_text(render_spans(spans[i]) + "\n")
    reporter.info(f"{len(found.rows)} of {found.num_matching} that match, of {found.num_rows} in {found.file}")
