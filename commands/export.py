"""`agentrl export`: hand a checkpoint on to other programs."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import options


@options.examples(
    "agentrl export runs/first --to hf --out my-model",
)
def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|CHECKPOINT", callback=options.find_run, help="A run stands for its best checkpoint."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder to make; nothing is overwritten.")],
    to: Annotated[str, typer.Option("--to", metavar="LAYOUT", help="hf: a Hugging Face folder.")] = "hf",
    merge: Annotated[
        bool | None, typer.Option("--merge/--no-merge", help="Merge adapters into their base (the default).")
    ] = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Write a checkpoint as a Hugging Face folder.

    With weights, tokenizer, chat template and a README; without the trainer's state.
    """
    from agentrl_cli.export.huggingface import export_checkpoint

    with console.open_reporter() as reporter:
        result = export_checkpoint(model, out, layout=to, merge=merge, reporter=reporter)
    options.show(result, as_json=as_json)
