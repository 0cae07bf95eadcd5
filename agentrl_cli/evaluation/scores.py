"""Scores over k samples of each problem: avg@k, pass@k, pass^k, maj@k, their standard error, and comparison.

All are expectations over k samples drawn without replacement from the n that exist, computed exactly; k > n is
an error. A sample is a whole trajectory; one without an answer counts as a sample but never votes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from agentrl_cli.errors import DataError


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean difference between two models over the same problems, with a bootstrap interval."""

    difference: float
    """Second minus first."""
    low: float
    high: float
    p_value: float
    """Two-sided: twice the smaller share of resamples on one side of 0, at most 1."""
    num_problems: int


def avg_at_k(correct: Sequence[bool]) -> float:
    """Return the share of right samples of one problem."""
    _require_samples(len(correct), 1)
    return sum(correct) / len(correct)


def pass_at_k(num_samples: int, num_correct: int, *, k: int) -> float:
    """Return the probability that at least one of k samples is right: 1 - C(n-c, k) / C(n, k)."""
    _require_samples(num_samples, k)
    assert 0 <= num_correct <= num_samples, (num_correct, num_samples)
    return float(1 - Fraction(math.comb(num_samples - num_correct, k), math.comb(num_samples, k)))


def pass_all_k(num_samples: int, num_correct: int, *, k: int) -> float:
    """Return pass^k, the probability that all k samples are right: C(c, k) / C(n, k)."""
    _require_samples(num_samples, k)
    assert 0 <= num_correct <= num_samples, (num_correct, num_samples)
    return float(Fraction(math.comb(num_correct, k), math.comb(num_samples, k)))


def maj_at_k(votes: Sequence[str | None], right: str | None, *, k: int) -> float:
    """Return the expected score of the majority vote among k samples.

    A vote that ties for first place scores 1 / (number tied) if the right answer is among the tied.

    Args:
        votes: Class of each sample's answer, None where there is no answer.
        right: Class of the right answer, None if no sample has it.
    """
    _require_samples(len(votes), k)
    counts = Counter(vote for vote in votes if vote is not None)
    num_right = counts.pop(right, 0) if right is not None else 0
    num_silent = len(votes) - num_right - counts.total()
    expected = sum(
        (
            math.comb(num_right, drawn) * _ways_to_win(drawn, list(counts.values()), k - drawn, num_silent)
            for drawn in range(1, min(k, num_right) + 1)
        ),
        Fraction(0),
    )
    return float(expected / math.comb(len(votes), k))


def standard_error(problem_means: Sequence[float]) -> float | None:
    """Return the standard error clustered by problem: sd of the problem means (ddof 1) / sqrt(N); None for N = 1."""
    if not problem_means:
        raise DataError("no problems to score")
    if len(problem_means) == 1:
        return None
    return float(np.std(np.asarray(problem_means, dtype=np.float64), ddof=1) / math.sqrt(len(problem_means)))


def compare_paired(
    first: Mapping[str, float],
    second: Mapping[str, float],
    *,
    seed: int,
    num_resamples: int = 10_000,
    confidence: float = 0.95,
) -> Comparison:
    """Compare two models by a bootstrap over problems that keeps each problem's two scores together.

    Args:
        first: Score of the first model by problem id.
        second: Of the second model, on the same problems.
        seed: Of the resampling.
        confidence: Mass of the percentile interval.

    Raises:
        DataError: there are no problems, or the two sets differ.
    """
    if first.keys() != second.keys() or not first:
        only = sorted(first.keys() ^ second.keys())
        raise DataError(
            f"two models are compared on the same problems, got {len(first)} and {len(second)}"
            + (f"; in one only: {only[:5]}" if only else ""),
            hint="evaluate both on one benchmark with the same --limit",
        )
    differences = np.array([second[problem] - first[problem] for problem in sorted(first)], dtype=np.float64)
    generator = np.random.default_rng(seed)
    size = len(differences)
    means = np.array([differences[generator.integers(size, size=size)].mean() for _ in range(num_resamples)])
    tail = 50 * (1 - confidence)
    low, high = np.percentile(means, [tail, 100 - tail])
    p_value = min(1.0, 2 * min(float((means <= 0).mean()), float((means >= 0).mean())))
    return Comparison(float(differences.mean()), float(low), float(high), p_value, size)


def _require_samples(num_samples: int, k: int) -> None:
    if not 1 <= k <= num_samples:
        raise DataError(
            f"k = {k} needs at least {max(k, 1)} samples of each problem, got {num_samples}",
            hint="draw more with eval.num_samples, or ask for a smaller k >= 1",
        )


def _ways_to_win(most: int, others: Sequence[int], num_left: int, num_silent: int) -> Fraction:
    """Count draws of `num_left` samples in which no other class exceeds `most`, each weighted by 1 / tied."""
    ways = {(0, 1): 1}
    for size in others:
        extended: Counter[tuple[int, int]] = Counter()
        for (drawn, tied), count in ways.items():
            for taken in range(min(size, most, num_left - drawn) + 1):
                extended[drawn + taken, tied + (taken == most)] += count * math.comb(size, taken)
        ways = dict(extended)
    return sum(
        (Fraction(count * math.comb(num_silent, num_left - drawn), tied) for (drawn, tied), count in ways.items()),
        Fraction(0),
    )
