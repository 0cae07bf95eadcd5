"""Options that commands share, and what they do with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl_cli import console
from agentrl_cli.config.load import load_config, load_run_config, resolved_dump
from agentrl_cli.config.plan import batch_arithmetic
from agentrl_cli.config.schema import Config
from agentrl_cli.errors import ConfigError

_DEBUG = "agentrl.debug"


def _remember_debug(ctx: typer.Context, value: bool) -> bool:
    """Keep the flag where the error boundary finds it, whichever command it was given to."""
    ctx.meta[_DEBUG] = value
    return value


def is_debug(ctx: typer.Context) -> bool:
    """Whether `--debug` was given."""
    return bool(ctx.meta.get(_DEBUG, False))


Preset = Annotated[
    str | None, typer.Option("--preset", metavar="NAME", help="Settings to start from: tiny (the default), 135m, 4b.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file whose settings go over the preset's.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, over preset and file; may be repeated."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="PATH", help="Folder to write; never an existing run.")]
OutFile = Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the settings and batch sizes, and stop.")]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Same as --set run.seed=N.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Debug = Annotated[bool, typer.Option("--debug", callback=_remember_debug, help="Show tracebacks.")]


def settings(
    preset: str | None,
    config_file: Path | None,
    *,
    overrides: Sequence[str] | None,
    seed: int | None,
    shortcuts: Mapping[str, object | None],
    run: Path | None = None,
) -> Config:
    """Return the settings: those of `run` if neither preset nor file is named, else preset and file; then --set.

    Args:
        shortcuts: values of options that stand for a setting, by its full name; None where not given.
    """
    given = {**shortcuts, "run.seed": seed}
    texts = [*(overrides or []), *(f"{name}={value}" for name, value in given.items() if value is not None)]
    if run is not None and preset is None and config_file is None:
        return load_run_config(run, texts)
    return load_config(preset, config_file, texts)


def run_folder(model: str | None) -> Path | None:
    """Return the run that `--model` names (the newest in ./runs without a name), or None if it names no run."""
    from agentrl_cli.runs import newest_run

    path = newest_run(Path("runs")) if model is None else Path(model)
    if path is None or not (path / "config.json").is_file() or not (path / "metrics.jsonl").exists():
        return None
    return path


def audit_verifier(config: Config, *, data: Path | None, as_json: bool) -> None:
    """Check the verifier against cases with known verdicts; any disagreement ends with exit code 1."""
    if data is None:
        hint = "rows are {id, kind, gold, response, correct, status}"
        raise ConfigError("eval verifier needs --data CASES.jsonl", hint=hint)
    from agentrl_cli.evaluation.audit import audit_cases

    result = audit_cases(data, timeout_s=config.rewards.verify_timeout_s)
    show(result, as_json=as_json)
    if result["disagreements"]:
        raise typer.Exit(1)


def show_plan(config: Config, *, as_json: bool) -> None:
    """Print all settings and what they amount to."""
    plan = {"config": resolved_dump(config), "batch": batch_arithmetic(config)}
    show(plan, as_json=as_json)


def show(result: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a result for scripts or for people."""
    if as_json:
        console.print_json(result)
    else:
        console.print_result(result)
