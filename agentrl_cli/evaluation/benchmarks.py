r"""Loads the problems of a benchmark: read as any others, and each asking for its answer in `\boxed{}`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agentrl_cli.data.catalog import BENCHMARKS, find_dataset, nearest_name
from agentrl_cli.data.readers import SUFFIXES
from agentrl_cli.data.sources import Reading, read_file, read_source
from agentrl_cli.errors import DataError
from agentrl_cli.rewards.verify import check_gold
from agentrl_cli.types import Problem

INSTRUCTION = "Put your final answer within \\boxed{}."
"""Appended to problems that do not speak of a box themselves."""


def load_benchmark(
    name: str,
    data_path: Path | None,
    limit: int | None,
    *,
    reading: Reading | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[Problem]:
    r"""Return the problems of a benchmark in their own order, each asking for its answer in `\boxed{}`.

    Args:
        name: A data set of the catalog, `hub:ORG/NAME`, the path of a file, or with `data_path` any name.
        data_path: A local copy; None downloads the benchmark, or takes it from the cache.
        limit: Most problems to return; None returns all.
        reading: How rows are read; its `limit` and `check` are not used.
        warn: Is told what was left out, and that the problems are not those the name stands for.

    Raises:
        DataError: the name is unknown, the data can't be had, or none of its rows can be used.
    """
    dataset = find_dataset(name)
    if data_path is None and dataset is None and not Path(name).is_file():
        raise _unknown(name)
    reading = replace(reading or Reading(), limit=limit or 0, check=check_gold)
    loaded = read_source(name, reading) if data_path is None else read_file(data_path, reading, dataset=dataset)
    if warn is not None:
        for text in loaded.warnings:
            warn(text)
    return [add_instruction(problem) for problem in loaded.problems]


def add_instruction(problem: Problem) -> Problem:
    r"""Return the problem with the instruction to answer in `\boxed{}`, unless it has one."""
    if "\\boxed" in problem.prompt:
        return problem
    return replace(problem, prompt=f"{problem.prompt.rstrip()}\n\n{INSTRUCTION}")


def _unknown(name: str) -> DataError:
    if Path(name).suffix in SUFFIXES:
        return DataError(f"there is no file {name!r}", hint="give the path of a file, or a benchmark's name")
    near = nearest_name(name)
    meant = f"did you mean {near!r}? " if near else ""
    known = ", ".join(BENCHMARKS)
    return DataError(
        f"unknown benchmark {name!r}",
        hint=f"{meant}known are generated, {known}; any other problems are read from --data FILE or hub:ORG/NAME",
    )
