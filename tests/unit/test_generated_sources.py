"""Loading problems from generated sources and JSONL files."""

import json
import os
from pathlib import Path

import pytest

from agentrl_cli.config.schema import GeneratedConfig
from agentrl_cli.data.generated import generate_problems
from agentrl_cli.data.sources import infer_kind, load_problems
from agentrl_cli.errors import DataError
from agentrl_cli.types import AnswerKind

DATA = Path(os.environ.get("AGENTRL_TEST_DATA", Path(__file__).parents[3] / "shared" / "data"))


def write(path, *rows):
    """Write rows as JSONL and return the path as a source."""
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", encoding="utf-8")
    return str(path)


def load(source, **arguments):
    return load_problems(source, generated=GeneratedConfig(), seed=0, **arguments)


def test_generated_source_takes_its_settings():
    """`generated:SPLIT` draws from the named families and levels, `num_train` of them unless told otherwise."""
    config = GeneratedConfig(families=["total", "left"], levels=[2], num_train=30)
    problems = load_problems("generated:train", generated=config, seed=5)
    assert problems == generate_problems("train", count=30, seed=5, families=["total", "left"], levels=[2])
    assert len(load_problems("generated:test", generated=config, seed=5, count=12)) == 12


def test_unknown_generated_source_names_the_known_ones():
    """A misspelt split is answered with the list of splits."""
    with pytest.raises(DataError, match="generated:tests") as error:
        load("generated:tests")
    assert "generated:test" in error.value.hint


def test_rows_may_use_any_of_three_keys(tmp_path):
    """The text stands under `problem`, `prompt` or `question`; all else is optional but the answer."""
    source = write(
        tmp_path / "mine.jsonl",
        {"problem": "a?", "answer": 7},
        {"prompt": "b?", "answer": "x^2", "id": 3, "level": "Level 4", "family": "f"},
        {"question": "c?", "answer": " 2.50 ", "kind": "math", "meta": {"k": 1}},
    )
    first, second, third = load(source)
    assert (first.prompt, first.answer, first.kind, first.source) == ("a?", "7", AnswerKind.INTEGER, "mine")
    assert (second.id, second.level, second.family, second.kind) == ("3", 4, "f", AnswerKind.MATH)
    assert (third.answer, third.kind, third.meta) == ("2.50", AnswerKind.MATH, {"k": 1})
    assert len({first.id, third.id}) == 2
    assert load(source, count=2) == [first, second]


def test_kind_follows_from_the_gold():
    """Whole numbers are integers, numbers with a point decimals, anything else mathematics."""
    kinds = {"12": "integer", "-1,250": "integer", "0.5": "decimal", ".5": "decimal", "1,2": "math", "\\frac12": "math"}
    assert {text: infer_kind(text).value for text in kinds} == kinds


def test_unusual_line_separators_stay_inside_a_row(tmp_path):
    """A JSON text may hold U+2028; only a newline ends a row."""
    source = write(tmp_path / "u.jsonl", {"problem": "one\u2028two\x85", "answer": 1})
    assert load(source)[0].prompt == "one\u2028two\x85"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", ":1: not valid JSON"),
        ("[1]", ":1: a row must be a JSON object"),
        ('{"answer": 1}', ":1: no text"),
        ('{"problem": "a"}', ":1: 'answer'"),
        ('{"problem": "a", "answer": true}', ":1: 'answer'"),
        ('{"problem": "a", "answer": 1, "kind": "odd"}', ":1: unknown kind 'odd'"),
        ('{"id": 1, "problem": "a", "answer": 1}\n\n{"id": 1, "problem": "b", "answer": 1}', ":3: the id '1'"),
        ("\n", "no problems"),
    ],
)
def test_bad_rows_are_refused_with_their_line(tmp_path, text, message):
    """The message names file, line and what is wrong."""
    path = tmp_path / "bad.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load(str(path))


def test_missing_file_is_a_data_error(tmp_path):
    """A path that does not exist is told with the path."""
    with pytest.raises(DataError, match=r"nowhere\.jsonl"):
        load(str(tmp_path / "nowhere.jsonl"))


@pytest.mark.skipif(not DATA.is_dir(), reason=f"no public test data at {DATA}")
@pytest.mark.parametrize(("name", "count", "kind"), [("aime2024", 30, "integer"), ("gsm8k_test", 1319, "integer")])
def test_public_benchmarks_load(name, count, kind):
    """Real benchmark files load with all rows and the expected kind of answer."""
    problems = load(str(DATA / f"{name}.jsonl"))
    assert len(problems) == count
    assert {p.kind.value for p in problems} == {kind}
