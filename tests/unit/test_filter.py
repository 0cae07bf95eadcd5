"""`agentrl filter` as a whole: what is kept is unchanged, what is not is counted, nothing is half-written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.config.load import load_config
from agentrl_cli.config.schema import Config, FilterConfig
from agentrl_cli.errors import ConfigError, DataError
from agentrl_cli.files import read_rows
from agentrl_cli.filtering.filter import run_filter
from agentrl_cli.filtering.samples import call_results, looks_failed, read_sample
from agentrl_cli.records import trajectory_to_row
from agentrl_cli.reporting import NullReporter
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


class Warnings(NullReporter):
    """Keeps what it is warned of."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def warn(self, text: str) -> None:
        self.texts.append(text)


def record(
    name: str,
    *,
    problem: str,
    statuses: tuple[ToolStatus, ...] = (ToolStatus.OK,),
    correct: bool = True,
    ending: Ending = Ending.ANSWERED,
    level: int = 1,
    content: str = "42",
) -> dict[str, Any]:
    """Return a record with one call a status, then an answer."""
    calls = [ToolCall(f"call_{i}_0", "python", json.dumps({"code": f"{problem} {i}"})) for i in range(len(statuses))]
    messages: list[dict[str, Any]] = [{"role": "user", "content": problem}]
    for call in calls:
        function = {"name": call.name, "arguments": call.arguments}
        tool_call = {"id": call.id, "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [tool_call]},
            {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content},
        ]
    messages.append({"role": "assistant", "content": "\\boxed{42}"})
    trajectory = Trajectory(
        id=name,
        problem=Problem(problem, problem, "42", source="s", level=level),
        group_id=problem,
        seed=0,
        messages=messages,
        tools=[],
        turn_tokens=[1] * (len(calls) + 1),
        events=[
            ToolEvent(i, call, ToolResult(status, content))
            for i, (call, status) in enumerate(zip(calls, statuses, strict=True))
        ],
        ending=ending,
        verdict=Verdict(correct, VerdictStatus.OK, "42") if ending.is_valid else None,
    )
    return trajectory_to_row(trajectory)


def write(path: Path, rows: list[dict[str, Any]], *, tail: str = "") -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return path


def filtered(path: Path, **settings: Any) -> dict[str, Any]:
    config = Config(filter=FilterConfig(**settings))
    return run_filter(config, input=path, out=path.with_name("out.jsonl"), reporter=NullReporter())


def ids(path: Path) -> list[str]:
    return [row["id"] for row in read_rows(path)[0]]


OK, ERROR, INVALID = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.INVALID


def test_each_row_is_kept_or_counted_once(tmp_path: Path) -> None:
    """Reasons and kept rows add up to the input; statuses of the record decide, not the text of results."""
    rows = [
        record("a", problem="one", content="NameError: in a text that was printed"),
        record("b", problem="two", statuses=(ERROR, OK)),
        record("c", problem="three", statuses=(OK, ERROR)),
        record("d", problem="four", correct=False),
        record("e", problem="five", statuses=()),
        record("f", problem="six", statuses=(ERROR, ERROR, ERROR, OK)),
        record("g", problem="seven", ending=Ending.MAX_TOKENS),
        record("h", problem="eight", ending=Ending.INFRA_ERROR),
        record("i", problem="nine", statuses=(INVALID,)),
        record("j", problem="one"),
    ]
    result = filtered(write(tmp_path / "in.jsonl", rows))
    assert result == {
        "in": 10,
        "kept": 2,
        "rejected": {
            "ungrounded": 1,
            "wrong": 1,
            # a call that could not be read was not executed
            "too_few_calls": 2,
            "too_many_failed_calls": 1,
            "max_tokens": 1,
            "infra_error": 1,
            "duplicate": 1,
        },
        "data_entropy_bits": 1.0,  # one row in each of two cells: x1, and x2 recovered
        "file": str(tmp_path / "out.jsonl"),
        "card": str(tmp_path / "out.card.json"),
    }
    assert ids(tmp_path / "out.jsonl") == ["a", "b"]


def test_kept_rows_are_unchanged_byte_for_byte(tmp_path: Path) -> None:
    """Spacing, key order and keys that nobody here knows stay as they were."""
    row = record("a", problem="one") | {"extra": {"ü": [1.50, None]}}
    text = json.dumps(row, ensure_ascii=False, separators=(" , ", " : "))
    path = tmp_path / "in.jsonl"
    path.write_text(text + "\n\n", encoding="utf-8")
    filtered(path)
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == text + "\n"


def test_the_card_says_where_the_rows_come_from(tmp_path: Path) -> None:
    """Counts, settings, cells and a digest of the input lie beside the output."""
    path = write(tmp_path / "in.jsonl", [record("a", problem="one"), record("b", problem="two", level=2)])
    filtered(path, min_calls=1)
    card = json.loads((tmp_path / "out.card.json").read_text())
    assert card["input_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert card["settings"] == FilterConfig().model_dump(mode="json")
    assert card["cells"] == {"s/1/python x1": 1, "s/2/python x1": 1}
    assert (card["in"], card["kept"], card["data_entropy_bits"]) == (2, 2, 1.0)


def test_the_first_rows_of_a_problem_stay(tmp_path: Path) -> None:
    """max_per_problem counts kept rows of the same problem only, in the order of the file."""
    rows = [record(f"{p}{i}", problem=p, statuses=(OK,) * (i + 1)) for i in range(3) for p in ("one", "two")]
    rows.insert(0, record("wrong", problem="one", correct=False))
    result = filtered(write(tmp_path / "in.jsonl", rows), max_per_problem=2, near_duplicate_threshold=1.0)
    assert ids(tmp_path / "out.jsonl") == ["one0", "two0", "one1", "two1"]
    assert result["rejected"] == {"max_per_problem": 2, "wrong": 1}


@pytest.mark.parametrize("tail", ['{"schema": 1, "id"', '{"schema"\n', "[]\n", '{"text": "no messages"}\n'])
def test_a_row_that_cannot_be_read_is_left_out_and_said(tail: str, tmp_path: Path) -> None:
    """The rest of the file is used, the line is named in a warning; `data.strict` refuses it and writes nothing."""
    reporter = Warnings()
    path = write(tmp_path / "in.jsonl", [record("a", problem="one")], tail=tail)
    out = tmp_path / "out.jsonl"
    result = run_filter(Config(), input=path, out=out, reporter=reporter)
    assert (result["in"], result["kept"], result["rejected"]) == (2, 1, {"unreadable": 1})
    assert any("left out 1 of 2 rows" in text and "line 2" in text for text in reporter.texts)
    before = out.read_bytes()
    strict = load_config(None, None, ["data.strict=true"])
    with pytest.raises(DataError, match=r"line 2"):
        run_filter(strict, input=path, out=out, reporter=reporter)
    path.write_text(tail)
    with pytest.raises(DataError, match="none of the 1 rows"):
        run_filter(Config(), input=path, out=out, reporter=reporter)
    assert out.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.jsonl", "out.card.json", "out.jsonl"]


def test_too_little_variety_and_no_rows_are_said(tmp_path: Path) -> None:
    """Below 2.5 bits, and where nothing is left, there is a warning."""
    reporter = Warnings()
    path = write(tmp_path / "in.jsonl", [record("a", problem="one")])
    run_filter(Config(), input=path, out=tmp_path / "out.jsonl", reporter=reporter)
    assert "data entropy 0.00 bits over 1 cells is below 2.5" in reporter.texts[-1]
    write(path, [record("a", problem="one", correct=False)])
    assert run_filter(Config(), input=path, out=tmp_path / "out.jsonl", reporter=reporter)["kept"] == 0
    assert "no row was kept" in reporter.texts[-1]
    assert (tmp_path / "out.jsonl").read_bytes() == b""


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    """Writing onto the input is refused, under whatever name it is given."""
    path = write(tmp_path / "in.jsonl", [record("a", problem="one")])
    (tmp_path / "link.jsonl").symlink_to(path)
    with pytest.raises(ConfigError, match="--out is the input"):
        run_filter(Config(), input=path, out=tmp_path / "link.jsonl", reporter=NullReporter())


def plain_row(name: str, answer: str, boxed: str) -> dict[str, Any]:
    """Return a row with nothing but what OpenAI's format and a gold answer give."""
    function = {"name": "python", "arguments": json.dumps({"code": name})}
    return {
        "id": name,
        "messages": [
            {"role": "user", "content": f"What is {name}?"},
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c", "content": "?"},
            {"role": "assistant", "content": f"\\boxed{{{boxed}}}"},
        ],
        "answer": answer,
    }


def test_rows_of_other_origin_are_verified_by_their_answers(tmp_path: Path) -> None:
    """Integers and expressions are compared as in training; the row needs no verdict of its own."""
    rows = [
        plain_row("a", "42", "42"),
        plain_row("b", "42", "41"),
        plain_row("c", "\\frac{1}{2}+x", "x+0.5"),
        plain_row("d", "\\frac{1}{2}+x", "x+0.4"),
    ]
    result = filtered(write(tmp_path / "in.jsonl", rows))
    assert result["rejected"] == {"wrong": 2}
    assert ids(tmp_path / "out.jsonl") == ["a", "c"]


def test_rows_that_can_not_be_judged_are_errors(tmp_path: Path) -> None:
    """Without verdict and answer, requiring right answers is an error that names the line and the way out."""
    rows = [plain_row("a", "42", "42"), plain_row("b", "42", "42")]
    del rows[1]["answer"]
    path = write(tmp_path / "in.jsonl", rows)
    with pytest.raises(DataError, match=r"in\.jsonl', line 2: neither 'verdict' nor 'answer'") as caught:
        filtered(path)
    assert "require_correct=false" in caught.value.hint
    assert filtered(path, require_correct=False)["kept"] == 2


# ---------------------------------------------------------------------------------------------------------
# public trajectories of other projects


def verifiers_rows(file: Path) -> list[dict[str, Any]]:
    """Return rows with prompt and completion apart, and calls as JSON texts, as rows with OpenAI messages."""

    def message(raw: Mapping[str, Any]) -> dict[str, Any]:
        calls = [json.loads(call) for call in raw.get("tool_calls") or []]
        return {"role": raw["role"], "content": raw["content"], **({"tool_calls": calls} if calls else {})}

    return [
        {**row, "messages": [message(raw) for raw in (*row["prompt"], *row["completion"])]}
        for row in read_rows(file)[0]
    ]


@pytest.mark.parametrize(
    ("name", "num_calls", "num_results", "num_failed"),
    [
        ("verifiers_math_python_gpt41mini_a", 30, 30, 15),
        ("verifiers_math_python_gpt41mini_b", 27, 25, 6),
        ("verifiers_wiki_search_qwen3-4b", 101, 99, None),
    ],
)
def test_calls_results_and_failures_of_public_trajectories(
    public_data: Path, name: str, num_calls: int, num_results: int, num_failed: int | None
) -> None:
    """Counts are those that the description of the data states; what has no result is the calls of the last turns."""
    samples = [
        read_sample(row, line=i)
        for i, row in enumerate(verifiers_rows(public_data / "trajectories" / f"{name}.jsonl"), start=1)
    ]
    pairs = [pair for sample in samples for pair in call_results(sample.messages)]
    assert len(pairs) == num_calls
    assert sum(result is not None for _, result in pairs) == num_results
    if num_failed is not None:
        assert sum(looks_failed(result["content"]) for _, result in pairs if result) == num_failed


def test_rewarded_rows_without_a_completion_are_rejected(public_data: Path, tmp_path: Path) -> None:
    """A reward of 1.0 for an empty completion does not make a row fit."""
    rows = verifiers_rows(public_data / "trajectories" / "verifiers_tool_test_gpt41mini.jsonl")
    result = filtered(write(tmp_path / "in.jsonl", rows), require_correct=False, min_calls=0)
    assert result["rejected"] == {"no_final_message": 15}


def test_prompts_alone_are_no_trajectories(public_data: Path, tmp_path: Path) -> None:
    """Rows for RL, which hold a prompt and an answer, are rejected, not judged."""
    path = public_data / "trajectories" / "areal_tir_sample_math.jsonl"
    result = run_filter(Config(), input=path, out=tmp_path / "out.jsonl", reporter=NullReporter())
    assert (result["in"], result["rejected"]) == (10, {"no_final_message": 10})


def test_other_layouts_are_named(public_data: Path, tmp_path: Path) -> None:
    """A layout without messages, and one without anything to judge by, say so with the line."""
    folder = public_data / "trajectories"
    for name, words in [
        ("taubench_gpt4o_airline.jsonl", r"line 1: no list of 'messages'; the keys are \['task_id'"),
        ("glaive_toolcall_en_sharegpt.jsonl", r"line 1: no list of 'messages'; the keys are \['conversations'"),
        ("tora_examples_math.jsonl", "line 1: neither 'verdict' nor 'answer'"),
    ]:
        with pytest.raises(DataError, match=words):
            run_filter(Config(), input=folder / name, out=tmp_path / "out.jsonl", reporter=NullReporter())
