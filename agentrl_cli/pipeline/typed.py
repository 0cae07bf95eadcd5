"""The commands that a person would type: for what is left of a stage, and for the pipeline itself."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from agentrl_cli.pipeline.names import DEFAULT_BENCHMARK, DEFAULT_TEACHER, Stage
from agentrl_cli.pipeline.stages import Order, is_begun, rl_start


def settings_options(
    preset: str | None, config_file: Path | None, *, overrides: Sequence[str], seed: int | None
) -> list[str]:
    """Return the options that settings came from, as they were given."""
    named = {"--preset": preset, "--config": config_file, "--seed": seed}
    options = [text for name, value in named.items() if value is not None for text in (name, str(value))]
    return [*options, *(text for override in overrides for text in ("--set", override))]


def stage_command(stage: Stage, order: Order, folder: Path, *, sft_is_done: bool, settings: Sequence[str]) -> str:
    """Return the single command that does what is left of a stage.

    Args:
        sft_is_done: Whether it is known which checkpoint rl starts from.
        settings: The options that the settings came from, such as `["--preset", "tiny"]`.
    """
    collected, rows, rl = (str(folder / name) for name in ("collected.jsonl", "sft.jsonl", "rl"))
    start = rl_start(folder) if sft_is_done else (folder / "sft" / "checkpoints" / "step-N").resolve()
    own = {
        Stage.COLLECT: [*_problems(order), "--teacher", order.teacher, "--out", collected],
        Stage.FILTER: [collected, "--out", rows],
        Stage.SFT: ["--data", rows, *_run_options(folder / "sft")],
        Stage.RL: ["--set", f"model.path={start}", *_run_options(folder / "rl")],
        Stage.EVAL: [order.benchmark, "--model", rl, "--out", str(folder / "eval")],
        Stage.DIAGNOSE: [rl],
    }
    shared = [] if stage is Stage.DIAGNOSE else settings
    return shlex.join(["agentrl", stage, *shared, *own[stage]])


def pipeline_command(order: Order, folder: Path, *, settings: Sequence[str]) -> str:
    """Return the command that goes on with a pipeline to its end."""
    teacher = [] if order.teacher == DEFAULT_TEACHER else ["--teacher", order.teacher]
    benchmark = [] if order.benchmark == DEFAULT_BENCHMARK else ["--benchmark", order.benchmark]
    return shlex.join(["agentrl", "pipeline", *settings, *_problems(order), *teacher, *benchmark, "--out", str(folder)])


def _problems(order: Order) -> list[str]:
    return [] if order.problems is None else ["--problems", order.problems]


def _run_options(run: Path) -> list[str]:
    return ["--resume" if is_begun(run) else "--out", str(run)]
