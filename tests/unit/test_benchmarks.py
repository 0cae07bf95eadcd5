"""Loading of benchmarks: kinds, the instruction, what a name stands for, and errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.config.schema import ColumnsConfig
from agentrl_cli.data.sources import Reading
from agentrl_cli.errors import DataError
from agentrl_cli.evaluation.benchmarks import INSTRUCTION, load_benchmark
from agentrl_cli.types import AnswerKind


def write(path: Path, *rows: dict[str, Any]) -> Path:
    """Write rows as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "row", "answer", "kind"),
    [
        ("aime2024", {"ID": "2024-I-1", "Problem": "How many?", "Answer": "025"}, "025", AnswerKind.INTEGER),
        ("aime2025", {"problem": "How many?", "answer": 70}, "70", AnswerKind.INTEGER),
        (
            "math500",
            {"problem": "What?", "answer": "\\frac12", "level": 5, "unique_id": "u"},
            "\\frac12",
            AnswerKind.MATH,
        ),
        ("gsm8k", {"question": "How much?", "answer": "6+6=<<6+6=12>>12\n#### 1,200"}, "1,200", AnswerKind.DECIMAL),
        ("mine", {"prompt": "What?", "answer": "12"}, "12", AnswerKind.INTEGER),
        ("mine", {"prompt": "What?", "answer": "1.5"}, "1.5", AnswerKind.DECIMAL),
        ("mine", {"prompt": "What?", "answer": "x+1"}, "x+1", AnswerKind.MATH),
        ("mine", {"prompt": "What?", "answer": "C", "kind": "choice"}, "C", AnswerKind.CHOICE),
    ],
)
def test_columns_and_kinds(tmp_path: Path, name: str, row: dict[str, Any], answer: str, kind: AnswerKind) -> None:
    """Each layout is read, and the kind comes from the benchmark, the row or the gold, in this order."""
    (problem,) = load_benchmark(name, write(tmp_path / "rows.jsonl", row), None)
    assert (problem.answer, problem.kind) == (answer, kind)
    assert problem.prompt.endswith(INSTRUCTION)


def test_what_a_row_may_say(tmp_path: Path) -> None:
    """Id, level, subject and source are taken over; a prompt that asks for a box is left as it is."""
    row = {"id": 3, "problem": "Answer in \\boxed{}.", "answer": "1", "level": "Level 5", "subject": "Algebra"}
    (problem,) = load_benchmark("mine", write(tmp_path / "mine.jsonl", row), None)
    assert (problem.id, problem.level, problem.family, problem.source) == ("3", 5, "Algebra", "mine")
    assert problem.prompt == "Answer in \\boxed{}."


def test_limit_and_path_as_name(tmp_path: Path) -> None:
    """A file may stand in place of a name, and a limit takes its first problems without reading the rest."""
    rows = [{"id": str(i), "problem": f"{i}?", "answer": str(i)} for i in range(4)]
    file = write(tmp_path / "rows.jsonl", *rows)
    file.write_text(file.read_text() + "{broken\n")
    strict = Reading(strict=True)
    assert [p.id for p in load_benchmark(str(file), None, 3, reading=strict)] == ["0", "1", "2"]
    with pytest.raises(DataError, match=r"rows.jsonl:5: not valid JSON"):
        load_benchmark(str(file), None, None, reading=strict)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"task": "?", "answer": "1"}, r"rows.jsonl:2: no text .*found \['task', 'answer'\]"),
        ({"problem": "?", "solution": "1"}, r"rows.jsonl:2: 'answer' is missing.*found \['problem', 'solution'\]"),
        ({"problem": "?", "answer": "x+1"}, r"rows.jsonl:2: the gold answer 'x\+1' is no integer"),
    ],
)
def test_bad_rows_are_left_out_with_a_warning(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    """A row that is no problem is left out; the warning names its line and the columns that it has."""
    file = write(tmp_path / "rows.jsonl", {"id": "first", "problem": "?", "answer": "1"}, row)
    warnings: list[str] = []
    assert [p.id for p in load_benchmark("aime2025", file, None, warn=warnings.append)] == ["first"]
    assert "left out 1 of 2 rows" in warnings[0]
    with pytest.raises(DataError, match=message):
        load_benchmark("aime2025", file, None, reading=Reading(strict=True))


def test_code_is_refused(tmp_path: Path) -> None:
    """A file of nothing but problems whose answers can't be verified is refused."""
    file = write(tmp_path / "rows.jsonl", {"problem": "?", "answer": "print(1)", "kind": "code"})
    with pytest.raises(DataError, match="can't be verified yet"):
        load_benchmark("mine", file, None)


def test_a_copy_may_have_columns_of_its_own(tmp_path: Path) -> None:
    """A column map reads a local copy of any layout, and the benchmark's kind still holds."""
    file = write(tmp_path / "rows.jsonl", {"Frage": "Wie viele?", "Loesung": "025"})
    reading = Reading(columns=ColumnsConfig(problem="Frage", answer="Loesung"))
    (problem,) = load_benchmark("aime2024", file, None, reading=reading)
    assert (problem.answer, problem.kind, problem.source) == ("025", AnswerKind.INTEGER, "aime2024")


@pytest.mark.parametrize(("name", "near"), [("amie2025", "aime2025"), ("MATH-500", "math500"), ("gsm", "gsm8k")])
def test_unknown_name_gets_the_nearest(name: str, near: str) -> None:
    """A mistyped benchmark is answered with the name that was probably meant, and with --data."""
    with pytest.raises(DataError, match="unknown benchmark") as error:
        load_benchmark(name, None, None)
    assert f"did you mean {near!r}" in error.value.hint
    assert "--data" in error.value.hint


def test_another_content_under_a_name_is_told(tmp_path: Path) -> None:
    """A file that is not the set its name stands for is used, with a warning."""
    file = write(tmp_path / "rows.jsonl", {"problem": "How many?", "answer": 70})
    warnings: list[str] = []
    assert len(load_benchmark("aime2025", file, None, warn=warnings.append)) == 1
    assert warnings == [
        "aime2025: 1 problems in place of 30: this is not the set that published figures are about",
    ]


@pytest.mark.parametrize(
    ("name", "file", "num_problems"),
    [
        ("aime2024", "aime2024.jsonl", 30),
        ("aime2025", "aime2025.jsonl", 30),
        ("math500", "math500.jsonl", 500),
        ("gsm8k", "gsm8k_test.jsonl", 1319),
    ],
)
def test_public_benchmarks_load(public_data: Path, name: str, file: str, num_problems: int) -> None:
    """The public sets load in full and without a warning, with ids of their own and golds of their kind."""
    warnings: list[str] = []
    problems = load_benchmark(name, public_data / file, None, warn=warnings.append)
    assert len({problem.id for problem in problems}) == num_problems
    assert warnings == []
