"""Group-relative advantages (GRPO, arXiv 2402.03300, section 4.1).

    A_i = (R_i - mean(R)) / (std(R) + 1e-6)   over the group of trajectory i, std with ddof = 1

`batch` divides by the standard deviation of the whole batch instead, `none` not at all (Dr.GRPO, arXiv
2503.20783). Rewards that are exactly equal give advantages that are exactly zero: equality is tested
on the rewards themselves, since the mean of equal floats need not equal them.

Shapes: B trajectories.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

STD_FLOOR = 1e-6


def group_advantages(
    rewards_B: torch.Tensor, group_index_B: torch.Tensor, *, scale_rewards: Literal["group", "batch", "none"]
) -> torch.Tensor:
    """Return advantages [B] in float64.

    Args:
        rewards_B: One finite reward per trajectory, [B].
        group_index_B: Number of each trajectory's group, [B]; every group has at least 2 members, which
            need not stand together.
        scale_rewards: What the difference to the group's mean is divided by.
    """
    assert rewards_B.shape == group_index_B.shape, (tuple(rewards_B.shape), tuple(group_index_B.shape))
    rewards = rewards_B.to(torch.float64)
    assert bool(rewards.isfinite().all()), f"rewards must be finite, got {rewards.tolist()}"
    advantages = torch.zeros_like(rewards)
    batch_std = rewards.std(correction=1) if scale_rewards == "batch" else None
    for group in sorted(set(group_index_B.tolist())):
        members = group_index_B == group
        values = rewards[members]
        assert len(values) >= 2, f"group {group} has {len(values)} trajectory: drop it before"
        if bool((values == values[0]).all()):
            continue
        centred = values - values.mean()
        if scale_rewards == "group":
            centred = centred / (values.std(correction=1) + STD_FLOOR)
        elif batch_std is not None:
            centred = centred / (batch_std + STD_FLOOR)
        advantages[members] = centred
    return advantages


def is_mixed(correct: Sequence[bool]) -> bool:
    """Whether a group has right and wrong answers: what `filter_groups` keeps (arXiv 2503.14476, section 3.2).

    Accuracy decides, not reward: length and tool terms would make a signal out of answers that are all wrong.
    """
    return any(correct) and not all(correct)
