"""`agentrl sft`: supervised fine-tuning on trajectories."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import options


@options.examples(
    "agentrl sft --preset tiny --data sft.jsonl --out runs/sft",
    "agentrl sft --data sft.jsonl --resume runs/sft",
)
def sft(
    data: Annotated[
        Path, typer.Option("--data", metavar="FILE", exists=True, dir_okay=False, help="Trajectories to learn from.")
    ],
    resume: options.Resume = None,
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
    """Fine-tune a model on trajectories.

    Only the assistant's tokens are learnt.
    """
    config = options.settings(preset, config_file, overrides=overrides, seed=seed, strict=strict, run=resume)
    if dry_run:
        options.show_plan(config, as_json=as_json)
        return
    from agentrl_cli.preflight import require_possible

    require_possible(config, command="sft", sources=[])
    from agentrl_cli.training.sft import run_sft

    with console.open_reporter() as reporter:
        result = run_sft(config, data=data, out=out, resume=resume, reporter=reporter)
    options.show(result, as_json=as_json, then=[f"agentrl rl --set model.path={result['checkpoint']}"])
