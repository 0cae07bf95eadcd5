"""Layouts of public problem sets, each as a small row of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl_cli.config.schema import ColumnsConfig
from agentrl_cli.data.layouts import UnanswerableError, read_problem
from agentrl_cli.errors import DataError
from agentrl_cli.types import AnswerKind, Problem


def read(row: Any, **columns: str) -> Problem:
    """Read one row with a column map."""
    return read_problem(row, where="f:1", source="f", columns=ColumnsConfig(**columns))


def verl(truth: Any, **changes: Any) -> dict[str, Any]:
    """Return a row in the layout of verl."""
    row = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": "How many?"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": truth, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": 7},
    }
    return {**row, **changes}


@pytest.mark.parametrize(
    ("row", "answer"),
    [
        ({"problem": "How many?", "answer": 7}, "7"),
        ({"Problem": "How many?", "Answer": "025", "ID": "2024-I-1", "Solution": "…"}, "025"),
        ({"question": "How many?", "answer": "3+4=7\n#### 7"}, "7"),
        ({"prompt": "How many?", "ground_truth": " 7 "}, "7"),
        ({"QUESTION": "How many?", "gold": 2.5}, "2.5"),
        ({"problem": None, "prompt": "How many?", "answer": "", "gold": "7"}, "7"),
        ({"messages": [{"role": "user", "content": "How many?"}], "answer": "7"}, "7"),
        (verl("7"), "7"),
        (verl('["8"]'), "8"),
        (verl('[ "\\\\frac{1}{2}" ]'), "\\frac{1}{2}"),
        (verl(["8"]), "8"),
        (verl(8), "8"),
        (verl("[0,1]"), "[0,1]"),
        (verl("", reward_model='{"ground_truth": "9", "style": "rule"}'), "9"),
    ],
)
def test_text_and_gold_of_each_layout(row: dict[str, Any], answer: str) -> None:
    """The text and the gold are found whatever the columns are called, in capitals or not."""
    problem = read(row)
    assert (problem.prompt, problem.answer) == ("How many?", answer)


def test_what_a_verl_row_says() -> None:
    """Source, ability and index are taken over; equal content is one problem, whatever the index."""
    first, again = read(verl("7")), read(verl('["7"]', extra_info='{"index": "u-8"}'))
    assert (first.source, first.family, first.meta) == ("math_dapo", "MATH", {"index": 7})
    assert again.meta == {"index": "u-8"}
    assert first.id == again.id != read(verl("8")).id


def test_a_system_message_goes_in_front() -> None:
    """What a set says in a system message is not lost."""
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
    assert read(verl("7", prompt=prompt)).prompt == "Be brief.\n\nHow many?"


@pytest.mark.parametrize(
    "row",
    [
        verl("7", data_source="train-code-taco-hard"),
        verl(json.dumps({"inputs": ["1\n"], "outputs": ["2\n"]})),
        verl("{'inputs': ['1'], 'outputs': ['2'], 'fn_name': 'f'}"),
        verl(json.dumps({"import_prefix": "import math\n", "test_code": "assert f(1)", "entry_point": "f"})),
        verl({"inputs": ["1"], "outputs": ["2"]}),
        verl("x", reward_model=json.dumps({"ground_truth": json.dumps({"outputs": ["2"]})})),
        {"problem": "Write it.", "ability": "code", "reward_model": '{"ground_truth": "…"}'},
        {"problem": "Write it.", "answer": "print(1)", "kind": "code"},
    ],
)
def test_code_is_recognised(row: dict[str, Any]) -> None:
    """Rows that ask for code are told apart from bad ones, and never become problems."""
    with pytest.raises(UnanswerableError, match="f:1: answers of kind 'code'"):
        read(row)


@pytest.mark.parametrize("truth", ["{1, 2}", "\\{1,2\\}", '{"a": 1}'])
def test_sets_in_braces_are_no_code(truth: str) -> None:
    """A gold in braces is an answer."""
    assert read(verl(truth)).answer == truth


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ([1], "must be a JSON object, got list"),
        ({"problem": " ", "answer": 1}, "no text in any of the columns"),
        ({"problem": {"a": 1}, "answer": 1}, "no text in any of the columns"),
        ({"problem": "?", "answer": True}, "'answer' must be a text or a number, got True"),
        ({"problem": "?", "answer": [1]}, "'answer' must be a text or a number, got \\[1\\]"),
        ({"problem": "?", "answer": float("nan")}, "got nan"),
        ({"problem": "?", "answer": "so it is ####"}, "'answer' must be a text or a number"),
        ({"problem": "?", "answer": "1", "kind": "odd"}, "unknown kind 'odd'"),
        (verl('["1", "2"]'), "the ground truth lists 2 answers"),
        (verl(None), "'answer' is missing"),
        (verl("7", prompt=["How many?"]), "not of messages"),
        (verl("7", prompt=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]), "the roles"),
        (verl("7", prompt=[]), "the roles"),
    ],
)
def test_what_is_no_problem(row: Any, reason: str) -> None:
    """The reason says what is wrong, with the place in front."""
    with pytest.raises(DataError, match=f"^f:1: .*{reason}") as error:
        read(row)
    assert not isinstance(error.value, UnanswerableError)


def test_named_columns_win() -> None:
    """A column map reads any layout, capitals or not, over the names that are known."""
    row = {"Nr": 0, "Frage": "Wie viele?", "Loesung": "7", "Stufe": "4.0", "Gebiet": "Zahlen", "problem": "no"}
    problem = read(row, problem="frage", answer="Loesung", id="Nr", level="Stufe", family="Gebiet")
    assert problem == Problem("0", "Wie viele?", "7", AnswerKind.INTEGER, source="f", family="Zahlen", level=4)


def test_a_named_column_that_is_absent() -> None:
    """The message names the setting, the column and what is there instead."""
    with pytest.raises(DataError, match=r"no column 'Frage', .*data.columns.problem.*\['Question', 'answer'\]"):
        read({"Question": "?", "answer": 1}, problem="Frage")


@pytest.mark.parametrize(("level", "number"), [("Level 5", 5), (5, 5), (5.0, 5), ("3", 3), ("hard", 0), (None, 0)])
def test_levels(level: Any, number: int) -> None:
    """Difficulties are numbers, however written; words say none."""
    assert read({"problem": "?", "answer": 1, "level": level}).level == number
