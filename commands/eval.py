"""`agentrl eval`: measure a model on a benchmark, or audit the verifier."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import options


@options.examples(
    "agentrl eval aime2025",
    "agentrl eval gsm8k --data test.jsonl --limit 50 --model runs/first",
    "agentrl eval generated --set eval.temperature=0 --set eval.num_samples=1",
)
def evaluate(
    benchmark: options.Benchmark,
    model: options.Model = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="FILE", exists=True, help="Local copy of the problems or cases.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="First N problems only.")] = None,
    no_tools: Annotated[bool, typer.Option("--no-tools", help="Same as --set tools.names=[].")] = False,
    preset: options.Preset = None,
    config_file: options.ConfigFile = None,
    overrides: options.Overrides = None,
    out: options.Out = None,
    dry_run: options.DryRun = False,
    seed: options.Seed = None,
    as_json: options.Json = False,
    strict: options.Strict = False,
    offline: options.Offline = False,
    debug: options.Debug = False,
) -> None:
    """Measure a model on a benchmark.

    A run is measured under its own settings unless --preset or --config names others.
    """
    shortcuts = {"tools.names": "[]" if no_tools else None}
    run = options.run_folder(model)
    config = options.settings(
        preset, config_file, overrides=overrides, seed=seed, shortcuts=shortcuts, strict=strict, run=run
    )
    if dry_run:
        options.show_plan(config, as_json=as_json)
    elif benchmark == "verifier":
        options.audit_verifier(config, data=data, as_json=as_json)
    else:
        from agentrl_cli.evaluation.runner import run_eval

        with console.open_reporter() as reporter:
            result = run_eval(
                config, benchmark=benchmark, model=model, data=data, limit=limit, out=out, reporter=reporter
            )
        options.show(result, as_json=as_json)
