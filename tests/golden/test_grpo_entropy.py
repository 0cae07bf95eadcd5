"""The entropy controller, step by step, with the arithmetic shown."""

from __future__ import annotations

import json

import pytest

from agentrl_cli.config.schema import EntropyControlConfig
from agentrl_cli.grpo.entropy import EntropyController


def controller(**changes: object) -> EntropyController:
    """Return a controller at beta 0.01 with targets 0.7 and 1.3 and a decay of one half."""
    values = {"enabled": True, "ema_decay": 0.5, "beta_min": 0.001, "beta_max": 0.05, **changes}
    return EntropyController(EntropyControlConfig.model_validate(values), beta=0.01)


def feed(control: EntropyController, entropies: list[float], *, start: int = 1) -> list[float]:
    """Observe one entropy a step; returns beta after each."""
    betas = []
    for step, entropy in enumerate(entropies, start=start):
        control.observe(step, entropy)
        betas.append(control.beta)
    return betas


def test_low_entropy_shrinks_beta_by_a_tenth_a_step() -> None:
    """Below target_low times the baseline, beta is multiplied by 0.9 once a step."""
    control = controller()
    assert feed(control, [1.0] * 12) == [0.01] * 12
    # baseline 1.0; average 0.5 * 1.0 + 0.5 * 0.2 = 0.6 < 0.7, then 0.4
    assert feed(control, [0.2, 0.2], start=13) == pytest.approx([0.009, 0.0081])


def test_high_entropy_grows_beta_by_a_tenth_a_step() -> None:
    """Above target_high times the baseline, beta is multiplied by 1.1 once a step."""
    control = controller()
    feed(control, [1.0] * 12)
    # averages 1.5 and 1.75, both above 1.3
    assert feed(control, [2.0, 2.0], start=13) == pytest.approx([0.011, 0.0121])


def test_between_the_targets_beta_stays() -> None:
    """Within the targets nothing moves."""
    control = controller()
    feed(control, [1.0] * 12)
    assert feed(control, [0.8, 1.2, 1.0], start=13) == [0.01] * 3


def test_the_average_decides_not_the_last_step() -> None:
    """One low step does not move beta while the moving average is inside."""
    control = controller(ema_decay=0.9)
    feed(control, [1.0] * 12)
    # 0.9 * 1.0 + 0.1 * 0.0 = 0.9, above 0.7
    assert feed(control, [0.0], start=13) == [0.01]


def test_beta_stays_within_its_bounds() -> None:
    """The bounds cut a step short."""
    low = controller(beta_min=0.0085)
    feed(low, [1.0] * 12)
    # 0.009, then max(0.0081, 0.0085)
    assert feed(low, [0.0] * 3, start=13) == pytest.approx([0.009, 0.0085, 0.0085])
    high = controller(beta_max=0.0115)
    feed(high, [1.0] * 12)
    # 0.011, then min(0.0121, 0.0115)
    assert feed(high, [9.0] * 3, start=13) == pytest.approx([0.011, 0.0115, 0.0115])


def test_relative_targets_sleep_until_step_12() -> None:
    """Entropy that falls before step 12 moves nothing until then; the unit is the median of steps 3 to 12."""
    control = controller(ema_decay=0.0)
    # steps 1-2 are left out of the baseline; 3-10 are 1.0, 11-12 are 0.01: median of ten is 1.0
    betas = feed(control, [50.0, 50.0, *[1.0] * 8, 0.01, 0.01])
    assert betas[:11] == [0.01] * 11
    assert betas[11] == pytest.approx(0.009)


def test_absolute_targets_work_from_the_first_step() -> None:
    """Without `relative` the targets are nats per token and need no baseline."""
    assert feed(controller(relative=False), [0.5]) == pytest.approx([0.009])


def test_a_switched_off_controller_never_moves() -> None:
    """`enabled=false` keeps beta whatever is observed."""
    assert feed(controller(enabled=False), [1.0] * 12 + [0.0] * 5) == [0.01] * 17


def test_a_step_counts_once() -> None:
    """The same step twice would be two changes a step."""
    control = controller()
    control.observe(1, 1.0)
    with pytest.raises(AssertionError, match="one change a step"):
        control.observe(1, 1.0)


def test_a_resumed_controller_goes_on_exactly() -> None:
    """State that went through JSON continues to the same betas as a run that was never stopped."""
    entropies = [1.0 + 0.05 * (i % 3) for i in range(14)] + [0.4, 0.3, 0.2, 2.9, 3.0]
    whole = feed(controller(), entropies)
    for cut in (5, 12, 16):
        first = controller()
        feed(first, entropies[:cut])
        second = controller()
        second.load_state(json.loads(json.dumps(first.state())))
        assert feed(second, entropies[cut:], start=cut + 1) == whole[cut:]
