"""The summary of an evaluation, from scored trajectories."""

from __future__ import annotations

import pytest

from agentrl_cli.errors import DataError, TrainingError
from agentrl_cli.evaluation.report import is_on_tool, summarise
from agentrl_cli.types import (
    AnswerKind,
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


def sample(
    extracted: str = "",
    *,
    correct: bool = False,
    status: VerdictStatus = VerdictStatus.OK,
    ending: Ending = Ending.ANSWERED,
    calls: tuple[tuple[ToolStatus, str], ...] = (),
    tokens: int = 10,
    kind: AnswerKind = AnswerKind.INTEGER,
) -> Trajectory:
    """A scored trajectory with the given answer and calls (status, output)."""
    events = [ToolEvent(0, ToolCall("c", "python", "{}"), ToolResult(s, output)) for s, output in calls]
    return Trajectory(
        id="t",
        problem=Problem("p", "", "7", kind),
        group_id="g",
        seed=0,
        messages=[],
        tools=[],
        turn_tokens=[tokens],
        events=events,
        ending=ending,
        verdict=Verdict(correct, status, extracted),
    )


RIGHT = sample("7", correct=True, calls=((ToolStatus.OK, "7\n"), (ToolStatus.ERROR, "Error: no")), tokens=20)
WRONG = sample("8", calls=((ToolStatus.INVALID, "Error: not JSON"),))
SILENT = sample(status=VerdictStatus.NO_ANSWER, ending=Ending.MAX_TURNS)
CUT = sample("7", status=VerdictStatus.TRUNCATED, ending=Ending.MAX_TOKENS, tokens=40)


def test_summary_by_hand() -> None:
    """Scores, shares and behaviour of two problems with four samples each."""
    got = summarise([[RIGHT, RIGHT, WRONG, SILENT], [WRONG, SILENT, CUT, RIGHT]], k_list=[1, 2])
    assert (got["n"], got["k"]) == (2, 4)
    # problem means 2/4 and 1/4: mean 3/8, sd (ddof 1) of the two = 0.25 / sqrt(2), over sqrt(2) = 0.125
    assert got["avg_at_k"] == pytest.approx(0.375)
    assert got["stderr"] == pytest.approx(0.125)
    assert (got["pass_at_k"], got["pass_all_k"]) == (1.0, 0.0)
    # votes right 2 : wrong 1 scores 1; right 1 : wrong 1 scores 1/2 (the cut and the silent do not vote)
    assert got["maj_at_k"] == pytest.approx(0.75)
    assert got["no_answer_frac"] == pytest.approx(2 / 8)
    # max_turns twice, max_tokens once
    assert got["truncated_frac"] == pytest.approx(3 / 8)
    assert got["status"] == {"no_answer": 2, "ok": 5, "truncated": 1}
    assert got["endings"] == {"answered": 5, "max_tokens": 1, "max_turns": 2}
    # three right ones with two executed calls; the two invalid calls were not executed
    assert got["tool_calls"] == pytest.approx(6 / 8)
    assert got["failed_call_frac"] == pytest.approx(5 / 8)
    assert got["tool_success"] == pytest.approx(3 / 6)
    assert got["answers_on_tool_frac"] == 1.0
    # 3 x 20 + 4 x 10 + 40
    assert got["generated_tokens"] == pytest.approx(140 / 8)
    # pass@2 = 1 - C(n-c, 2) / C(4, 2): 1 - 1/6 and 1 - 3/6
    assert got["by_k"]["2"]["pass_at_k"] == pytest.approx((5 / 6 + 3 / 6) / 2)
    assert got["by_k"]["1"]["pass_at_k"] == pytest.approx(0.375)


def test_equal_wrong_answers_vote_together() -> None:
    """Wrong answers of one value are one class, also as expressions, and outvote a right minority."""
    integers = [RIGHT, sample("8"), sample("08.0")]
    assert summarise([integers])["maj_at_k"] == 0.0
    math = AnswerKind.MATH
    formulas = [sample("7", correct=True, kind=math), sample(r"\sqrt{8}", kind=math), sample(r"2\sqrt{2}", kind=math)]
    assert summarise([formulas])["maj_at_k"] == 0.0
    # three classes of one vote each
    assert summarise([[RIGHT, sample("8"), sample("9")]])["maj_at_k"] == pytest.approx(1 / 3)


def test_shares_of_nothing_are_none() -> None:
    """Without calls and right answers there are no shares of them, and one problem has no standard error."""
    got = summarise([[SILENT]])
    assert got["stderr"] is None
    assert got["failed_call_frac"] is None
    assert got["tool_success"] is None
    assert got["answers_on_tool_frac"] is None


@pytest.mark.parametrize(
    ("answer", "status", "output", "expected"),
    [
        ("1234", ToolStatus.OK, "total: 1,234.0", True),
        ("1234", ToolStatus.OK, "12345", False),
        ("1234", ToolStatus.OK, "x1234", False),
        ("1234", ToolStatus.ERROR, "1234", False),
        (r"\frac{3}{4}", ToolStatus.OK, "3/4", True),
        ("-3", ToolStatus.OK, "[-3, 5]", True),
        ("3", ToolStatus.OK, "-3", False),
        ("x+1", ToolStatus.OK, "x + 1", True),
        ("", ToolStatus.OK, "anything", False),
    ],
)
def test_answer_on_tool(answer: str, status: ToolStatus, output: str, expected: bool) -> None:
    """An answer rests on a tool if a successful call printed its value as a number of its own."""
    assert is_on_tool(sample(answer, correct=True, calls=((status, output),))) is expected


def test_missing_samples_fail_loudly() -> None:
    """Unequal numbers of samples, none at all, or a k above them are errors."""
    with pytest.raises(DataError, match=r"between 1 .* and 2 samples"):
        summarise([[RIGHT, WRONG], [RIGHT]])
    with pytest.raises(DataError, match="no samples"):
        summarise([])
    with pytest.raises(DataError, match="got 2"):
        summarise([[RIGHT, WRONG]], k_list=[3])


def test_lost_samples_fail_loudly() -> None:
    """A sample that the infrastructure lost is neither wrong nor left out."""
    lost = sample(ending=Ending.INFRA_ERROR)
    lost.error = "sandbox is gone"
    with pytest.raises(TrainingError, match=r"1 of 2 .*sandbox is gone"):
        summarise([[RIGHT, lost]])
