"""`agentrl collect`: record trajectories of a teacher."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import options


@options.examples(
    "agentrl collect --preset tiny --out raw.jsonl",
    "agentrl collect --problems gsm8k --teacher openai:NAME@URL",
)
def collect(
    problems: Annotated[
        str | None, typer.Option("--problems", metavar="SOURCE", help="Problems to solve: a file, a data set by name.")
    ] = None,
    teacher: options.Teacher = "scripted",
    preset: options.Preset = None,
    config_file: options.ConfigFile = None,
    overrides: options.Overrides = None,
    out: options.OutFile = Path("trajectories.jsonl"),
    dry_run: options.DryRun = False,
    seed: options.Seed = None,
    as_json: options.Json = False,
    strict: options.Strict = False,
    offline: options.Offline = False,
    debug: options.Debug = False,
) -> None:
    """Record a teacher solving problems with tools.

    Goes on where it was stopped.
    """
    config = options.settings(preset, config_file, overrides=overrides, seed=seed, strict=strict)
    if dry_run:
        options.show_plan(config, as_json=as_json)
        return
    from agentrl_cli.collection.collect import run_collect

    with console.open_reporter() as reporter:
        result = run_collect(config, problems=problems, teacher=teacher, out=out, reporter=reporter)
    options.show(result, as_json=as_json, then=[f"agentrl filter {out} --out sft.jsonl"])
