"""What a run made of its model: scores on held-out problems, and one of them before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_cli.files import read_rows
from agentrl_cli.view.render import escape_text, render_trajectory
from agentrl_cli.view.select import Row, is_correct

MAX_LINES = 24
"""Of one trajectory; long ones lose their middle."""
_FIGURES = {"accuracy": "accuracy", "accuracy_greedy": "greedy accuracy", "tool_calls": "tool calls a problem"}


def render_before_after(run: Path, before: Mapping[str, Any], after: Mapping[str, Any], *, width: int) -> str:
    """Return the comparison as text.

    Args:
        run: Folder of the run, which holds the samples of both evaluations.
        before: What `evaluate_held_out` measured at first: `{step, accuracy, stderr, n, k, …}`.
        after: What it measured last.
        width: Columns for prose.
    """
    lines = [f"{before['n']} held-out problems x {before['k']}", *_table(before, after)]
    example = find_example(*(_samples(run, result) for result in (before, after)))
    if example is None:
        return "\n".join(lines)
    problem = escape_text(" ".join(str(example[0]["problem"]).split()))
    lines += ["", f"one of them: {problem if len(problem) <= width else problem[:width] + '…'}"]
    for when, row in zip(("before", "after"), example, strict=True):
        lines += ["", f"{when} ({'right' if is_correct(row) else 'wrong'})", *_turns(row, width)]
    return "\n".join(lines)


def find_example(before: Sequence[Row], after: Sequence[Row]) -> tuple[Row, Row] | None:
    """Return two samples of one problem: wrong before and right after if there are such, else the first of both."""
    later: dict[str, list[Row]] = {}
    for row in after:
        later.setdefault(row["problem_id"], []).append(row)
    pairs = [(row, other) for row in before for other in later.get(row["problem_id"], [])[:1]]
    learnt = (pair for pair in pairs if not is_correct(pair[0]) and is_correct(pair[1]))
    return next(learnt, next(iter(pairs), None))


def _table(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'':22}{'before':>8}{'after':>8}"
    for name, label in _FIGURES.items():
        yield f"{label:22}{before[name]:8.3f}{after[name]:8.3f}"
    if before.get("stderr") is not None and after.get("stderr") is not None:
        yield f"{'(standard error)':22}{before['stderr']:8.3f}{after['stderr']:8.3f}"


def _samples(run: Path, result: Mapping[str, Any]) -> list[Row]:
    file = run / "eval" / f"step-{result['step']:06d}.jsonl"
    return list(read_rows(file)[0]) if file.is_file() else []


def _turns(row: Row, width: int) -> list[str]:
    """Return what follows the problem, cut in the middle if it is long."""
    text = render_trajectory(row, width)
    lines = text[text.find("\nassistant") + 1 :].splitlines() if "\nassistant" in text else []
    if len(lines) <= MAX_LINES:
        return [f"  {line}" if line else "" for line in lines]
    half = MAX_LINES // 2
    cut = [*lines[:half], f"… {len(lines) - 2 * half} lines more", *lines[-half:]]
    return [f"  {line}" if line else "" for line in cut]
