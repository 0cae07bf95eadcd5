"""Options that commands share, and what they do with them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from agentrl_cli import console
from agentrl_cli.commands import completion
from agentrl_cli.errors import ConfigError, RunError

if TYPE_CHECKING:
    from agentrl_cli.config.schema import Config

_DEBUG = "agentrl.debug"
_KEEP_LINES = "\b"
"""Tells click not to wrap the paragraph."""
Command = TypeVar("Command", bound=Callable[..., None])


def examples(*lines: str) -> Callable[[Command], Command]:
    """Append command lines to try to a command's help."""

    def decorate(command: Command) -> Command:
        shown = "\n".join(f"  {line}" for line in lines)
        command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{_KEEP_LINES}\nExamples:\n{shown}"
        return command

    return decorate


def _remember_debug(ctx: typer.Context, value: bool) -> bool:
    """Keep the flag where the error boundary finds it, whichever command it was given to."""
    ctx.meta[_DEBUG] = value
    return value


def is_debug(ctx: typer.Context) -> bool:
    """Whether `--debug` was given."""
    return bool(ctx.meta.get(_DEBUG, False))


def _go_offline(value: bool) -> bool:
    """Forbid downloads; the libraries that fetch read this once, when they are first imported."""
    if value:
        os.environ["HF_HUB_OFFLINE"] = "1"
    return value


Preset = Annotated[
    str | None,
    typer.Option(
        "--preset",
        metavar="NAME",
        autocompletion=completion.presets,
        help="Settings to start from; see `agentrl presets list`.",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="TOML file whose settings go over the preset's.")
]


def find_run(value: Any) -> Any:
    """Let a name stand for the run of that name in ./runs, whatever type the option has."""
    if value is None:
        return None
    from agentrl_cli.runs import find_run_folder

    return type(value)(find_run_folder(str(value)))


Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        callback=find_run,
        autocompletion=completion.runs,
        help="Go on from the last checkpoint of a run.",
    ),
]
Run = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN",
        callback=find_run,
        autocompletion=completion.runs,
        help="Run folder or its name, or a metrics log; the newest run in ./runs.",
    ),
]
Benchmark = Annotated[
    str,
    typer.Argument(
        metavar="BENCHMARK",
        autocompletion=completion.benchmarks,
        help="generated, a benchmark by name, a file, or any name with --data; verifier audits the verifier.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="RUN|PATH|NAME",
        callback=find_run,
        autocompletion=completion.runs,
        help="What to measure: a run stands for its best checkpoint; the newest run if not given.",
    ),
]
Teacher = Annotated[str, typer.Option("--teacher", metavar="SPEC", help="scripted, openai:NAME@URL or model:PATH.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=completion.settings,
        help="One setting, over preset and file; may be repeated.",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="PATH", help="Folder to write; never an existing run.")]
OutFile = Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print settings, sizes and needs, and stop.")]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Same as --set run.seed=N.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at a row that can't be used (data.strict).")]
Offline = Annotated[bool, typer.Option("--offline", callback=_go_offline, is_eager=True, help="Download nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Debug = Annotated[bool, typer.Option("--debug", callback=_remember_debug, help="Show tracebacks.")]


def settings(
    preset: str | None,
    config_file: Path | None,
    *,
    overrides: Sequence[str] | None,
    seed: int | None,
    shortcuts: Mapping[str, object | None] | None = None,
    strict: bool = False,
    run: Path | None = None,
) -> Config:
    """Return the settings: those of `run` if neither preset nor file is named, else preset and file; then --set.

    Args:
        shortcuts: values of options that stand for a setting, by its full name; None where not given.
        strict: `--strict` was given.
    """
    from agentrl_cli.config.load import load_config, load_run_config

    given = {**(shortcuts or {}), "data.strict": "true" if strict else None, "run.seed": seed}
    texts = [*(overrides or []), *(f"{name}={value}" for name, value in given.items() if value is not None)]
    if run is not None and preset is None and config_file is None:
        return load_run_config(run, texts)
    return load_config(preset, config_file, texts)


def run_folder(model: str | None) -> Path | None:
    """Return the run that `--model` names (the newest in ./runs without a name), or None if it names no run."""
    from agentrl_cli.runs import ROOT, newest_trained_run

    path = newest_trained_run(ROOT) if model is None else Path(model)
    if path is None or not (path / "config.json").is_file() or not (path / "metrics.jsonl").exists():
        return None
    return path


def newest_run_or_refuse() -> Path:
    """Return the newest run in ./runs and say on stderr which it is.

    Raises:
        RunError: there is none.
    """
    from agentrl_cli.runs import ROOT, newest_run

    run = newest_run(ROOT)
    if run is None:
        raise RunError("no run is named and ./runs holds none", hint="name one, or make one: agentrl rl --preset tiny")
    console.open_reporter().info(f"run: {run}")
    return run


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
    """Print all settings, what they amount to, and what they need here, after trying the user's own code."""
    if config.rewards.module:
        from agentrl_cli.rewards.user import load_reward

        load_reward(config.rewards.module)
    if config.tools.module:
        from agentrl_cli.agent.user_tools import load_tools

        load_tools(
            config.tools.module,
            timeout_s=config.tools.timeout_s,
            max_output_chars=config.sandbox.max_output_chars,
        )
    if config.tools.search.corpus:
        from agentrl_cli.data.corpus import corpus_folder

        corpus_folder(config.tools.search.corpus)
    from agentrl_cli.config.load import resolved_dump
    from agentrl_cli.config.plan import make_plan

    plan = make_plan(config)
    show({"config": resolved_dump(config), **plan}, as_json=as_json)
    if not as_json:
        problems = "".join(f"\n  {text}" for text in plan["problems"]) or " nothing"
        console.print_text(f"\nwhat stands against it on this machine:{problems}")


def show(result: Mapping[str, Any], *, as_json: bool, text: str = "", then: Sequence[str] = ()) -> None:
    """Print a result for scripts or for people.

    Args:
        text: What people get to read below it.
        then: Commands that go on from it, for people.
    """
    if as_json:
        console.print_json(result)
        return
    console.print_result(result)
    if text:
        console.print_text(f"\n{text}")
    if then:
        console.print_text("\nnext:\n" + "\n".join(f"  {line}" for line in then))
