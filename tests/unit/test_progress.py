"""The table of steps, the remaining time, and the lights of the rules."""

from __future__ import annotations

import pytest

from agentrl_cli.diagnosis.lights import LightState, lights
from agentrl_cli.diagnosis.rules import RULES
from agentrl_cli.progress import HEADER_EVERY, Clock, StepTable, write_seconds

STEP = {
    "accuracy": 0.90625,
    "reward/outcome": 0.8125,
    "entropy": 0.01234,
    "clip_ratio/low_mean": 0.001,
    "clip_ratio/high_mean": 0.0005,
    "tools/call_frequency": 1.21,
    "completions/mean_length": 31.4,
    "perf/sample_tokens_per_s": 1812.7,
    "loss": -0.0123,
    "learning_rate": 2e-4,
    "time/step_s": 3.25,
}


def test_an_rl_step_fits_80_columns() -> None:
    """Header and line have equal columns; both clip shares are added; what does not fit is left out."""
    header, line = StepTable(width=80).lines(12, 80, STEP, eta_s=185.0)
    assert header.split() == ["step", "outcome", "acc", "entropy", "clip", "calls", "len", "tok/s", "loss", "lr", "eta"]
    # 0.001 + 0.0005 = 0.0015; 185 s = 3 min 5 s
    expected = ["12/80", "0.812", "0.906", "0.0123", "0.0015", "1.21", "31", "1813", "-0.0123", "0.0002", "3m05s"]
    assert line.split() == expected
    assert len(header) == len(line) <= 80


def test_a_narrow_table_keeps_the_most_important_columns() -> None:
    """The order of the columns is the order of their importance."""
    # 40 columns: step 5, eta 8, outcome 8, acc 6, entropy 8 make 35; clip would make 43
    header, _ = StepTable(width=40).lines(12, 80, STEP, eta_s=None)
    assert header.split() == ["step", "outcome", "acc", "entropy", "eta"]


def test_columns_stay_and_the_header_comes_again() -> None:
    """A metric that is missing later leaves a dash; one that appears later opens no column."""
    table = StepTable(width=80)
    table.lines(1, 50, {"loss": 2.0}, eta_s=None)
    later = [table.lines(step, 50, {"accuracy": 1.0}, eta_s=None) for step in range(2, HEADER_EVERY + 2)]
    assert later[0][0].split() == ["2/50", "-", "-"]
    assert [len(lines) for lines in later] == [1] * (HEADER_EVERY - 1) + [2]


def test_the_remaining_time_follows_the_median_of_the_last_steps() -> None:
    """The first step counts by its own account; later ones by the clock, pauses between them included."""
    clock = Clock()
    assert clock.eta_s(1, 10, now_s=100.0, step_s=4.0) == 36.0  # 9 steps of 4 s
    assert clock.eta_s(2, 10, now_s=106.0, step_s=5.0) == 40.0  # median of 4 and 6, 8 steps
    assert clock.eta_s(4, 10, now_s=118.0, step_s=5.0) == 36.0  # two steps in 12 s: 6 each; median 6, 6 steps


def test_the_remaining_time_is_unknown_before_anything_was_timed() -> None:
    """A job that does not time its steps says nothing at its first."""
    assert Clock().eta_s(1, 10, now_s=100.0, step_s=None) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (0.4, "0s"), (59.6, "1m00s"), (185, "3m05s"), (7620, "2h07m"), (273600, "3d04h")],
)
def test_durations_are_short(seconds: float | None, text: str) -> None:
    """Two units at most."""
    assert write_seconds(seconds) == text


def test_every_rule_has_a_light() -> None:
    """A run of one step can't be judged by most rules; one that is all NaN is critical at once."""
    found = lights([{"step": 1, "loss": float("nan"), "accuracy": 0.5}], {})
    assert [light.rule for light in found] == [rule.number for rule in RULES]
    states = {light.rule: light.state for light in found}
    assert states[12] is LightState.CRITICAL
    assert states[2] is LightState.NO_DATA
