"""Scores over k samples: equal to brute force over all subsets, and to numbers worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_cli.errors import DataError
from agentrl_cli.evaluation.scores import (
    avg_at_k,
    compare_paired,
    maj_at_k,
    pass_all_k,
    pass_at_k,
    standard_error,
)


def brute_force_majority(votes: list[str | None], k: int) -> float:
    """Mean score of the majority vote over all subsets of size k; "r" is right."""
    subsets = list(combinations(votes, k))
    total = Fraction(0)
    for subset in subsets:
        cast = [vote for vote in subset if vote is not None]
        most = max((cast.count(vote) for vote in cast), default=0)
        winners = {vote for vote in cast if cast.count(vote) == most}
        total += Fraction(1, len(winners)) if "r" in winners else 0
    return float(total / len(subsets))


@pytest.mark.parametrize("num_samples", range(1, 7))
def test_pass_scores_equal_brute_force(num_samples: int) -> None:
    """pass@k and pass^k are the shares of subsets with one right and with all right, for every c and k."""
    for num_correct, k in product(range(num_samples + 1), range(1, num_samples + 1)):
        samples = [True] * num_correct + [False] * (num_samples - num_correct)
        subsets = list(combinations(samples, k))
        assert pass_at_k(num_samples, num_correct, k=k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
        assert pass_all_k(num_samples, num_correct, k=k) == pytest.approx(sum(map(all, subsets)) / len(subsets))


def test_majority_equals_brute_force_exhaustively() -> None:
    """maj@k is the mean over all subsets for every way in which up to five samples can vote, and every k."""
    for num_samples in range(1, 6):
        for votes in product(["r", "a", "b", None], repeat=num_samples):
            for k in range(1, num_samples + 1):
                expected = brute_force_majority(list(votes), k)
                assert maj_at_k(votes, "r", k=k) == pytest.approx(expected), (votes, k)


@settings(max_examples=60, deadline=None)
@given(votes=st.lists(st.sampled_from(["r", "a", "b", "c", "d", None]), min_size=6, max_size=10), data=st.data())
def test_majority_equals_brute_force_on_larger_draws(votes: list[str | None], data: st.DataObject) -> None:
    """The same holds with more classes and more samples."""
    k = data.draw(st.integers(1, len(votes)))
    assert maj_at_k(votes, "r", k=k) == pytest.approx(brute_force_majority(votes, k))


@pytest.mark.parametrize(
    ("votes", "k", "expected"),
    [
        (["r", "r", "a"], 3, 1.0),
        (["r", "a"], 2, 0.5),
        (["r", "a", "b"], 3, 1 / 3),
        (["r", "a", "a"], 3, 0.0),
        # the silent ones never win: one right vote is a majority of one
        (["r", None, None, None], 4, 1.0),
        ([None, None], 2, 0.0),
        # pairs of r r a: rr scores 1, ra twice 1/2: (1 + 1/2 + 1/2) / 3
        (["r", "r", "a"], 2, 2 / 3),
    ],
)
def test_majority_by_hand(votes: list[str | None], k: int, expected: float) -> None:
    """Ties are shared and silence does not vote."""
    assert maj_at_k(votes, "r", k=k) == pytest.approx(expected)


def test_no_right_class_scores_nothing() -> None:
    """Where no sample is right, the majority never is."""
    assert maj_at_k(["a", "a"], None, k=2) == 0.0


def test_majority_of_many_samples_is_exact_and_bounded() -> None:
    """64 samples with dozens of classes are counted, not sampled; more votes for right never hurt."""
    others: list[str | None] = [f"w{i % 30}" for i in range(44)]
    scores = [maj_at_k(["r"] * right + others[: 64 - right], "r", k=32) for right in (20, 30, 40)]
    assert scores == sorted(scores)
    assert 0.99 < scores[0] <= 1.0


@pytest.mark.parametrize("k", [0, -1, 5])
def test_k_outside_the_samples_is_an_error(k: int) -> None:
    """k above the number of samples, or below 1, fails loudly in every score."""
    with pytest.raises(DataError, match="got 4"):
        pass_at_k(4, 2, k=k)
    with pytest.raises(DataError, match="got 4"):
        pass_all_k(4, 2, k=k)
    with pytest.raises(DataError, match="got 4"):
        maj_at_k(["r"] * 4, "r", k=k)


def test_no_samples_is_an_error() -> None:
    """There is no mean of nothing."""
    with pytest.raises(DataError):
        avg_at_k([])
    with pytest.raises(DataError):
        standard_error([])


def test_standard_error_by_hand() -> None:
    """The sd of the problem means over the root of their number; one problem has none."""
    # means 0, 1/2, 1: sd (ddof 1) = sqrt((1/4 + 0 + 1/4) / 2) = 1/2; 1/2 / sqrt(3)
    assert standard_error([0.0, 0.5, 1.0]) == pytest.approx(0.5 / 3**0.5)
    assert standard_error([0.5]) is None
    assert standard_error([0.5, 0.5]) == 0.0


def test_paired_comparison_keeps_problems_together() -> None:
    """A small but constant difference is certain in pairs, however much the problems differ."""
    first = {f"p{i}": i / 10 for i in range(10)}
    second = {problem: score + 0.01 for problem, score in first.items()}
    got = compare_paired(first, second, seed=0, num_resamples=500)
    assert got.difference == pytest.approx(0.01)
    assert (got.low, got.high) == pytest.approx((0.01, 0.01))
    assert (got.p_value, got.num_problems) == (0.0, 10)


def test_paired_comparison_of_equals_and_its_seed() -> None:
    """Equal models differ by nothing with p = 1; equal seeds give equal intervals, whatever the order."""
    first = {"a": 0.0, "b": 1.0, "c": 0.5, "d": 0.25}
    same = compare_paired(first, dict(first), seed=1, num_resamples=200)
    assert (same.difference, same.low, same.high, same.p_value) == (0.0, 0.0, 0.0, 1.0)
    second = {"d": 1.0, "c": 0.0, "b": 1.0, "a": 0.5}
    one = compare_paired(first, second, seed=7, num_resamples=200)
    assert one == compare_paired(first, dict(reversed(second.items())), seed=7, num_resamples=200)
    assert one != compare_paired(first, second, seed=8, num_resamples=200)
    # (0.5 + 0 - 0.5 + 0.75) / 4
    assert one.difference == pytest.approx(0.1875)
    assert one.low <= one.difference <= one.high


def test_models_are_compared_on_the_same_problems() -> None:
    """A problem that only one model has seen is an error that names it."""
    with pytest.raises(DataError, match="'b'"):
        compare_paired({"a": 1.0}, {"a": 1.0, "b": 0.0}, seed=0)
    with pytest.raises(DataError):
        compare_paired({}, {}, seed=0)
