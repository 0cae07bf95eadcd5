"""`agentrl filter`: keep the trajectories that are worth learning from."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import options


@options.examples(
    "agentrl filter raw.jsonl --out sft.jsonl",
    "agentrl filter raw.jsonl --set filter.max_per_problem=2 --json",
)
def filter_(
    input_: Annotated[
        Path, typer.Argument(metavar="INPUT", exists=True, dir_okay=False, help="Trajectories (JSONL) to choose from.")
    ],
    preset: options.Preset = None,
    config_file: options.ConfigFile = None,
    overrides: options.Overrides = None,
    out: options.OutFile = Path("sft.jsonl"),
    dry_run: options.DryRun = False,
    seed: options.Seed = None,
    as_json: options.Json = False,
    strict: options.Strict = False,
    debug: options.Debug = False,
) -> None:
    """Keep trajectories worth learning from.

    Says for what reasons the others were rejected.
    """
    config = options.settings(preset, config_file, overrides=overrides, seed=seed, strict=strict)
    if dry_run:
        options.show_plan(config, as_json=as_json)
        return
    from agentrl_cli.filtering.filter import run_filter

    with console.open_reporter() as reporter:
        result = run_filter(config, input=input_, out=out, reporter=reporter)
    options.show(result, as_json=as_json, then=[f"agentrl sft --data {out}"])
