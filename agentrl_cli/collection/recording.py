"""The file that a collection grows in: a row as soon as a trajectory is done, each trajectory once.

Beside it lies a card that says how the rows were made; rows made in another way are never mixed in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from agentrl_cli import __version__
from agentrl_cli.agent.batch import Job
from agentrl_cli.config.digest import changed_settings
from agentrl_cli.errors import DataError
from agentrl_cli.files import RowReader, RowWriter, atomic_file, card_path, clean_leftovers, write_atomic
from agentrl_cli.records import trajectory_to_row
from agentrl_cli.types import Ending, Trajectory

SCHEMA = 1


@dataclass(slots=True)
class Tally:
    """What is in the file of the trajectories that were asked for."""

    valid: int = 0
    correct: int = 0


class Recording:
    """An open file of trajectories; use it as a context manager, or close it.

    Trajectories that failed by infrastructure are kept until they are recorded again.
    """

    def __init__(self, path: Path, *, jobs: Sequence[Job], facts: Mapping[str, Any]) -> None:
        """Open the file, or begin it.

        Args:
            jobs: Trajectories wanted.
            facts: How they are made: teacher, settings.

        Raises:
            DataError: another process writes the file, or its rows were made in another way.
        """
        self.path = path
        self.card = card_path(path)
        self.done: set[str] = set()
        self.tally = Tally()
        self._order = {job.trajectory_id: i for i, job in enumerate(jobs)}
        self._facts: dict[str, Any] = {"schema": SCHEMA, "agentrl": __version__, **facts}
        self._writer = RowWriter(path, exclusive=True)
        try:
            clean_leftovers(path.parent, of=path.name)
            clean_leftovers(path.parent, of=self.card.name)
            if self._read({job.trajectory_id: job for job in jobs}):
                self._facts["identity"] = self._check_card().get("identity")
        except BaseException:
            self._writer.close()
            raise

    def begin(self, identity: Mapping[str, str]) -> None:
        """Say in the card how the rows to come are made.

        Args:
            identity: Of a local model, which is known once it is loaded.

        Raises:
            DataError: the rows that are there were made by another model.
        """
        self._facts["identity"] = dict(identity)
        if self.path.stat().st_size:
            self._check_card()
        self._write_card({})

    def add(self, trajectory: Trajectory) -> None:
        """Append a trajectory."""
        row = trajectory_to_row(trajectory, meta={"teacher": self._facts["teacher"]})
        self._writer.write(row)
        self._count(row)

    def finish(self) -> None:
        """Put the rows into the order of the jobs, whatever order they were done in, and complete the card.

        Of a trajectory recorded twice the later stays; rows that nobody asked for now stay before the others.
        """
        self._writer.sync()
        places: dict[str, tuple[int, int]] = {}
        numbers = []
        for line in RowReader(self.path):
            places[line.row["id"]] = (line.offset, len(line.raw))
            numbers.append(self._order.get(line.row["id"], -1))
        if len(places) < len(numbers) or numbers != sorted(numbers):
            ordered = sorted(places, key=lambda name: self._order.get(name, -1))
            with self.path.open("rb") as source, atomic_file(self.path) as file:
                for name in ordered:
                    offset, size = places[name]
                    source.seek(offset)
                    file.write(source.read(size) + b"\n")
        self._write_card({"rows": len(places)})

    def close(self) -> None:
        """Close the file; one without rows goes away."""
        self._writer.close()
        if self.path.exists() and not self.path.stat().st_size:
            self.path.unlink()
            self.card.unlink(missing_ok=True)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _read(self, jobs: Mapping[str, Job]) -> bool:
        """Note what is there; returns whether anything is."""
        number = 0
        for line in RowReader(self.path):
            row, number = line.row, line.number
            if not isinstance(row.get("id"), str) or row.get("ending") not in set(Ending):
                raise DataError(
                    f"line {number} of {str(self.path)!r} is no recorded trajectory", hint="give another --out"
                )
            job = jobs.get(row["id"])
            if job is None:
                continue
            if (row.get("problem"), row.get("answer")) != (job.problem.prompt, job.problem.answer):
                raise DataError(
                    f"line {number} of {str(self.path)!r}: {row['id']!r} is a trajectory of another problem than now",
                    hint="give another --out",
                )
            self._count(row)
        return number > 0

    def _count(self, row: Mapping[str, Any]) -> None:
        if row["id"] in self.done or not Ending(row["ending"]).is_valid:
            return
        self.done.add(row["id"])
        self.tally.valid += 1
        self.tally.correct += bool(row["verdict"] and row["verdict"]["correct"])

    def _check_card(self) -> dict[str, Any]:
        """Return the card of the rows that are there, if they were made as those to come."""
        try:
            card = json.loads(self.card.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(
                f"{str(self.path)!r} has rows, but no card says how they were made: {str(self.card)!r} can't be read",
                hint="give another --out",
            ) from error
        if not isinstance(card, dict):
            raise DataError(f"{str(self.card)!r} is no card of {str(self.path)!r}", hint="give another --out")
        then = {name: card.get(name) for name in self._facts if name != "agentrl"}
        now = {name: value for name, value in self._facts.items() if name != "agentrl"}
        if changed := changed_settings(then, now):
            raise DataError(
                f"{str(self.path)!r} was collected in another way: {', '.join(changed)} changed",
                hint="go on with the same teacher and settings, or give another --out",
            )
        return card

    def _write_card(self, counts: Mapping[str, int]) -> None:
        card = {**self._facts, "valid": self.tally.valid, "correct": self.tally.correct, **counts}
        write_atomic(self.card, json.dumps(card, indent=1) + "\n")
