"""Turns rows into problems: what is bad is left out and counted, or refused; nothing is dropped in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agentrl_cli.data.bad_rows import BadRows
from agentrl_cli.data.layouts import UnanswerableError
from agentrl_cli.data.readers import RawRow
from agentrl_cli.errors import DataError
from agentrl_cli.types import Problem


@dataclass(frozen=True, slots=True)
class Loaded:
    """Problems of one source, and what has to be said about them."""

    problems: list[Problem]
    warnings: tuple[str, ...] = ()
    """What was left out and what is not as expected, a sentence each."""
    revision: str = ""
    """Commit of the data set on the Hugging Face hub that the rows are from; empty if unknown, or no hub set."""


@dataclass(slots=True)
class _Tally:
    """Counts what was left out of one source."""

    name: str
    bad: BadRows
    num_rows: int = 0
    num_code: int = 0
    num_repeated: int = 0

    def warnings(self) -> tuple[str, ...]:
        """Return a sentence for each reason why rows were left out."""
        texts = []
        if self.bad.num:
            texts.append(self.bad.warning(self.num_rows))
        if self.num_code:
            texts.append(f"{self.name}: left out {self.num_code} code problems: code can't be verified yet")
        if self.num_repeated:
            texts.append(f"{self.name}: left out {self.num_repeated} rows that repeat an earlier one")
        return tuple(texts)

    def nothing_left(self) -> DataError:
        """Return the error for a source without a usable row."""
        if self.bad.num:
            return DataError(
                f"none of the {self.num_rows} rows of '{self.name}' can be used: {self.bad.first}",
                hint="each row needs a problem and an answer; for columns of other names set data.columns",
            )
        if self.num_code:
            return DataError(
                f"'{self.name}' holds only code problems: answers of kind 'code' can't be verified yet",
                hint="give problems of kind integer, decimal, math or choice",
            )
        return DataError(f"'{self.name}' holds no problems", hint="each row needs a problem and an answer")


def collect_problems(
    rows: Iterable[RawRow], parse: Callable[[RawRow], Problem], *, name: str, strict: bool = False, limit: int = 0
) -> Loaded:
    """Return the problems of the rows in order, each once.

    Args:
        parse: Makes a problem of a row, or raises DataError.
        name: What messages call the source.
        strict: Refuse the first row that is no problem, in place of leaving it out.
        limit: Stop once there are so many problems, with the rest unread; 0 reads all.

    Raises:
        DataError: no row can be used, a bad row stands under `strict`, or one id stands for different problems.
    """
    tally = _Tally(name, BadRows(name, strict=strict))
    found: dict[str, Problem] = {}
    for row in rows:
        tally.num_rows += 1
        try:
            problem = parse(row)
        except UnanswerableError:
            tally.num_code += 1
            continue
        except DataError as error:
            tally.bad.add(error)
            continue
        if problem.id in found:
            _check_same(found[problem.id], problem, where=row.where)
            tally.num_repeated += 1
            continue
        found[problem.id] = problem
        if len(found) == limit:
            break
    if not found:
        raise tally.nothing_left()
    return Loaded(list(found.values()), warnings=tally.warnings())


def _check_same(first: Problem, again: Problem, *, where: str) -> None:
    if (first.prompt, first.answer) != (again.prompt, again.answer):
        raise DataError(
            f"{where}: the id {again.id!r} stands twice, for different problems",
            hint="give each row its own id, or name another column with data.columns.id",
        )
