"""`agentrl pipeline`: the whole chain of a preset in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import options
from agentrl_cli.pipeline.stages import DEFAULT_BENCHMARK, DEFAULT_TEACHER, Order, Stage


def pipeline(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of all stages; goes on if it is one.")],
    problems: Annotated[
        str | None, typer.Option("--problems", metavar="FILE", help="Problems to collect; the default is data.train.")
    ] = None,
    teacher: Annotated[
        str, typer.Option("--teacher", metavar="SPEC", help="scripted, openai:NAME@URL or model:PATH.")
    ] = DEFAULT_TEACHER,
    benchmark: Annotated[
        str, typer.Option("--benchmark", metavar="NAME", help="What eval measures on, as in agentrl eval.")
    ] = DEFAULT_BENCHMARK,
    until: Annotated[Stage, typer.Option("--until", metavar="STAGE", help="Last stage to run.")] = Stage.DIAGNOSE,
    preset: options.Preset = None,
    config_file: options.ConfigFile = None,
    overrides: options.Overrides = None,
    dry_run: options.DryRun = False,
    seed: options.Seed = None,
    as_json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Run collect, filter, sft, rl, eval, diagnose.

    Finished stages are skipped; one that was stopped goes on.
    """
    from agentrl_cli.pipeline.chain import plan_pipeline, run_pipeline
    from agentrl_cli.pipeline.text import render_pipeline, render_plan
    from agentrl_cli.pipeline.typed import settings_options

    config = options.settings(preset, config_file, overrides=overrides, seed=seed, shortcuts={})
    order = Order(config, teacher=teacher, problems=problems, benchmark=benchmark)
    given = settings_options(preset, config_file, overrides=overrides or [], seed=seed)
    if dry_run:
        result = plan_pipeline(order, out=out, until=until, settings=given)
    else:
        result = run_pipeline(order, out=out, until=until, open_reporter=console.ConsoleReporter)
    if as_json:
        console.print_json(result)
    elif dry_run:
        console.print_text(render_plan(result) + "\n")
        options.show_plan(config, as_json=False)
    else:
        console.print_text(render_pipeline(result, order, settings=given))
