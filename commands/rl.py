"""`agentrl rl`: train a policy with GRPO-TCR."""

from pathlib import Path
from typing import Annotated

import typer

from agentrl_cli import console
from agentrl_cli.commands import options


@options.examples(
    "agentrl rl --preset tiny",
    "agentrl rl --preset 4b --data problems.jsonl --dry-run",
    "agentrl rl --resume runs/rl-tiny-20261201-120000",
)
def rl(
    data: Annotated[
        str | None, typer.Option("--data", metavar="FILE", help="Problems to train on; same as --set data.train=FILE.")
    ] = None,
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
    """Train a policy with GRPO-TCR.

    Held-out problems measure it before and after.
    """
    shortcuts = {"data.train": data}
    config = options.settings(
        preset, config_file, overrides=overrides, seed=seed, shortcuts=shortcuts, strict=strict, run=resume
    )
    if dry_run:
        options.show_plan(config, as_json=as_json)
        return
    from agentrl_cli.preflight import require_possible

    require_possible(config, command="rl", sources=["data.train", "data.eval"])
    from agentrl_cli.training.rl import run_rl
    from agentrl_cli.view.before_after import render_before_after

    with console.open_reporter() as reporter:
        result = run_rl(config, out=out, resume=resume, reporter=reporter)
    run = result["run"]
    shown = result if as_json else {name: result[name] for name in ("run", "steps", "wall_s", "peak_mib")}
    text = render_before_after(Path(run), result["before"], result["after"], width=console.PLAIN_WIDTH)
    then = [f"agentrl diagnose {run}", f"agentrl view {run}", f"agentrl eval generated --model {run}"]
    options.show(shown, as_json=as_json, text=text, then=then)
