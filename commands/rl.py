"""`agentrl rl`: train a policy with GRPO-TCR."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli.commands import options
from agentrl_cli.console import ConsoleReporter


def rl(
    data: Annotated[
        str | None, typer.Option("--data", metavar="FILE", help="Problems to train on; same as --set data.train=FILE.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Go on from the last checkpoint of a run.")
    ] = None,
    preset: options.Preset = None,
    config_file: options.ConfigFile = None,
    overrides: options.Overrides = None,
    out: options.Out = None,
    dry_run: options.DryRun = False,
    seed: options.Seed = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Train a policy with GRPO-TCR.

    Held-out problems measure it before and after.
    """
    config = options.settings(
        preset, config_file, overrides=overrides, seed=seed, shortcuts={"data.train": data}, run=resume
    )
    if dry_run:
        options.show_plan(config, as_json=as_json)
        return
    from agentrl_cli.training.rl import run_rl

    with ConsoleReporter() as reporter:
        result = run_rl(config, out=out, resume=resume, reporter=reporter)
    options.show(result, as_json=as_json)
