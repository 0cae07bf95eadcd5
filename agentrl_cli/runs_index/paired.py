"""Evaluations of two runs on the same problems, compared problem by problem.

The difference of the two scores is taken within each problem, so what makes problems hard or easy drops
out; its standard error is clustered by problem, since the k samples of one problem are not independent
(Miller, "Adding Error Bars to Evals", arXiv 2411.00640, sections 2.2 and 4.2). The interval is a percentile
bootstrap over problems (`agentrl_cli.evaluation.scores.compare_paired`). The p-value is that of a two-sided
sign-flip test: without a difference between the runs, each problem's difference is as likely to have the
other sign (Fisher, The Design of Experiments, 1935, section 21). Up to 12 problems that differ, all sign
patterns are counted; beyond, a sample of them, with the observed one among them, so that p is never 0
(Phipson and Smyth, 2010, Stat. Appl. Genet. Mol. Biol. 9(1), article 39).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from agentrl_cli.errors import DataError
from agentrl_cli.evaluation.scores import compare_paired, standard_error
from agentrl_cli.files import read_rows
from agentrl_cli.records import row_to_trajectory

_MAX_EXACT = 12
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of one evaluation by problem."""

    k: int
    scores: Mapping[str, float]
    """avg@k by problem id."""
    golds: Mapping[str, str]
    """Gold answers by problem id: equal ids with other golds are other problems."""
    conditions: Mapping[str, float]
    """How it was sampled: temperature and top_p."""


def read_evaluation(file: Path, *, k: int, conditions: Mapping[str, float]) -> Evaluation:
    """Read the samples of an evaluation; of each problem the first k rows count (a greedy one may follow).

    Raises:
        DataError: the file can't be read, a problem has fewer rows, or a row has no verdict.
    """
    correct: dict[str, list[bool]] = {}
    golds: dict[str, str] = {}
    for row in read_rows(file)[0]:
        trajectory = row_to_trajectory(row)
        of_problem = correct.setdefault(trajectory.problem.id, [])
        golds[trajectory.problem.id] = trajectory.problem.answer
        if len(of_problem) == k:
            continue
        if trajectory.verdict is None:
            raise DataError(f"sample {trajectory.id!r} of {str(file)!r} has no verdict")
        of_problem.append(trajectory.verdict.correct)
    short = next((problem for problem, values in correct.items() if len(values) < k), None)
    if short is not None or not correct:
        raise DataError(f"{str(file)!r} has not {k} samples of each problem" + (f" ({short!r})" if short else ""))
    return Evaluation(k, {problem: fmean(values) for problem, values in correct.items()}, golds, conditions)


def why_not_comparable(first: Evaluation, second: Evaluation) -> str:
    """Return why two evaluations can't be paired, or an empty text."""
    if first.scores.keys() != second.scores.keys():
        shared = len(first.scores.keys() & second.scores.keys())
        return f"other problems: {len(first.scores)} and {len(second.scores)}, {shared} in both"
    differing = [problem for problem, gold in first.golds.items() if second.golds[problem] != gold]
    if differing:
        return f"{len(differing)} problems of the same id have another gold answer, such as {differing[0]!r}"
    if first.k != second.k:
        return f"{first.k} and {second.k} samples of each problem"
    if first.conditions != second.conditions:
        return f"sampled differently: {_show(first.conditions)} and {_show(second.conditions)}"
    return ""


def compare_evaluations(first: Evaluation, second: Evaluation, *, seed: int = 0) -> dict[str, Any]:
    """Return the paired difference, second minus first, of two evaluations that are comparable.

    Args:
        seed: Of the resampling.

    Returns:
        `{n, k, a, b, difference, stderr, low, high, p_value}`; stderr is None for a single problem.
    """
    problems = sorted(first.scores)
    differences = [second.scores[problem] - first.scores[problem] for problem in problems]
    interval = compare_paired(first.scores, second.scores, seed=seed)
    return {
        "n": len(problems),
        "k": first.k,
        "a": fmean(first.scores.values()),
        "b": fmean(second.scores.values()),
        "difference": interval.difference,
        "stderr": standard_error(differences),
        "low": interval.low,
        "high": interval.high,
        "p_value": sign_flip_p_value(differences, seed=seed),
    }


def sign_flip_p_value(differences: Sequence[float], *, seed: int, num_flips: int = 10_000) -> float:
    """Return the two-sided p-value of a mean difference of 0 under random signs; 1 if nothing differs."""
    values = np.array([value for value in differences if value != 0], dtype=np.float64)
    if not len(values):
        return 1.0
    least = abs(values.sum()) - _ROUNDING
    if len(values) <= _MAX_EXACT:
        signs = np.array(list(itertools.product((1, -1), repeat=len(values))))
        return float((abs(signs @ values) >= least).mean())
    signs = np.random.default_rng(seed).choice(np.array([1, -1], dtype=np.int8), size=(num_flips, len(values)))
    return (1 + int((abs(signs @ values) >= least).sum())) / (1 + num_flips)


def _show(conditions: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in conditions.items())
