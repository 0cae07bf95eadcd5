"""Loads the problems of a benchmark, from a local copy or from the Hugging Face hub."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentrl_cli.data.sources import infer_kind
from agentrl_cli.errors import DataError
from agentrl_cli.rewards.verify import check_gold
from agentrl_cli.types import AnswerKind, Problem

INSTRUCTION = "Put your final answer within \\boxed{}."
"""Appended to problems that do not speak of a box themselves."""

_TEXT_COLUMNS = ("problem", "question", "prompt")
_ANSWER_COLUMNS = ("answer", "gold", "ground_truth")
_ID_COLUMNS = ("id", "unique_id", "task_id", "question_id")
_FAMILY_COLUMNS = ("family", "subject", "domain")
_GSM8K_MARK = "####"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark by name: where it comes from and how its answers are compared."""

    name: str
    dataset: str
    split: str
    kind: AnswerKind
    subset: str | None = None
    revision: str = "main"


BENCHMARKS: Mapping[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("aime2024", "HuggingFaceH4/aime_2024", "train", AnswerKind.INTEGER),
        Benchmark("aime2025", "math-ai/aime25", "test", AnswerKind.INTEGER),
        Benchmark("math500", "HuggingFaceH4/MATH-500", "test", AnswerKind.MATH),
        Benchmark("gsm8k", "openai/gsm8k", "test", AnswerKind.DECIMAL, subset="main"),
    )
}


def load_benchmark(name: str, data_path: Path | None, limit: int | None) -> list[Problem]:
    r"""Return the problems of a benchmark in their own order, each asking for its answer in `\boxed{}`.

    Rows need a text (`problem`, `question` or `prompt`) and an `answer` (case does not matter; of an answer
    with `####`, as GSM8K writes it, what follows counts). They may have `id`, `level`, `subject`, `source`; a
    file that is no known benchmark may have `kind`, else the answer decides.

    Args:
        name: A name in `BENCHMARKS`, the path of a JSONL file, or with `data_path` any name.
        data_path: A local copy as JSONL; None downloads the benchmark, or takes it from the cache.
        limit: Most problems to return; None returns all.

    Raises:
        DataError: the name is unknown, the data can't be had, or a row is not a problem; it names the row.
    """
    benchmark = BENCHMARKS.get(name)
    if data_path is None and benchmark is None and Path(name).is_file():
        data_path = Path(name)
    if data_path is not None:
        rows: Iterable[tuple[str, Mapping[str, Any]]] = _file_rows(data_path)
    elif benchmark is not None:
        rows = _hub_rows(benchmark)
    else:
        raise _unknown(name)
    source = benchmark.name if benchmark else (data_path or Path(name)).stem
    problems: dict[str, Problem] = {}
    for where, row in rows:
        problem = _read_row(row, kind=benchmark.kind if benchmark else None, source=source, where=where)
        if problem.id in problems:
            raise DataError(f"{where}: the id {problem.id!r} stands twice", hint="give each row its own id")
        problems[problem.id] = problem
        if limit is not None and len(problems) >= limit:
            break
    if not problems:
        raise DataError(f"{name!r} has no problems", hint="each row needs a problem and an answer")
    return list(problems.values())


def add_instruction(problem: Problem) -> Problem:
    r"""Return the problem with the instruction to answer in `\boxed{}`, unless it has one."""
    if "\\boxed" in problem.prompt:
        return problem
    return replace(problem, prompt=f"{problem.prompt.rstrip()}\n\n{INSTRUCTION}")


def _unknown(name: str) -> DataError:
    near = difflib.get_close_matches(name.lower(), BENCHMARKS, n=1, cutoff=0.5)
    meant = f"did you mean {near[0]!r}? " if near else ""
    known = ", ".join(BENCHMARKS)
    return DataError(
        f"unknown benchmark {name!r}",
        hint=f"{meant}known are generated, {known}; any other problems are read from --data FILE.jsonl",
    )


def _file_rows(path: Path) -> Iterable[tuple[str, Mapping[str, Any]]]:
    try:
        # Not splitlines(): it would cut a row at characters that JSON allows inside a string.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"can't read problems from '{path}': {error}", hint="give a UTF-8 JSONL file") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: not valid JSON ({error})", hint="each line is one JSON object") from error
        if not isinstance(row, dict):
            raise DataError(f"{where}: a row must be a JSON object, got {type(row).__name__}")
        yield where, row


def _hub_rows(benchmark: Benchmark) -> Iterable[tuple[str, Mapping[str, Any]]]:
    from datasets import load_dataset

    name = f"{benchmark.dataset} ({benchmark.split})"
    try:
        dataset = load_dataset(benchmark.dataset, benchmark.subset, split=benchmark.split, revision=benchmark.revision)
    except Exception as error:  # datasets and the hub client have dozens of their own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError(
            f"can't load {benchmark.name} from {name}: {reason}",
            hint=f"with a connection, run this again; without one, save the problems on another machine as JSONL rows "
            f'{{"problem": …, "answer": …}} and give them with --data FILE.jsonl (the set is '
            f"https://huggingface.co/datasets/{benchmark.dataset})",
        ) from error
    for number, row in enumerate(dataset, start=1):
        yield f"{name}, row {number}", row


def _read_row(row: Mapping[str, Any], *, kind: AnswerKind | None, source: str, where: str) -> Problem:
    columns = {str(name).lower(): value for name, value in row.items() if value is not None}
    found = list(row)
    text = _first(columns, _TEXT_COLUMNS)
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where}: no text in any of the columns {list(_TEXT_COLUMNS)}, found {found}")
    answer = _first(columns, _ANSWER_COLUMNS)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise DataError(f"{where}: no answer in any of the columns {list(_ANSWER_COLUMNS)}, found {found}")
    gold = str(answer).rpartition(_GSM8K_MARK)[2].strip()
    digest = hashlib.sha256(f"{text}\x1f{gold}".encode()).hexdigest()[:16]
    problem = Problem(
        id=str(_first(columns, _ID_COLUMNS) or digest),
        prompt=text,
        answer=gold,
        kind=kind or _kind(columns, gold, where=where),
        source=str(columns.get("source") or source),
        family=str(_first(columns, _FAMILY_COLUMNS) or ""),
        level=_level(columns),
    )
    check_gold(problem, where=where)
    return add_instruction(problem)


def _first(columns: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((columns[name] for name in names if name in columns), None)


def _kind(columns: Mapping[str, Any], gold: str, *, where: str) -> AnswerKind:
    if "kind" not in columns:
        return infer_kind(gold)
    try:
        return AnswerKind(str(columns["kind"]))
    except ValueError as error:
        hint = f"kinds are {', '.join(AnswerKind)}"
        raise DataError(f"{where}: unknown kind {columns['kind']!r}", hint=hint) from error


def _level(columns: Mapping[str, Any]) -> int:
    """Return a difficulty such as 5 or "Level 5"; 0 where the source has none or names it in words."""
    text = str(columns.get("level", "")).removeprefix("Level ")
    return int(text) if text.isdecimal() else 0
