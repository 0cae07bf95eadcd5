"""One place that reads problems from anything: generated ones, local files, data sets by name or on the hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, cast, get_args

from agentrl_cli.config.schema import ColumnsConfig, GeneratedConfig
from agentrl_cli.data.catalog import CATALOG, HUB, DataSet, difference, find_dataset, nearest_name
from agentrl_cli.data.generated import Split, generate_problems
from agentrl_cli.data.hub import hub_rows
from agentrl_cli.data.layouts import infer_kind as infer_kind
from agentrl_cli.data.layouts import read_problem
from agentrl_cli.data.readers import RawRow, file_rows
from agentrl_cli.data.rows import Loaded, collect_problems
from agentrl_cli.errors import DataError
from agentrl_cli.types import Problem

GENERATED = "generated:"


class Check(Protocol):
    """Raises DataError for a problem that can't be used."""

    def __call__(self, problem: Problem, *, where: str) -> None:
        """Refuse the problem that stands at `where`, or do nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """How rows are read."""

    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    """Of files and `hub:` sets; the layouts of sets in the catalog are known."""
    strict: bool = False
    """Refuse a row that is no problem, in place of leaving it out with a warning."""
    check: Check | None = None
    """A further test of each problem; what fails it counts as a bad row."""
    limit: int = 0
    """Most problems; 0 takes all."""


def load_problems(
    source: str,
    *,
    generated: GeneratedConfig,
    seed: int,
    count: int = 0,
    reading: Reading | None = None,
    warn: Callable[[str], None] | None = None,
) -> list[Problem]:
    """Return the problems of a source, in a fixed order.

    Args:
        source: `generated:SPLIT`, or what `read_source` takes.
        generated: Families and levels of generated problems, and `num_train`, the number of them where
            `count` is 0.
        seed: Of the generated problems; anything else is read in its own order.
        count: Most problems to return; 0 returns all.
        reading: How rows are read; its `limit` is not used.
        warn: Is told what was left out, and what is not as expected.

    Raises:
        DataError: the source can't be read, or none of its rows; see `collect_problems`.
        ConfigError: families, levels or the number of generated problems do not fit.
    """
    if source.startswith(GENERATED):
        return generate_problems(
            _split(source.removeprefix(GENERATED)),
            count=count or generated.num_train,
            seed=seed,
            families=generated.families,
            levels=generated.levels,
        )
    loaded = read_source(source, replace(reading or Reading(), limit=count))
    if warn is not None:
        for text in loaded.warnings:
            warn(text)
    return loaded.problems


def read_source(source: str, reading: Reading) -> Loaded:
    """Return the problems of a local file, of a data set in the catalog, or of `hub:ORG/NAME`.

    Raises:
        DataError: there is no such source, it can't be read, or none of its rows can be used.
    """
    dataset = find_dataset(source)
    if dataset is None:
        return read_file(Path(source), reading)
    if not source.startswith(HUB):
        reading = replace(reading, columns=ColumnsConfig())
    hub = hub_rows(dataset)
    loaded = _read(hub.rows, reading, name=dataset.name, dataset=dataset)
    return replace(loaded, revision=hub.commit)


def read_file(path: Path, reading: Reading, *, dataset: DataSet | None = None) -> Loaded:
    """Return the problems of a local file.

    Args:
        dataset: The set that the file is a copy of: its kind of answers holds, and its content is compared.

    Raises:
        DataError: the file can't be read, or none of its rows can be used.
    """
    if not path.exists():
        raise _missing(str(path))
    return _read(file_rows(path), reading, name=str(path), dataset=dataset or DataSet(path.stem, "", ""))


def _read(rows: Iterable[RawRow], reading: Reading, *, name: str, dataset: DataSet) -> Loaded:
    """Read rows into problems; a pinned set is read to its end, whatever the limit, to be compared."""
    parse = partial(_parse, reading=reading, dataset=dataset)
    limit = 0 if dataset.digest else reading.limit
    loaded = collect_problems(rows, parse, name=name, strict=reading.strict, limit=limit)
    found = difference(dataset, loaded.problems)
    problems = loaded.problems[: reading.limit] if reading.limit else loaded.problems
    return replace(loaded, problems=problems, warnings=(*loaded.warnings, *([found] if found else [])))


def _parse(row: RawRow, *, reading: Reading, dataset: DataSet) -> Problem:
    if row.error:
        raise DataError(f"{row.where}: {row.error}")
    problem = read_problem(row.value, where=row.where, source=dataset.name, kind=dataset.kind, columns=reading.columns)
    if reading.check is not None:
        reading.check(problem, where=row.where)
    return problem


def _split(name: str) -> Split:
    if name in get_args(Split):
        return cast(Split, name)
    known = ", ".join(f"{GENERATED}{split}" for split in get_args(Split))
    raise DataError(f"unknown source '{GENERATED}{name}'", hint=f"generated sources are {known}")


def _missing(source: str) -> DataError:
    near = "" if Path(source).suffix else nearest_name(source)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", source) and not Path(source).suffix:
        near = HUB + source
    meant = f"did you mean {near!r}? " if near else ""
    return DataError(
        f"there is no file and no data set '{source}'",
        hint=f"{meant}give a file, {GENERATED}train, {HUB}ORG/NAME, or one of {', '.join(CATALOG)}",
    )
