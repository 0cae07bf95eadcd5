"""Verdicts on whole responses: the cases, kinds of false positives of symbolic comparison, public gold answers."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from pathlib import Path

import pytest

from agentrl_cli.errors import DataError
from agentrl_cli.evaluation.audit import audit_cases
from agentrl_cli.rewards.verify import Response, check_gold, verify, verify_all, vote_keys
from agentrl_cli.types import AnswerKind, Ending, Problem, Verdict, VerdictStatus

LIMIT_S = 5.0


def math(gold: str, answer: str) -> Verdict:
    """Verdict on a boxed expression."""
    text = f"So it is \\boxed{{{answer}}}."
    return verify(text, Problem("p", "", gold, AnswerKind.MATH), timeout_s=LIMIT_S)


def test_all_golden_cases(repo_root: Path) -> None:
    """Every case of answer verification has the verdict and the status that it should have."""
    report = audit_cases(repo_root / "tests" / "golden" / "verify_cases.jsonl", timeout_s=2.0)
    assert report["disagreements"] == []
    assert report["cases"] == report["agree"] == 42


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{2}", "0.50"),
        (r"6\sqrt{2}", r"\sqrt{72}"),
        (r"6\sqrt{2}", "6 sqrt(2)"),
        (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt3}"),
        (r"1-\frac{1}{\mathrm{e}}", r"\frac{e-1}{e}"),
        (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"),
        (r"\cot x", r"\frac{\cos x}{\sin x}"),
        ("(a+5)(b+2)", "ab+2a+5b+10"),
        ("1+2i", "2i+1"),
        ("-1", r"e^{i\pi}"),
        ("2^{99}", "633825300114114700748351602688"),
        (r"2^{400}+\sqrt{8}", r"2\sqrt{2}+2^{400}"),
        (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"),
        ("1,-2", r"-2 \text{ and } 1"),
        ("1,-2", r"\{-2,1\}"),
        ("(1,2)", "(x,y)=(1.0,2)"),
        (r"(-\infty, 2) \cup (3, \infty)", r"(3,\infty)\cup(-\infty,2)"),
        (r"x \in [-2,7]", "[-2,7]"),
        ("x=5", "5"),
        ("5", "x=5"),
        ("y = 2x + 3", "y - 2x - 3 = 0"),
        ("x<2", "2>x"),
        (r"\begin{pmatrix} -1/3 \\ 2 \end{pmatrix}", r"\begin{pmatrix} -\frac{1}{3} \\ 2 \end{pmatrix}"),
        ("4210_{5}", "4210"),
        (r"50\%", r"\frac{1}{2}"),
        (r"15\mbox{ cm}^2", "15"),
        (r"\text{(B)}", "B"),
        (r"\text{Evelyn}", "Evelyn"),
        (r"12\pi", "12\u03c0"),
    ],
)
def test_equal_expressions_are_right(gold: str, answer: str) -> None:
    """The form of an answer does not matter if it means the same."""
    assert math(gold, answer).correct


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{3}", "0.333333"),
        (r"\sqrt{2}", "1.41421356237"),
        (r"\pi", "3.14159265358979"),
        ("10^{-20}", r"2 \cdot 10^{-20}"),
        ("0", "10^{-40}"),
        ("0.1234567890123456789", "0.1234567890123456788"),
        ("2^{400}+1", "2^{400}"),
        (r"2^{400}+\sqrt{2}", "2^{400}"),
        (r"2^{400}+\sqrt{2}", r"2^{400}+\sqrt{3}"),
        ("1+2i", "1-2i"),
        ("a-b", "b-a"),
        ("3R^2", "3r^2"),
        ("0", "R-r"),
        (r"\sqrt{x^2}", "x"),
        ("5", "5t"),
        ("5", "5x"),
        ("3", "1 2"),
        ("6", "5, 6"),
        ("6", r"5 \text{ or } 6"),
        ("5", r"5 \text{ million}"),
        ("2", r"\pm 2"),
        (r"1 \pm \sqrt{19}", r"1+\sqrt{19}"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "1,2"),
        ("(1,2)", "[1,2]"),
        ("(1,2)", "(1,2]"),
        ("1,-2", "(1,-2)"),
        ("x=5", "y=5"),
        ("x=5", "-x=5"),
        ("x<2", r"x \le 2"),
        ("5x - 7y + 4 = 0", "5x - 7y + 5 = 0"),
        ("y = 2x + 3", "y = 3x + 2"),
        (r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}", r"\begin{pmatrix} -1 & 1 \\ 0 & -1 \end{pmatrix}"),
        ("4210_{5}", "4210_{7}"),
        ("13", "13_{8}"),
        (r"\frac{1}{2}", r"50 \text{ thousand}"),
        (r"\text{east}", "seat"),
        (r"\text{even}", "odd"),
        ("5", r"\frac{1}{0}"),
    ],
)
def test_unequal_expressions_are_wrong(gold: str, answer: str) -> None:
    """Rounding, tiny differences, dropped letters, lists, brackets and words never make a wrong answer right."""
    assert not math(gold, answer).correct


def test_exact_at_once_without_a_worker() -> None:
    """Integers, decimals, choices, words and equal texts need no process."""
    problems = [
        (Problem("a", "", "025", AnswerKind.INTEGER), "25"),
        (Problem("b", "", "2.5", AnswerKind.DECIMAL), "5/2"),
        (Problem("c", "", "C", AnswerKind.CHOICE), "(c)"),
        (Problem("d", "", r"\frac{x}{2}", AnswerKind.MATH), r"\dfrac{x}{2}"),
        (Problem("e", "", "12", AnswerKind.MATH), "12.0"),
    ]
    responses = [Response(f"\\boxed{{{answer}}}", problem) for problem, answer in problems]
    verdicts = verify_all(responses, timeout_s=LIMIT_S, pool=None)
    assert [v.correct for v in verdicts] == [True] * 5


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (Ending.ANSWERED, VerdictStatus.OK),
        (Ending.MAX_TOKENS, VerdictStatus.TRUNCATED),
        (Ending.MAX_TURNS, VerdictStatus.NO_ANSWER),
        (Ending.TOOL_LIMIT, VerdictStatus.NO_ANSWER),
    ],
)
def test_ending_decides_before_the_box(ending: Ending, status: VerdictStatus) -> None:
    """A complete right box counts only if the trajectory ended with an answer."""
    verdict = verify(r"\boxed{7}", Problem("p", "", "7"), ending=ending, timeout_s=LIMIT_S)
    assert (verdict.status, verdict.correct) == (status, ending is Ending.ANSWERED)


def test_batch_keeps_its_order() -> None:
    """Verdicts come back in the order of the responses, whichever way each was reached."""
    cases = [("7", "7"), (r"\sqrt{8}", r"2\sqrt{2}"), ("7", "8"), (r"\sqrt{8}", r"\sqrt{2}"), ("x", "7")]
    responses = [Response(f"\\boxed{{{a}}}", Problem("p", "", g, AnswerKind.MATH)) for g, a in cases]
    assert [v.correct for v in verify_all(responses, timeout_s=LIMIT_S)] == [True, True, False, False, False]


def test_works_from_threads_and_asyncio() -> None:
    """The limit does not rest on signals, so any thread may verify."""
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(math(r"\sqrt{8}", r"2\sqrt{2}").correct))
    thread.start()
    thread.join()

    async def ask() -> list[bool]:
        verdicts = await asyncio.gather(*(asyncio.to_thread(math, r"\sqrt{8}", f"{n}\\sqrt{{2}}") for n in range(4)))
        return [verdict.correct for verdict in verdicts]

    assert found == [True]
    assert asyncio.run(ask()) == [False, False, True, False]


def test_code_in_an_answer_is_never_run(tmp_path: Path) -> None:
    """An answer that is Python is text to the verifier."""
    target = tmp_path / "written"
    verdict = math("5", f'__import__("pathlib").Path("{target}").touch()')
    assert not verdict.correct
    assert not target.exists()


@pytest.mark.parametrize(
    ("gold", "kind"),
    [
        ("2.5", AnswerKind.INTEGER),
        ("x", AnswerKind.DECIMAL),
        ("A or B", AnswerKind.CHOICE),
        ("print(1)", AnswerKind.CODE),
        (" ", AnswerKind.MATH),
    ],
)
def test_golds_that_cant_be_compared_are_refused(gold: str, kind: AnswerKind) -> None:
    """A gold that is not of its kind is the data's fault, and says so; code is refused by name."""
    with pytest.raises(DataError, match=f"row 3: .*{kind.value}"):
        check_gold(Problem("p", "", gold, kind), where="row 3")


def test_equal_wrong_answers_share_a_vote() -> None:
    """Answers are one class if their values are equal, in whatever form; others are not."""
    answers = ["0.5", r"\frac{1}{2}", r"\sqrt{8}", r"2\sqrt{2}", "x+1", "1+x", "x-1", "%&?"]
    keys = vote_keys(answers, AnswerKind.MATH, timeout_s=LIMIT_S)
    assert keys["0.5"] == keys[r"\frac{1}{2}"]
    assert keys[r"\sqrt{8}"] == keys[r"2\sqrt{2}"]
    assert keys["x+1"] == keys["1+x"]
    assert len(set(keys.values())) == 5


def perturbed(gold: str) -> list[str]:
    """Copies of a gold with one digit raised by 1 (9 becomes 0), or its sign flipped."""
    spans = [match.span() for match in re.finditer(r"\d", gold)]
    changed = [f"{gold[:a]}{(int(gold[a]) + 1) % 10}{gold[b:]}" for a, b in spans]
    return [*changed, gold[1:] if gold.startswith("-") else f"-{gold}"]


@pytest.mark.parametrize(
    ("file", "kind", "num_rows"),
    [
        ("aime2024.jsonl", AnswerKind.INTEGER, 30),
        ("aime2025.jsonl", AnswerKind.INTEGER, 30),
        ("gsm8k_test.jsonl", AnswerKind.DECIMAL, 1319),
        ("math500.jsonl", AnswerKind.MATH, 500),
    ],
)
def test_public_golds_verify(public_data: Path, file: str, kind: AnswerKind, num_rows: int) -> None:
    """Every gold answer is right for itself."""
    rows = [json.loads(line) for line in (public_data / file).read_text(encoding="utf-8").splitlines()]
    problems = [Problem(row["id"], "", row["answer"], kind) for row in rows]
    responses = [Response(f"\\boxed{{{problem.answer}}}", problem) for problem in problems]
    verdicts = verify_all(responses, timeout_s=LIMIT_S)
    assert [p.answer for p, v in zip(problems, verdicts, strict=True) if not v.correct] == []
    assert len(verdicts) == num_rows


def test_public_golds_reject_changed_digits_and_signs(public_data: Path) -> None:
    """A gold with another digit or sign is wrong, but for 0, which has no sign, and letters of words."""
    rows = [json.loads(line) for line in (public_data / "math500.jsonl").read_text(encoding="utf-8").splitlines()]
    golds = [row["answer"] for row in rows][::8]
    # A power of a unit is no part of the value.
    golds = [gold for gold in golds if gold != "0" and "mbox" not in gold]
    responses = [
        Response(f"\\boxed{{{wrong}}}", Problem("p", "", gold, AnswerKind.MATH))
        for gold in golds
        for wrong in perturbed(gold)
    ]
    assert len(responses) > 100
    verdicts = verify_all(responses, timeout_s=LIMIT_S)
    accepted = [(r.problem.answer, r.text) for r, v in zip(responses, verdicts, strict=True) if v.correct]
    assert accepted == []
