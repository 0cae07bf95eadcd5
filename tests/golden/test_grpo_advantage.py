"""Advantages against numbers worked out by hand, and what must not change them."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_cli.grpo.advantage import group_advantages, is_mixed

Scale = Literal["group", "batch", "none"]
SCALES: tuple[Scale, ...] = ("group", "batch", "none")

# two groups of four; group 0 has mean 0, group 1 has mean 1
REWARDS = torch.tensor([1.0, -1.0, -1.0, 1.0, 2.0, 0.0, 1.0, 1.0])
GROUPS = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
CENTRED = [1.0, -1.0, -1.0, 1.0, 1.0, -1.0, 0.0, 0.0]


def advantages(rewards: torch.Tensor, groups: torch.Tensor, scale: Scale) -> list[float]:
    """Return the advantages as a list."""
    result = group_advantages(rewards, groups, scale_rewards=scale)
    assert result.dtype == torch.float64
    return [float(value) for value in result]


def test_group_scale_divides_by_the_groups_own_deviation() -> None:
    """`group` divides each centred reward by std (ddof 1) + 1e-6 of its own group."""
    # group 0: squares 1 + 1 + 1 + 1 = 4, / 3, root 1.1547005384, + 1e-6; 1 / 1.1547015384 = 0.8660246538
    # group 1: squares 1 + 1 + 0 + 0 = 2, / 3, root 0.8164965809, + 1e-6; 1 / 0.8164975809 = 1.2247433714
    scales = [0.8660246538] * 4 + [1.2247433714] * 4
    expected = [c * s for c, s in zip(CENTRED, scales, strict=True)]
    assert advantages(REWARDS, GROUPS, "group") == pytest.approx(expected, abs=1e-9)


def test_batch_scale_divides_by_the_deviation_of_all_rewards() -> None:
    """`batch` keeps the group's mean and divides by std (ddof 1) + 1e-6 of the whole batch."""
    # mean of all 8 is 4 / 8 = 0.5; squares of the distances: 0.25 + 2.25 + 2.25 + 0.25 + 2.25 + 3 x 0.25 = 8
    # 8 / 7 = 1.1428571429, root 1.0690449676, + 1e-6; 1 / 1.0690459676 = 0.9354134717
    expected = [c * 0.9354134717 for c in CENTRED]
    assert advantages(REWARDS, GROUPS, "batch") == pytest.approx(expected, abs=1e-9)


def test_none_only_centres() -> None:
    """`none` subtracts the group's mean and divides by nothing."""
    assert advantages(REWARDS, GROUPS, "none") == CENTRED


@pytest.mark.parametrize("scale", SCALES)
def test_equal_rewards_give_exactly_zero(scale: Scale) -> None:
    """A group of equal rewards has advantage 0 exactly, though the mean of seven 0.1 is not 0.1 in floats."""
    rewards = torch.tensor([0.1] * 7 + [1.0, 0.0], dtype=torch.float64)
    groups = torch.tensor([0] * 7 + [1, 1])
    assert advantages(rewards, groups, scale)[:7] == [0.0] * 7


def test_nearly_equal_rewards_are_not_taken_for_equal() -> None:
    """Equality is exact: a difference of 1e-6 is a signal, of half its size over its deviation."""
    # rewards 0 and 1e-6: mean 5e-7, std = 1e-6 / sqrt(2) = 7.071e-7; 5e-7 / (7.071e-7 + 1e-6) = 0.2928932188
    rewards = torch.tensor([0.0, 1e-6], dtype=torch.float64)
    assert advantages(rewards, torch.tensor([0, 0]), "group") == pytest.approx([-0.2928932188, 0.2928932188], abs=1e-9)


@pytest.mark.parametrize("scale", SCALES)
def test_a_group_of_one_is_refused(scale: Scale) -> None:
    """Groups with fewer than two members have no advantage: the caller drops them before."""
    with pytest.raises(AssertionError, match="group 1 has 1 trajectory"):
        group_advantages(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 0, 1]), scale_rewards=scale)


def test_rewards_that_are_not_finite_are_refused() -> None:
    """A NaN reward would spread over its group in silence."""
    with pytest.raises(AssertionError, match="finite"):
        group_advantages(torch.tensor([1.0, float("nan")]), torch.tensor([0, 0]), scale_rewards="group")


@settings(max_examples=40, deadline=None)
@given(
    rewards=st.lists(st.integers(-4, 4), min_size=6, max_size=6),
    shift=st.integers(-8, 8),
    order=st.permutations(range(6)),
    scale=st.sampled_from(SCALES),
)
def test_shift_and_order_change_nothing(rewards: list[int], shift: int, order: list[int], scale: Scale) -> None:
    """A constant added to all rewards changes no advantage, and shuffled trajectories keep their own."""
    values = torch.tensor(rewards, dtype=torch.float64) / 4  # quarters add exactly, so that equality survives
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    plain = group_advantages(values, groups, scale_rewards=scale)
    shifted = group_advantages(values + shift, groups, scale_rewards=scale)
    shuffled = group_advantages(values[list(order)], groups[list(order)], scale_rewards=scale)
    torch.testing.assert_close(shifted, plain, rtol=0, atol=1e-9)
    torch.testing.assert_close(shuffled, plain[list(order)], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("correct", "expected"), [([True, False], True), ([True, True], False), ([False, False], False), ([], False)]
)
def test_mixed_groups_have_right_and_wrong_answers(correct: list[bool], expected: bool) -> None:
    """Only groups with both right and wrong answers are mixed."""
    assert is_mixed(correct) is expected
