"""Chooses the trajectories that are worth learning from, and says why the others are not.

Rows pass the detectors, then the search for duplicates, then the limit per problem, in the order of the
file; the first reason counts. What stays is written as it was read, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl_cli import __version__
from agentrl_cli.config.schema import Config, FilterConfig
from agentrl_cli.data.bad_rows import BadRows
from agentrl_cli.errors import ConfigError, DataError
from agentrl_cli.files import Line, RowReader, atomic_file, card_path, write_atomic
from agentrl_cli.filtering.detectors import build_detectors, find_reason
from agentrl_cli.filtering.diversity import LOW_ENTROPY_BITS, cell_of, entropy_bits
from agentrl_cli.filtering.duplicates import DuplicateFinder
from agentrl_cli.filtering.samples import Sample, read_sample
from agentrl_cli.reporting import Reporter
from agentrl_cli.rewards.verify import Response, check_gold, verify_all
from agentrl_cli.types import VerdictStatus

SCHEMA = 1
_CHUNK = 256
"""Rows verified together."""
PER_PROBLEM = "max_per_problem"
UNREADABLE = "unreadable"
"""Reason of rows that are no trajectories."""


def run_filter(config: Config, *, input: Path, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Write the rows of `input` that are fit to learn from to `out`, and a card beside it.

    Args:
        input: JSONL of records, or of rows with OpenAI messages; such rows are verified if they have an
            `answer`.
        out: JSONL; replaced if it is there.

    Returns:
        `{in, kept, rejected: {reason: rows}, data_entropy_bits, file, card}`; the entropy is that of the
        kept rows.

    Raises:
        ConfigError: `out` is `input`. DataError: a row can't be judged, none can be read, or one can't under
            `data.strict`; `out` is untouched.
    """
    if out.exists() and out.samefile(input):
        raise ConfigError(f"--out is the input, {str(input)!r}", hint="give another --out")
    chooser = Chooser(config.filter)
    bad = BadRows(str(input), strict=config.data.strict)
    num_rows = 0
    with atomic_file(out) as file:
        for line, sample in _samples(input, config, bad):
            num_rows += 1
            if chooser.accept(sample):
                file.write(line.raw + b"\n")
        if bad.num and not num_rows:
            raise DataError(f"none of the {bad.num} rows of {str(input)!r} can be used: {bad.first}")
    if bad.num:
        reporter.warn(bad.warning(num_rows + bad.num))
        chooser.rejected[UNREADABLE] = bad.num
    result = {
        "in": num_rows + bad.num,
        "kept": chooser.cells.total(),
        "rejected": dict(chooser.rejected.most_common()),
        "data_entropy_bits": round(entropy_bits(chooser.cells.values()), 4),
    }
    card = card_path(out)
    write_atomic(card, json.dumps(_card(config.filter, input, chooser, result), indent=1) + "\n")
    _warn(result, chooser, reporter)
    return {**result, "file": str(out), "card": str(card)}


class Chooser:
    """Decides row by row, and counts."""

    def __init__(self, config: FilterConfig) -> None:
        self.rejected: Counter[str] = Counter()
        self.cells: Counter[str] = Counter()
        self._detectors = build_detectors(config)
        self._duplicates = DuplicateFinder(config.near_duplicate_threshold)
        self._limit = config.max_per_problem
        self._per_problem: Counter[str] = Counter()

    def accept(self, sample: Sample) -> bool:
        """Return whether a sample is kept."""
        reason = find_reason(sample, self._detectors) or self._crowded(sample) or self._duplicates.check(sample)
        if reason:
            self.rejected[reason] += 1
            return False
        self._per_problem[sample.problem.id] += 1
        self.cells[cell_of(sample)] += 1
        return True

    def _crowded(self, sample: Sample) -> str | None:
        is_full = 0 < self._limit <= self._per_problem[sample.problem.id]
        return PER_PROBLEM if is_full else None


def _samples(path: Path, config: Config, bad: BadRows) -> Iterator[tuple[Line, Sample]]:
    """Yield the rows that are trajectories, judged where that is asked for; the others go to `bad`."""
    for chunk in _chunks(_readable(path, bad)):
        samples = [sample for _, sample in chunk]
        if config.filter.require_correct:
            samples = verify_samples(samples, path=path, timeout_s=config.rewards.verify_timeout_s)
        yield from zip((line for line, _ in chunk), samples, strict=True)


def _readable(path: Path, bad: BadRows) -> Iterator[tuple[Line, Sample]]:
    for line in RowReader(path, on_bad=bad.add):
        try:
            yield line, read_sample(line.row, line=line.number)
        except DataError as error:
            bad.add(DataError(f"{str(path)!r}, {error.message}", hint=error.hint))


def verify_samples(samples: Sequence[Sample], *, path: Path, timeout_s: float) -> list[Sample]:
    """Return samples with a verdict for those that have an answer but none yet.

    Raises:
        DataError: a row has neither, or an answer that can't be compared.
    """
    open_ones = [s for s in samples if s.is_correct is None and (s.ending is None or s.ending.is_valid)]
    for sample in open_ones:
        where = f"{str(path)!r}, line {sample.line}"
        if not sample.problem.answer:
            raise DataError(
                f"{where}: neither 'verdict' nor 'answer', so filter.require_correct can't be judged",
                hint="add the gold answers, or --set filter.require_correct=false",
            )
        check_gold(sample.problem, where=where)
    responses = [Response(sample.final_text, sample.problem) for sample in open_ones]
    verdicts = {
        sample.line: None if verdict.status is VerdictStatus.INFRA_ERROR else verdict.correct
        for sample, verdict in zip(open_ones, verify_all(responses, timeout_s=timeout_s), strict=True)
    }
    return [replace(s, is_correct=verdicts[s.line]) if s.line in verdicts else s for s in samples]


def _chunks(pairs: Iterator[tuple[Line, Sample]]) -> Iterator[list[tuple[Line, Sample]]]:
    while chunk := list(islice(pairs, _CHUNK)):
        yield chunk


def _card(config: FilterConfig, path: Path, chooser: Chooser, result: dict[str, Any]) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "schema": SCHEMA,
        "agentrl": __version__,
        "input": str(path),
        "input_sha256": digest,
        "settings": config.model_dump(mode="json"),
        **result,
        "cells": dict(sorted(chooser.cells.items())),
    }


def _warn(result: dict[str, Any], chooser: Chooser, reporter: Reporter) -> None:
    if not result["kept"]:
        reporter.warn("no row was kept: see the reasons, and the [filter] settings")
    elif result["data_entropy_bits"] < LOW_ENTROPY_BITS:
        reporter.warn(
            f"data entropy {result['data_entropy_bits']:.2f} bits over {len(chooser.cells)} cells is below "
            f"{LOW_ENTROPY_BITS}: add families, levels or ways to use the tool"
        )
