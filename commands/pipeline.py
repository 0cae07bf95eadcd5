"""`agentrl pipeline`: the whole chain of a preset in one folder."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import completion, options
from agentrl_cli.pipeline.names import DEFAULT_BENCHMARK, DEFAULT_TEACHER, Stage


@options.examples("agentrl pipeline --preset tiny --out chain")
def pipeline(
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of all stages; goes on if it is one.")],
    problems: Annotated[str | None, typer.Option("--problems", metavar="SOURCE", help="As in agentrl collect.")] = None,
    teacher: options.Teacher = DEFAULT_TEACHER,
    benchmark: Annotated[
        str,
        typer.Option("--benchmark", metavar="NAME", autocompletion=completion.benchmarks, help="As in agentrl eval."),
    ] = DEFAULT_BENCHMARK,
    until: Annotated[Stage, typer.Option("--until", metavar="STAGE", help="Last stage to run.")] = Stage.DIAGNOSE,
    preset: options.Preset = None,
    config_file: options.ConfigFile = None,
    overrides: options.Overrides = None,
    dry_run: options.DryRun = False,
    seed: options.Seed = None,
    as_json: options.Json = False,
    strict: options.Strict = False,
    offline: options.Offline = False,
    debug: options.Debug = False,
) -> None:
    """Run collect, filter, sft, rl, eval, diagnose.

    Finished stages are skipped; one that was stopped goes on.
    """
    from agentrl_cli.pipeline.chain import plan_pipeline, run_pipeline
    from agentrl_cli.pipeline.stages import Order
    from agentrl_cli.pipeline.text import render_pipeline, render_plan
    from agentrl_cli.pipeline.typed import settings_options

    config = options.settings(preset, config_file, overrides=overrides, seed=seed, strict=strict)
    order = Order(config, teacher=teacher, problems=problems, benchmark=benchmark)
    typed = [*(overrides or []), *(["data.strict=true"] if strict else [])]
    given = settings_options(preset, config_file, overrides=typed, seed=seed)
    if dry_run:
        plan = plan_pipeline(order, out=out, until=until, settings=given)
        if as_json:
            console.print_json(plan)
        else:
            options.show_plan(config, as_json=False)
            console.print_text("\n" + render_plan(plan))
        return
    result = run_pipeline(order, out=out, until=until, open_reporter=console.open_reporter)
    if as_json:
        console.print_json(result)
    else:
        console.print_text(render_pipeline(result, order, settings=given))
