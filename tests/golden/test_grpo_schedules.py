"""Schedules of epsilon_high and of the learning rate, point by point."""

from __future__ import annotations

import pytest

from agentrl_cli.config.schema import EpsilonHighSchedule, GrpoConfig
from agentrl_cli.grpo.schedules import epsilon_high_at, learning_rate_factor


def curve(schedule: EpsilonHighSchedule, total: int) -> list[float]:
    """Return epsilon_high of every step of a run."""
    config = GrpoConfig(epsilon_high=0.3, epsilon_high_schedule=schedule)
    return [epsilon_high_at(config, step=step, total=total) for step in range(total)]


def test_constant_epsilon_is_the_setting() -> None:
    """`constant` gives grpo.epsilon_high at every step."""
    assert curve(EpsilonHighSchedule(), 3) == [0.3, 0.3, 0.3]


def test_linear_epsilon_meets_both_ends() -> None:
    """`linear` starts at `start` and reaches `end` at the last step."""
    # 0.32 + (0.24 - 0.32) * step / 4
    values = curve(EpsilonHighSchedule(kind="linear", start=0.32, end=0.24), 5)
    assert values == pytest.approx([0.32, 0.30, 0.28, 0.26, 0.24])


def test_linear_epsilon_of_a_single_step_is_its_start() -> None:
    """A run of one step has nowhere to go."""
    assert curve(EpsilonHighSchedule(kind="linear", start=0.32, end=0.24), 1) == [0.32]


def test_progressive_epsilon_falls_to_its_floor() -> None:
    """`progressive` is max(0.35 - 0.15 step / total, 0.25), whatever the setting says."""
    # total 6: 0.35, 0.325, 0.30, 0.275, 0.25, then 0.225 -> 0.25
    values = curve(EpsilonHighSchedule(kind="progressive"), 6)
    assert values == pytest.approx([0.35, 0.325, 0.30, 0.275, 0.25, 0.25])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        # total 10, warm-up round(10 * 0.2) = 2 updates: 1/2, 2/2; then 8 updates with progress 0/8 .. 7/8
        ("constant", [0.5, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        # (1 + cos(pi progress)) / 2: cos of 22.5 degrees is 0.9238795, of 45 0.7071068, of 67.5 0.3826834
        (
            "cosine",
            [0.5, 1, 1, 0.9619398, 0.8535534, 0.6913417, 0.5, 0.3086583, 0.1464466, 0.0380602],
        ),
    ],
)
def test_learning_rate_warms_up_then_follows_its_schedule(schedule: str, expected: list[float]) -> None:
    """The rate rises linearly over the warm-up and falls over what is left, without ever being 0."""
    factors = [learning_rate_factor(schedule, update=i, total=10, warmup_frac=0.2) for i in range(10)]  # type: ignore[arg-type]
    assert factors == pytest.approx(expected, abs=1e-7)


def test_no_warm_up_starts_at_the_peak() -> None:
    """Without warm-up the first update has the full rate."""
    assert learning_rate_factor("cosine", update=0, total=4, warmup_frac=0.0) == 1.0


def test_an_update_past_the_end_is_refused() -> None:
    """A count that ran past the run's total is a fault of the caller, not a negative rate."""
    with pytest.raises(AssertionError):
        learning_rate_factor("linear", update=10, total=10, warmup_frac=0.0)
