"""What a pipeline came to, for people: a line per stage, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_cli.pipeline.names import Stage
from agentrl_cli.pipeline.stages import Order
from agentrl_cli.pipeline.typed import pipeline_command

_Result = Mapping[str, Any]


def render_pipeline(result: _Result, order: Order, *, settings: Sequence[str]) -> str:
    """Return the stages as a table with the next command to type below it.

    Args:
        result: Of `run_pipeline`.
        settings: The options that the settings came from, for the same command again.
    """
    return "\n".join([*_table(result["stages"]), "", f"next: {_next_command(result, order, settings)}"])


def render_plan(plan: _Result) -> str:
    """Return the stages as a table, with the commands of those that are left below it.

    Args:
        plan: Of `plan_pipeline`.
    """
    commands = [entry["command"] for entry in plan["stages"] if "command" in entry]
    return "\n".join([*_table(plan["stages"]), *(["", "left, as single commands:"] if commands else []), *commands])


def _table(entries: Sequence[_Result]) -> list[str]:
    rows = [
        (entry["stage"], entry["status"], _SUMMARIES[Stage(entry["stage"])](entry["result"]) if entry["result"] else "")
        for entry in entries
    ]
    return [f"{stage:<8}  {status:<7}  {summary}".rstrip() for stage, status, summary in rows]


def _next_command(result: _Result, order: Order, settings: Sequence[str]) -> str:
    """Return what to do after this call: go on, look at what is wrong, or hand the model on."""
    out = Path(result["out"])
    if any(entry["status"] == "left" for entry in result["stages"]):
        return pipeline_command(order, out, settings=settings)
    if result["stages"][-1]["result"]["findings"]:
        return shlex.join(["agentrl", "diagnose", str(out / "rl")])
    return shlex.join(["agentrl", "export", str(out / "rl"), "--out", str(out / "export")])


def _collect(result: _Result) -> str:
    recorded = result["collected"] + result["skipped"]
    failed = f", {result['failed']} failed by infrastructure" if result["failed"] else ""
    return f"{recorded} trajectories, {result['correct']} right{failed}"


def _filter(result: _Result) -> str:
    return f"{result['kept']} of {result['in']} trajectories kept"


def _sft(result: _Result) -> str:
    return f"{result['steps']} steps on {result['rows']} rows, loss {_number(result['loss'])}"


def _rl(result: _Result) -> str:
    before, after = result["before"], result["after"]
    accuracy = f"{before['accuracy']:.3f} -> {after['accuracy']:.3f}"
    return f"{result['steps']} steps, accuracy {accuracy} on {after['n']} held-out problems"


def _eval(result: _Result) -> str:
    stderr = "" if result["stderr"] is None else f" ± {result['stderr']:.3f}"
    return f"{result['benchmark']}: avg@{result['k']} {result['avg_at_k']:.3f}{stderr} on {result['n']} problems"


def _diagnose(result: _Result) -> str:
    names = [finding["name"] for finding in result["findings"]]
    silent = f" ({len(result['no_data'])} rules had too little data)" if result["no_data"] else ""
    return (f"{len(names)} found: {', '.join(names)}" if names else "nothing found") + silent


def _number(value: float | str) -> str:
    """Write a number, or the text that stands for one that is not finite."""
    return value if isinstance(value, str) else f"{value:.3f}"


_SUMMARIES: Mapping[Stage, Callable[[_Result], str]] = {
    Stage.COLLECT: _collect,
    Stage.FILTER: _filter,
    Stage.SFT: _sft,
    Stage.RL: _rl,
    Stage.EVAL: _eval,
    Stage.DIAGNOSE: _diagnose,
}
