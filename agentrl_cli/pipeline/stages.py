"""The stages of the chain: what each writes, and the core call that it is.

collected.jsonl  trajectories of the teacher      sft/   run, from model.path
sft.jsonl        those worth learning from        rl/    run, from the best checkpoint of sft/
                                                  eval/  result and samples of the rl run
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_cli.config.digest import changed_settings
from agentrl_cli.config.load import resolved_dump
from agentrl_cli.config.schema import Config
from agentrl_cli.errors import RunError
from agentrl_cli.files import remove_dir
from agentrl_cli.pipeline.names import Stage
from agentrl_cli.reporting import Reporter
from agentrl_cli.runs import RunFolder
from agentrl_cli.runs_index.facts import is_running, latest_checkpoint, looks_like_run


@dataclass(frozen=True, slots=True)
class Order:
    """What a pipeline was asked to do."""

    config: Config
    teacher: str
    problems: str | None
    """Problems for the teacher; None takes `data.train`."""
    benchmark: str


def run_stage(stage: Stage, order: Order, folder: Path, *, reporter: Reporter) -> dict[str, Any]:
    """Run one stage, or what is left of it, and return what its command would print.

    Raises:
        AgentRLError: as the stage's command.
    """
    return _RUNS[stage](order, folder, reporter)


def rl_start(folder: Path) -> Path:
    """Return the checkpoint of the finished sft run that rl starts from: its best.

    Raises:
        RunError: the run or its checkpoints are gone.
    """
    checkpoint = RunFolder.open(folder / "sft", read_only=True).best_checkpoint()
    if checkpoint is None:
        raise RunError(
            f"{str(folder / 'sft')!r} has no checkpoint for rl to start from",
            hint="bring it back, or give another --out",
        )
    return checkpoint.resolve()


def is_begun(run: Path) -> bool:
    """Whether a run folder has its settings, so that it can be resumed."""
    return (run / "config.json").is_file()


def check_early(stages: Sequence[Stage], order: Order) -> None:
    """Find what a later stage would refuse before the first one takes its time.

    Raises:
        ConfigError: the settings can't be trained with. DataError: problems or the benchmark can't be had.
    """
    if Stage.SFT in stages or Stage.RL in stages:
        from agentrl_cli.training.setup import check_trainable, require_no_dropout

        check_trainable(order.config.model)
        if Stage.RL in stages:
            require_no_dropout(order.config.model)
            _check_problems(order.config)
    if Stage.EVAL in stages:
        from agentrl_cli.evaluation.benchmarks import load_benchmark
        from agentrl_cli.evaluation.runner import GENERATED

        if order.benchmark != GENERATED:
            load_benchmark(order.benchmark, None, 1)


def _check_problems(config: Config) -> None:
    """Read the first problem of what rl trains and is measured on."""
    from agentrl_cli.data.sources import Reading, load_problems

    data = config.data
    for source in (data.train, data.eval):
        reading = Reading(columns=data.columns, strict=data.strict)
        load_problems(source, generated=data.generated, seed=config.run.seed, count=1, reading=reading)


def _collect(order: Order, folder: Path, reporter: Reporter) -> dict[str, Any]:
    from agentrl_cli.collection.collect import run_collect

    out = folder / "collected.jsonl"
    return run_collect(order.config, problems=order.problems, teacher=order.teacher, out=out, reporter=reporter)


def _filter(order: Order, folder: Path, reporter: Reporter) -> dict[str, Any]:
    from agentrl_cli.filtering.filter import run_filter

    return run_filter(order.config, input=folder / "collected.jsonl", out=folder / "sft.jsonl", reporter=reporter)


def _sft(order: Order, folder: Path, reporter: Reporter) -> dict[str, Any]:
    from agentrl_cli.training.sft import run_sft

    out, resume = _out_or_resume(folder / "sft", order.config)
    return run_sft(order.config, data=folder / "sft.jsonl", out=out, resume=resume, reporter=reporter)


def _rl(order: Order, folder: Path, reporter: Reporter) -> dict[str, Any]:
    from agentrl_cli.training.rl import run_rl

    model = order.config.model.model_copy(update={"path": str(rl_start(folder))})
    config = order.config.model_copy(update={"model": model})
    out, resume = _out_or_resume(folder / "rl", config)
    return run_rl(config, out=out, resume=resume, reporter=reporter)


def _eval(order: Order, folder: Path, reporter: Reporter) -> dict[str, Any]:
    from agentrl_cli.evaluation.runner import run_eval

    return run_eval(
        order.config,
        benchmark=order.benchmark,
        model=str(folder / "rl"),
        data=None,
        limit=None,
        out=folder / "eval",
        reporter=reporter,
    )


def _diagnose(order: Order, folder: Path, reporter: Reporter) -> dict[str, Any]:
    from agentrl_cli.diagnosis import diagnose_run

    return diagnose_run(folder / "rl").to_json()


_RUNS: Mapping[Stage, Callable[[Order, Path, Reporter], dict[str, Any]]] = {
    Stage.COLLECT: _collect,
    Stage.FILTER: _filter,
    Stage.SFT: _sft,
    Stage.RL: _rl,
    Stage.EVAL: _eval,
    Stage.DIAGNOSE: _diagnose,
}


def _out_or_resume(run: Path, config: Config) -> tuple[Path | None, Path | None]:
    """Return the run as one to begin or as one to resume.

    A run that was cut off before its first checkpoint is begun anew if it has not written its settings yet,
    or if they have changed since: nothing that it computed could go on.
    """
    if looks_like_run(run) and not is_running(run) and latest_checkpoint(run) is None and _is_other(run, config):
        remove_dir(run)
    return (None, run) if is_begun(run) else (run, None)


def _is_other(run: Path, config: Config) -> bool:
    """Whether a run has no settings or other ones."""
    if not is_begun(run):
        return True
    return bool(changed_settings(RunFolder.open(run, read_only=True).settings, resolved_dump(config)))
