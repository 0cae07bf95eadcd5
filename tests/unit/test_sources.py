"""Reading of problem sources: file formats, bad and repeated rows, and what a source may be called."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.config.schema import ColumnsConfig, GeneratedConfig
from agentrl_cli.data.sources import Reading, load_problems, read_file, read_source
from agentrl_cli.errors import DataError
from agentrl_cli.rewards.verify import check_gold
from agentrl_cli.types import Problem

ROWS = [{"id": "a", "problem": "1+1?", "answer": 2}, {"id": "b", "problem": "Größe?", "answer": "x\n"}]


def pairs(problems: list[Problem]) -> list[tuple[str, str, str]]:
    """Return what ROWS say."""
    return [(problem.id, problem.prompt, problem.answer) for problem in problems]


def jsonl(path: Path, *rows: Any) -> Path:
    """Write rows as JSONL; a text is written as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def as_jsonl(path: Path) -> None:
    path.write_text("\ufeff" + "\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS), encoding="utf-8")


def as_json(path: Path) -> None:
    path.write_text(json.dumps(ROWS), encoding="utf-8")


def as_parquet(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({name: [str(row[name]) for row in ROWS] for name in ("id", "problem", "answer")})
    parquet.write_table(table, path)


def as_csv(path: Path) -> None:
    path.write_text('id,problem,answer,kind\r\na,1+1?,2,\r\nb,Größe?,"x\n",math\r\n', encoding="utf-8-sig", newline="")


def as_german_csv(path: Path) -> None:
    path.write_text("id;problem;answer\na;1+1?;2\nb;Größe?;x\n", encoding="utf-8")


def as_tsv(path: Path) -> None:
    path.write_text("id\tproblem\tanswer\na\t1+1?\t2\nb\tGröße?\tx\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "save"),
    [
        ("p.jsonl", as_jsonl),
        ("p.ndjson", as_jsonl),
        ("p.json", as_json),
        ("p.parquet", as_parquet),
        ("p.csv", as_csv),
        ("P.CSV", as_german_csv),
        ("p.tsv", as_tsv),
    ],
)
def test_all_formats_say_the_same(tmp_path: Path, name: str, save: Any) -> None:
    """JSONL, JSON, parquet and CSV are told apart by suffix and give the same problems."""
    save(tmp_path / name)
    loaded = read_file(tmp_path / name, Reading(strict=True))
    assert pairs(loaded.problems) == [("a", "1+1?", "2"), ("b", "Größe?", "x")]
    assert loaded.warnings == ()


def test_nested_parquet_rows(tmp_path: Path) -> None:
    """The layout of verl comes through parquet as lists and structs, nulls filled in."""
    import pyarrow
    from pyarrow import parquet

    rows = [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": f"{source}?", "name": None}],
            "reward_model": {"ground_truth": truth, "style": "rule"},
            "extra_info": {"index": 0},
        }
        for source, truth in (("math_dapo", "34"), ("train-math-deepscaler", '["8"]'), ("train-code-taco", "{}"))
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rl.parquet")
    loaded = read_file(tmp_path / "rl.parquet", Reading())
    assert [(p.prompt, p.answer) for p in loaded.problems] == [("math_dapo?", "34"), ("train-math-deepscaler?", "8")]
    assert len(loaded.warnings) == 1
    assert "left out 1 code problems" in loaded.warnings[0]


def test_bad_rows_are_counted_and_three_are_named(tmp_path: Path) -> None:
    """The rest is used; one warning counts what was left out and names the first three, each with its reason."""
    good = {"problem": "?", "answer": 1}
    file = jsonl(tmp_path / "p.jsonl", "{", good, "[1]", {"problem": "?"}, {"answer": 1}, {"answer": 2})
    warnings: list[str] = []
    problems = load_problems(str(file), generated=GeneratedConfig(), seed=0, warn=warnings.append)
    assert [problem.answer for problem in problems] == ["1"]
    (warning,) = warnings
    assert warning.startswith(f"{file}: left out 5 of 6 rows")
    assert f"{file}:1: not valid JSON" in warning
    assert f"{file}:3: a row must be a JSON object" in warning
    assert f"{file}:4: 'answer' is missing" in warning
    assert f"{file}:5" not in warning
    assert warning.endswith("; and 2 more")


def test_a_torn_last_line_is_a_bad_row(tmp_path: Path) -> None:
    """A file that was cut off inside a character loses its last row only."""
    file = tmp_path / "p.jsonl"
    file.write_bytes(b'{"problem": "?", "answer": 1}\n' + '{"problem": "Grö'.encode()[:-1])
    loaded = read_file(file, Reading())
    assert len(loaded.problems) == 1
    assert f"{file}:2: not valid JSON" in loaded.warnings[0]


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("p.jsonl", '{"problem": "?", "answer": 1}\n\n{\n', "p.jsonl:3: not valid JSON"),
        ("p.json", '[{"problem": "?", "answer": 1}, 3]', "p.json, row 2: a row must be a JSON object"),
        ("p.csv", "problem,answer\n?,1\n?,\n", "p.csv, row 2: 'answer' is missing"),
        ("p.csv", "problem,answer\n?,1\n?,1,2\n", "p.csv, row 2: more cells than columns"),
        ("p.csv", 'problem,answer\n?,1\n?,"1\n', "p.csv, row 2: not valid CSV"),
    ],
)
def test_strict_refuses_the_first_bad_row(tmp_path: Path, name: str, text: str, place: str) -> None:
    """Under strict a bad row is an error with file and row; otherwise the same words are in the warning."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=place) as error:
        read_file(tmp_path / name, Reading(strict=True))
    assert error.value.hint
    loaded = read_file(tmp_path / name, Reading())
    assert len(loaded.problems) == 1
    assert place in loaded.warnings[0]


def test_a_file_without_a_usable_row_is_an_error(tmp_path: Path) -> None:
    """With a reason, strict or not; and code alone is told from bad rows."""
    with pytest.raises(DataError, match=r"none of the 2 rows .*p.jsonl:1: not valid JSON"):
        read_file(jsonl(tmp_path / "p.jsonl", "{", "["), Reading())
    with pytest.raises(DataError, match="only code problems"):
        read_file(jsonl(tmp_path / "c.jsonl", {"problem": "?", "answer": "f", "kind": "code"}), Reading())
    with pytest.raises(DataError, match="holds no problems"):
        read_file(jsonl(tmp_path / "e.jsonl", ""), Reading())


def test_repeated_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    """Equal ids with equal content are one problem; without ids, equal content is the same problem too."""
    row, other = {"id": 1, "problem": "?", "answer": 1}, {"problem": "??", "answer": 1}
    loaded = read_file(jsonl(tmp_path / "p.jsonl", row, other, row, other, row), Reading(strict=True))
    assert [problem.prompt for problem in loaded.problems] == ["?", "??"]
    assert loaded.warnings == (f"{tmp_path / 'p.jsonl'}: left out 3 rows that repeat an earlier one",)


@pytest.mark.parametrize("change", [{"problem": "??"}, {"answer": 2}])
def test_one_id_for_two_problems_is_an_error(tmp_path: Path, change: dict[str, Any]) -> None:
    """Which of the two is meant can't be known, strict or not."""
    row = {"id": 1, "problem": "?", "answer": 1}
    with pytest.raises(DataError, match=r"p.jsonl:2: the id '1' stands twice"):
        read_file(jsonl(tmp_path / "p.jsonl", row, {**row, **change}), Reading())


def test_a_check_makes_bad_rows(tmp_path: Path) -> None:
    """A gold that can't be compared counts as a bad row, with its place."""
    rows = [{"problem": "?", "answer": answer, "kind": "integer"} for answer in ("1", "one half")]
    loaded = read_file(jsonl(tmp_path / "p.jsonl", *rows), Reading(check=check_gold))
    assert [problem.answer for problem in loaded.problems] == ["1"]
    assert "p.jsonl:2: the gold answer 'one half' is no integer answer" in loaded.warnings[0]


def test_a_column_map_reads_any_table(tmp_path: Path) -> None:
    """Columns of other names are read as the settings say; one that is absent is an error with those there."""
    (tmp_path / "p.csv").write_text("Nr;Frage;Loesung\n1;Wie viele?;7\n", encoding="utf-8")
    columns = ColumnsConfig(problem="Frage", answer="Loesung", id="Nr")
    assert pairs(read_file(tmp_path / "p.csv", Reading(columns=columns)).problems) == [("1", "Wie viele?", "7")]
    with pytest.raises(DataError, match=r"no column 'Antwort', .*\['Nr', 'Frage', 'Loesung'\]"):
        read_file(tmp_path / "p.csv", Reading(columns=ColumnsConfig(problem="Frage", answer="Antwort")))


@pytest.mark.parametrize(
    ("name", "content", "message", "hint"),
    [
        ("p.xlsx", b"x", "unknown suffix '.xlsx'", ".parquet"),
        ("p.json", b"{", "is not valid JSON", ".jsonl"),
        ("p.json", b'{"data": []}', "must hold a list of problems, got dict", ""),
        ("p.json", b"[\xff]", "can't read problems from", "UTF-8"),
        ("p.csv", b"problem,answer\n\xff,1\n", "can't read problems from", "UTF-8"),
        ("p.parquet", b"PAR0", "as parquet after row 0", ""),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, content: bytes, message: str, hint: str) -> None:
    """A file that can't be read at all is an error that says why."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        read_file(tmp_path / name, Reading())
    assert hint in error.value.hint


def test_a_folder_is_answered_with_a_file_of_it(tmp_path: Path) -> None:
    """A downloaded data set is a folder; the hint names a file in it."""
    (tmp_path / "data").mkdir()
    file = jsonl(tmp_path / "data" / "test.jsonl", ROWS[0])
    with pytest.raises(DataError, match="is a folder") as error:
        read_file(tmp_path, Reading())
    assert str(file) in error.value.hint


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("gsm9k", "did you mean 'gsm8k'?"),
        ("openai/gsm8k", "did you mean 'hub:openai/gsm8k'?"),
        ("no/such.jsonl", "hub:ORG/NAME"),
    ],
)
def test_what_is_not_there(source: str, hint: str) -> None:
    """A source that is neither file nor data set is answered with what was probably meant."""
    with pytest.raises(DataError, match=f"no file and no data set '{source}'") as error:
        read_source(source, Reading())
    assert hint in error.value.hint


def test_the_pages_own_file_example(tmp_path: Path, repo_root: Path) -> None:
    """The row and the column map that docs/data.md shows are read as it says."""
    page = (repo_root / "docs" / "data.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith('{"problem"'))
    (problem,) = read_file(jsonl(tmp_path / "p.jsonl", row), Reading(strict=True)).problems
    assert (problem.prompt, problem.answer) == ("What is 6*7?", "42")
    settings = tomllib.loads(page.partition("```toml\n")[2].partition("```")[0])
    (tmp_path / settings["data"]["train"]).write_text("Frage;Loesung\nWie viele?;7\n", encoding="utf-8")
    columns = ColumnsConfig.model_validate(settings["data"]["columns"])
    (problem,) = read_file(tmp_path / settings["data"]["train"], Reading(columns=columns)).problems
    assert (problem.prompt, problem.answer) == ("Wie viele?", "7")
