"""Runs the stages one after the other; what is finished is skipped, what was cut off goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from agentrl_cli.config.load import resolved_dump
from agentrl_cli.config.plan import make_plan
from agentrl_cli.pipeline.journal import Journal, open_journal
from agentrl_cli.pipeline.names import Stage
from agentrl_cli.pipeline.stages import Order, check_early, run_stage
from agentrl_cli.pipeline.typed import stage_command
from agentrl_cli.reporting import Reporter

OpenReporter = Callable[[], AbstractContextManager[Reporter]]
"""Gives each stage a reporter of its own: their steps have nothing in common."""


def run_pipeline(order: Order, *, out: Path, until: Stage, open_reporter: OpenReporter) -> dict[str, Any]:
    """Run the stages up to `until` in a folder; the same call again goes on where this one was stopped.

    Returns:
        `{out, stages: [{stage, status: done|skipped|left, result}], wall_s}`; the result is what the
        stage's command prints, empty for one that is left.

    Raises:
        RunError: the folder holds something else, other settings, or another process works in it.
        AgentRLError: a stage failed; those before it stay finished.
    """
    start = time.monotonic()
    wanted = _stages_until(until)
    with open_journal(out, order) as journal:
        check_early([stage for stage in wanted if journal.result(stage) is None], order)
        entries = [
            _run(stage, order, out, journal=journal, open_reporter=open_reporter)
            if stage in wanted or journal.result(stage) is not None
            else {"stage": stage.value, "status": "left", "result": {}}
            for stage in Stage
        ]
    return {"out": str(out), "stages": entries, "wall_s": round(time.monotonic() - start, 2)}


def plan_pipeline(order: Order, *, out: Path, until: Stage, settings: Sequence[str]) -> dict[str, Any]:
    """Return which stages are done and the command of each that is left, with the plan; nothing is written.

    Args:
        until: The last stage that gets a command.
        settings: The options that the settings came from, for the commands.

    Returns:
        `{out, stages: [{stage, status: done|left, result, command}], config, …}`; the rest is `make_plan`'s.

    Raises:
        RunError: the folder holds something else, or other settings.
    """
    journal = Journal(out, order)
    wanted = _stages_until(until)
    entries: list[dict[str, Any]] = []
    for stage in Stage:
        result = journal.result(stage)
        status = "left" if result is None else "done"
        entry: dict[str, Any] = {"stage": stage.value, "status": status, "result": result or {}}
        if result is None and stage in wanted:
            entry["command"] = stage_command(
                stage, order, out, sft_is_done=journal.result(Stage.SFT) is not None, settings=settings
            )
        entries.append(entry)
    return {"out": str(out), "stages": entries, "config": resolved_dump(order.config), **make_plan(order.config)}


def _stages_until(last: Stage) -> list[Stage]:
    """Return the stages from the first to `last`."""
    stages = list(Stage)
    return stages[: stages.index(last) + 1]


def _run(stage: Stage, order: Order, out: Path, *, journal: Journal, open_reporter: OpenReporter) -> dict[str, Any]:
    """Run a stage unless it is finished."""
    finished = journal.result(stage)
    with open_reporter() as reporter:
        if finished is not None:
            reporter.info(f"{stage}: done, skipped")
            return {"stage": stage.value, "status": "skipped", "result": finished}
        reporter.info(f"{stage}: stage {list(Stage).index(stage) + 1} of {len(Stage)}")
        result = journal.record(stage, run_stage(stage, order, out, reporter=reporter))
    return {"stage": stage.value, "status": "done", "result": result}
