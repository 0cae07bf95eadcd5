"""Trajectories as people read them: whole, escaped, selected, and before and after a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.config.load import load_config
from agentrl_cli.errors import DataError
from agentrl_cli.files import write_rows
from agentrl_cli.records import trajectory_to_row, write_step_records
from agentrl_cli.runs import RunFolder
from agentrl_cli.types import (
    Ending,
    Problem,
    ToolCall,
    ToolEvent,
    ToolResult,
    ToolStatus,
    Trajectory,
    Verdict,
    VerdictStatus,
)
from agentrl_cli.view.before_after import MAX_LINES, find_example, render_before_after
from agentrl_cli.view.render import escape_text, render_trajectory
from agentrl_cli.view.select import select_records
from agentrl_cli.view.tokens import Span, read_spans, render_spans


def trajectory(number: int, *, correct: bool = True, code: str = "6*7", output: str = "42") -> Trajectory:
    """One call, one result, one answer."""
    call = ToolCall("call_0_0", "python", json.dumps({"code": code}))
    function = {"name": "python", "arguments": call.arguments}
    messages: list[Any] = [
        {"role": "user", "content": "What is six times seven?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": call.id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call.id, "name": "python", "content": output},
        {"role": "assistant", "content": "\\boxed{42}"},
    ]
    return Trajectory(
        id=f"p{number}#0",
        problem=Problem(f"p{number}", "What is six times seven?", "42", source="s", family="f", level=2),
        group_id=f"p{number}",
        seed=number,
        messages=messages,
        tools=[],
        turn_tokens=[5, 4],
        events=[ToolEvent(0, call, ToolResult(ToolStatus.OK, output, wall_s=0.25))],
        ending=Ending.ANSWERED,
        verdict=Verdict(correct, VerdictStatus.OK, "42"),
        reward=1.0 if correct else -1.0,
        reward_parts={"outcome": 1.0 if correct else -1.0},
        wall_s=1.5,
    )


def rows(*trajectories: Trajectory) -> list[dict[str, Any]]:
    """Return records."""
    return [trajectory_to_row(t) for t in trajectories]


def test_a_trajectory_reads_turn_by_turn() -> None:
    """What it came to, then what was said, called and answered."""
    (row,) = rows(trajectory(1))
    assert render_trajectory(row, 80).splitlines() == [
        "trajectory p1#0",
        "  problem  p1 (s, f, level 2)",
        "  gold     42",
        "  verdict  right (ok), answer 42",
        "  ending   answered",
        "  reward   1 (outcome 1; before weights)",
        "  size     2 turns, 1 executed calls, 9 generated tokens, 1.50 s",
        "",
        "user",
        "  What is six times seven?",
        "",
        "assistant (turn 1)",
        "  Let me see.",
        "  call python",
        "    6*7",
        "",
        "tool python: ok, 0.25 s",
        "    42",
        "",
        "assistant (turn 2)",
        "  \\boxed{42}",
    ]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone"),  # would clear the screen
        ("\u202egnp.exe", "\\u202egnp.exe"),  # would read backwards
        ("a\rb\x00", "a\\rb\\x00"),
        ("tab\tand\nline, é, 数", "tab\tand\nline, é, 数"),
    ],
)
def test_nothing_reaches_the_terminal_but_text(text: str, shown: str) -> None:
    """Control and format characters are shown, not obeyed, wherever a model can put them."""
    assert escape_text(text) == shown
    (row,) = rows(trajectory(1, code=text, output=text))
    assert set("\x1b\u202e\r\x00").isdisjoint(render_trajectory(row, 80))


def test_records_are_chosen_by_id_and_verdict(tmp_path: Path) -> None:
    """An id means a trajectory or all of a problem; a torn last line is left out; an unknown id names the nearest."""
    file = tmp_path / "t.jsonl"
    write_rows(file, rows(trajectory(1), trajectory(2, correct=False), trajectory(3)))
    with file.open("a") as stream:
        stream.write('{"schema": 1')

    def ids(**conditions: Any) -> list[str]:
        chosen = {"record_id": None, "correct": None, "limit": 10, **conditions}
        return [row["id"] for row in select_records(file, **chosen).rows]

    assert ids() == ["p1#0", "p2#0", "p3#0"]
    assert ids(correct=True, limit=1) == ["p1#0"]
    assert ids(correct=False) == ["p2#0"]
    assert ids(record_id="p3") == ids(record_id="p3#0") == ["p3#0"]
    found = select_records(file, record_id=None, correct=True, limit=1)
    assert (found.num_matching, found.num_rows, found.is_torn) == (2, 3, True)
    with pytest.raises(DataError) as caught:
        ids(record_id="p9")
    assert "the nearest is p" in caught.value.hint


def test_a_run_shows_its_newest_trajectories_with_their_tokens(tmp_path: Path, repo_root: Path) -> None:
    """Tokens are decoded by the run's tokenizer, and cut where the mask changes."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(repo_root / "agentrl_cli" / "assets" / "tiny")
    prompt, said, result = (tokenizer(text)["input_ids"] for text in ("six times seven?", "6*7", "42"))
    with RunFolder.create(load_config("tiny", None, []), kind="rl", out=tmp_path / "run", digest="d") as run:
        for step in (1, 2):
            t = trajectory(step)
            t.prompt_ids, t.ids = prompt, [*said, *result]
            t.mask = [1] * len(said) + [0] * len(result)
            t.sampler_logp = [-0.5] * len(said) + [0.0] * len(result)
            t.turn_tokens, t.turn_versions = [len(said)], [0]
            write_step_records(run.trajectories, step, [t])
    found = select_records(tmp_path / "run", record_id=None, correct=None, limit=10)
    assert [row["id"] for row in found.rows] == ["p2#0"]
    ((first, second, third),) = read_spans(found.file, found.places)
    assert (first, second, third) == (
        Span("six times seven?", len(prompt), False),
        Span("6*7", len(said), True),
        Span("42", len(result), False),
    )
    total = len(prompt) + len(said) + len(result)
    assert render_spans([first, second, third]).splitlines() == [
        f"tokens: {len(said)} of {total} generated, in ⟦…⟧",
        "six times seven?⟦6*7⟧42",
    ]


def scores(step: int, accuracy: float) -> dict[str, Any]:
    """Return what a held-out evaluation has measured."""
    return {
        "step": step,
        "accuracy": accuracy,
        "accuracy_greedy": accuracy,
        "tool_calls": 1.0,
        "stderr": 0.125,
        "n": 2,
        "k": 1,
    }


def summary(run: Path, before: Sequence[Trajectory], after: Sequence[Trajectory]) -> list[str]:
    """Write both evaluations and render them."""
    for step, trajectories in ((0, before), (9, after)):
        write_rows(run / "eval" / f"step-{step:06d}.jsonl", rows(*trajectories))
    return render_before_after(run, scores(0, 0.25), scores(9, 0.75), width=80).splitlines()


def test_before_and_after_show_a_problem_that_was_learnt(tmp_path: Path) -> None:
    """The example is wrong before and right after where there is such a problem."""
    before = [trajectory(1), trajectory(2, correct=False, code="6*8")]
    lines = summary(tmp_path, before, [trajectory(1), trajectory(2)])
    assert lines[:5] == [
        "2 held-out problems x 1",
        "                        before   after",
        "accuracy                 0.250   0.750",
        "greedy accuracy          0.250   0.750",
        "tool calls a problem     1.000   1.000",
    ]
    assert lines.index("before (wrong)") < lines.index("      6*8") < lines.index("after (right)")
    assert "      6*7" in lines[lines.index("after (right)") :]
    pair = find_example(rows(trajectory(1)), rows(trajectory(1)))
    assert pair is not None
    assert [row["id"] for row in pair] == ["p1#0", "p1#0"]
    assert find_example(rows(trajectory(1)), rows(trajectory(2))) is None


def test_a_long_example_loses_its_middle(tmp_path: Path) -> None:
    """A hundred lines of output are cut to what fits on a screen, and the cut is said."""
    long = trajectory(1, output="\n".join(f"line {i}" for i in range(100)))
    lines = summary(tmp_path, [long], [long])
    # of the trajectory: two assistant turns of 4 and 2 lines, two empty lines, the tool's header and 100 lines
    assert lines.count(f"  … {109 - MAX_LINES} lines more") == 2
    assert "      line 0" in lines
    assert "      line 99" in lines
    assert "      line 50" not in lines
