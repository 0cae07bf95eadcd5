"""The detectors, one by one: each on a row that it must reject and on its nearest neighbour that it must not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl_cli.config.schema import FilterConfig
from agentrl_cli.errors import DataError
from agentrl_cli.filtering.detectors import build_detectors, find_reason
from agentrl_cli.filtering.diversity import cell_of, entropy_bits
from agentrl_cli.filtering.duplicates import DuplicateFinder, bands
from agentrl_cli.filtering.samples import Sample, looks_failed, read_sample
from agentrl_cli.types import AnswerKind, Ending, Problem

ANSWER = {"role": "assistant", "content": "So \\boxed{42}."}
FAILED = "ZeroDivisionError: division by zero"


def call(code: str, *, call_id: str = "c0", name: str = "python", arguments: Any = None) -> dict[str, Any]:
    text = json.dumps({"code": code}) if arguments is None else arguments
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def turn(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def result(content: str, *, call_id: str | None = "c0") -> dict[str, Any]:
    message = {"role": "tool", "content": content}
    return message if call_id is None else {**message, "tool_call_id": call_id}


def row(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "6*7?"}, *messages], "verdict": {"correct": True}, **fields}


def reason(given: dict[str, Any], **settings: Any) -> str | None:
    return find_reason(read_sample(given, line=1), build_detectors(FilterConfig(**settings)))


GOOD = (turn(call("6*7")), result("42"), ANSWER)
RECOVERED = (turn(call("1/0")), result(FAILED), turn(call("6*7", call_id="c1")), result("42", call_id="c1"), ANSWER)


def test_a_sound_row_is_kept() -> None:
    """A call, its result and a boxed answer pass; so do a recovered failure and parallel calls in any order."""
    assert reason(row(*GOOD)) is None
    assert reason(row(*RECOVERED)) is None
    both = turn(call("6", call_id="a"), call("7", call_id="b"))
    assert reason(row(both, result("7", call_id="b"), result("6", call_id="a"), ANSWER)) is None
    assert reason(row(both, result("6", call_id=None), result("7", call_id=None), ANSWER)) is None


@pytest.mark.parametrize(
    ("expected", "messages"),
    [
        ("orphan_call", (turn(call("6*7")), ANSWER)),
        ("orphan_call", (turn(call("6", call_id="a"), call("7", call_id="b")), result("6", call_id="a"), ANSWER)),
        ("orphan_call", (*GOOD[:2], result("again"), ANSWER)),
        ("orphan_call", (result("from nowhere"), ANSWER)),
        ("orphan_call", (turn(call("6*7")), result("42", call_id="other"), ANSWER)),
        ("orphan_call", (turn(call("6*7")), {"role": "user", "content": "go on"}, result("42"), ANSWER)),
        ("orphan_call", (*GOOD[:2], turn(call("6*7", call_id="c1")))),
        ("bad_arguments", (turn(call("", arguments='{"code": "6*7"')), result("42"), ANSWER)),
        ("bad_arguments", (turn(call("", arguments="[1]")), result("42"), ANSWER)),
        ("bad_arguments", (turn(call("6*7", name="")), result("42"), ANSWER)),
        ("no_final_message", GOOD[:2]),
        ("no_final_message", (*GOOD, {"role": "user", "content": "thanks"})),
        ("no_final_message", ()),
        ("empty_final_message", (*GOOD[:2], {"role": "assistant", "content": " \n"})),
        ("empty_final_message", (*GOOD[:2], {"role": "assistant", "content": None})),
        ("no_answer", (*GOOD[:2], {"role": "assistant", "content": "It is 42."})),
        ("no_answer", (*GOOD[:2], {"role": "assistant", "content": "\\boxed{}"})),
        ("no_answer", (*GOOD[:2], {"role": "assistant", "content": "<think>\\boxed{42}</think> Done."})),
        ("too_few_calls", (ANSWER,)),
        ("ungrounded", (turn(call("1/0")), result(FAILED), ANSWER)),
    ],
)
def test_unsound_rows_are_rejected_for_their_reason(expected: str, messages: tuple[dict[str, Any], ...]) -> None:
    """Calls without results, calls that can't be read, missing answers and answers on a failed call."""
    assert reason(row(*messages)) == expected


def test_arguments_may_be_objects() -> None:
    """Rows of other origin hold arguments as an object instead of text."""
    assert reason(row(turn(call("", arguments={"code": "6*7"})), result("42"), ANSWER)) is None


def test_wrong_and_unverified_answers_are_told_apart() -> None:
    """Only where right answers are required does either count."""
    wrong, unverified = row(*GOOD, verdict={"correct": False}), row(*GOOD, verdict=None)
    assert (reason(wrong), reason(unverified)) == ("wrong", "unverified")
    assert reason(wrong, require_correct=False) is None
    assert reason(unverified, require_correct=False) is None


def test_call_limits_follow_the_settings() -> None:
    """Each limit rejects one beyond it and nothing before."""
    assert reason(row(ANSWER), min_calls=0) is None
    assert reason(row(*GOOD), min_calls=2) == "too_few_calls"
    assert reason(row(*RECOVERED), max_failed_calls=1) is None
    assert reason(row(*RECOVERED), max_failed_calls=0) == "too_many_failed_calls"
    failed = row(turn(call("1/0")), result(FAILED), ANSWER)
    assert reason(failed, require_recovery=False) is None


def test_the_row_is_doubted_before_the_answer() -> None:
    """A row with several faults is counted under the one that makes the others meaningless."""
    assert reason(row(turn(call("6*7")), verdict={"correct": False})) == "orphan_call"
    assert reason(row(turn(call("1/0")), result(FAILED), ANSWER, verdict={"correct": False})) == "wrong"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Traceback (most recent call last):\n  File x\nNameError: name 'a' is not defined", True),
        ("some output\nNameError: name 'a' is not defined", True),
        ("Error: no such reservation", True),
        ("sympy.SympifyError: bad", True),
        ("KeyboardError", True),
        ("", False),
        ("42", False),
        ("The mean error: 0.5", False),
        ("Errors found in the text are listed below", False),
        ("line one\nError: in the middle\nline three", False),
    ],
)
def test_failed_results_are_told_by_their_text(content: str, expected: bool) -> None:
    """Rows without statuses: a traceback, or a first or last line that names an error."""
    assert looks_failed(content) is expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"prompt": "x"}, r"line 7: no list of 'messages'; the keys are \['prompt'\]"),
        ({"messages": []}, "no list of 'messages'"),
        ({"messages": [{"role": "robot", "content": ""}]}, "message 0 has no role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content of message 0 is list"),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": ["{}"]}]}, "tool_calls that are not"),
        ({"messages": [{"role": "user", "content": ""}], "kind": "essay"}, "unknown kind 'essay'"),
        ({"schema": 2, "id": "x"}, "line 7: record 'x' has schema 2"),
        ({"schema": 1, "id": "x"}, "line 7: record 'x' is incomplete"),
    ],
)
def test_rows_of_another_layout_are_errors_with_their_line(given: dict[str, Any], words: str) -> None:
    """What can't be read is said, never rejected as if it were bad data."""
    with pytest.raises(DataError, match=words):
        read_sample(given, line=7)


def sample(problem: str = "p", *codes: str, **fields: Any) -> Sample:
    return read_sample(row(*(turn(call(code)) for code in codes), problem=problem, **fields), line=1)


WORDS = " ".join(f"w{i}" for i in range(104))


def changed(*positions: int) -> str:
    """WORDS with other words at some positions."""
    return " ".join(f"x{i}" if i in positions else f"w{i}" for i in range(104))


def test_equal_samples_are_duplicates() -> None:
    """Case and white space do not matter; another call or another problem does."""
    finder = DuplicateFinder(1.0)
    assert finder.check(sample("What is 6*7?", "print(6*7)")) is None
    assert finder.check(sample("what is  6*7?", "print( 6*7 )")) == "duplicate"
    assert finder.check(sample("What is 6*7?", "print(7*6)")) is None
    assert finder.check(sample("What is 6*8?", "print(6*7)")) is None
    assert finder.check(sample("What is 6*7?")) is None


@pytest.mark.parametrize("threshold", [0.5, 0.8, 0.9, 0.95])
def test_near_duplicates_are_those_over_the_threshold(threshold: float) -> None:
    """Similarity is the Jaccard index of word 5-grams: 104 words have 100 of them, a changed word takes 5 away."""
    finder = DuplicateFinder(threshold)
    assert finder.check(sample(WORDS)) is None
    # one word at the end: 1 gram differs, 99 / 101 = 0.98
    assert finder.check(sample(changed(103))) == "near_duplicate"
    # twelve words in the middle, far apart: 60 grams differ, 40 / 160 = 0.25
    assert finder.check(sample(changed(*range(5, 101, 8)))) is None


def test_a_threshold_of_one_finds_equal_ones_only() -> None:
    """The nearest of near-duplicates is kept."""
    finder = DuplicateFinder(1.0)
    assert finder.check(sample(WORDS)) is None
    assert finder.check(sample(changed(103))) is None
    assert finder.check(sample(WORDS)) == "duplicate"


def test_a_rejected_sample_is_not_remembered() -> None:
    """A chain of near ones is not swallowed whole: only what was kept rejects others."""
    finder = DuplicateFinder(0.55)
    assert finder.check(sample(WORDS)) is None
    # the last 20 words are in 20 of 100 grams: 80 / 120 = 0.67
    assert finder.check(sample(changed(*range(84, 104)))) == "near_duplicate"
    # the first 20 as well: as near to the one before, but 60 / 140 = 0.43 to the one that was kept
    assert finder.check(sample(changed(*range(20), *range(84, 104)))) is None


@pytest.mark.parametrize("threshold", [0.05, 0.3, 0.5, 0.7, 0.9, 0.95, 0.99])
def test_few_pairs_at_the_threshold_are_missed(threshold: float) -> None:
    """The bands find 99 of 100 pairs that are just near enough, within 128 hashes."""
    number, size = bands(threshold)
    assert number * size <= 128
    assert (1 - threshold**size) ** number <= 0.01


def test_short_texts_are_not_alike() -> None:
    """Texts of fewer words than a gram are near only if they are equal."""
    finder = DuplicateFinder(0.5)
    assert finder.check(sample("1 + 1")) is None
    assert finder.check(sample("1 + 2")) is None
    assert finder.check(sample("1 + 1")) == "duplicate"


def test_entropy_is_in_bits() -> None:
    """Eight even cells are 3 bits, one cell none; 1/2, 1/4, 1/4 are 1/2 * 1 + 2 * 1/4 * 2 = 1.5 bits."""
    assert entropy_bits([5] * 8) == pytest.approx(3.0)
    assert entropy_bits([7]) == 0.0
    assert entropy_bits([]) == 0.0
    assert entropy_bits([2, 1, 1, 0]) == pytest.approx(1.5)


def test_cells_are_domain_level_and_tool_pattern() -> None:
    """The family stands before the source; five calls count as four; recovery is a pattern of its own."""
    assert cell_of(sample("p")) == "unknown/0/no tools"
    assert cell_of(read_sample(row(*GOOD, source="s", level="Level 5"), line=1)) == "s/5/python x1"
    assert cell_of(read_sample(row(*RECOVERED, source="s", family="f", level=2), line=1)) == "f/2/python x2 recovered"
    assert cell_of(sample("p", *"12345")) == "unknown/0/python x4"
    unrecovered = row(*GOOD[:2], turn(call("1/0", call_id="c1")), result(FAILED, call_id="c1"), ANSWER)
    assert cell_of(read_sample(unrecovered, line=1)) == "unknown/0/python x2"


@pytest.mark.parametrize("ending", [e for e in Ending if e not in (Ending.ANSWERED, Ending.NO_ANSWER)])
def test_endings_of_records_are_reasons(ending: Ending) -> None:
    """A record that was cut is rejected for it, even with an answer in its last message."""
    messages = [{"role": "user", "content": "6*7?"}, *GOOD]
    cut = Sample(1, Problem("p", "6*7?", "42", AnswerKind.INTEGER), messages, [], ending, is_correct=True)
    assert find_reason(cut, build_detectors(FilterConfig())) == str(ending)
