"""What moves over a run: the upper clip range and the learning rate."""

from __future__ import annotations

import math
from typing import Literal

from agentrl_cli.config.grpo import PROGRESSIVE_START
from agentrl_cli.config.schema import GrpoConfig


def epsilon_high_at(config: GrpoConfig, *, step: int, total: int) -> float:
    """Return epsilon_high of a step.

    Args:
        step: From 0 to total - 1; `linear` has its `start` at 0 and its `end` at the last step.
        total: Steps of the run.
    """
    assert 0 <= step < total, (step, total)
    schedule = config.epsilon_high_schedule
    if schedule.kind == "linear":
        assert schedule.start is not None
        assert schedule.end is not None
        progress = step / (total - 1) if total > 1 else 0.0
        return schedule.start + (schedule.end - schedule.start) * progress
    if schedule.kind == "progressive":
        # unsourced: it starts at a value that trained worse in arXiv 2510.11701, so it is no preset's choice
        return max(PROGRESSIVE_START - 0.15 * step / total, 0.25)
    return config.epsilon_high


def learning_rate_factor(
    schedule: Literal["constant", "linear", "cosine"], *, update: int, total: int, warmup_frac: float
) -> float:
    """Return the factor on the peak learning rate at an update.

    The warm-up takes the first round(total * warmup_frac) updates and rises linearly to 1 without ever
    being 0; `linear` and `cosine` fall from 1 towards 0, which they would meet at update `total`.

    Args:
        update: From 0 to total - 1.
        total: Updates of the run.
    """
    assert 0 <= update < total, (update, total)
    warmup = round(total * warmup_frac)
    if update < warmup:
        return (update + 1) / warmup
    if schedule == "constant":
        return 1.0
    progress = (update - warmup) / max(1, total - warmup)
    if schedule == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress))
