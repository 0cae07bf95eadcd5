"""Writes advantages into the trajectories of a step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentrl_cli.config.schema import GrpoConfig
from agentrl_cli.grpo.advantage import group_advantages
from agentrl_cli.training.sampling import Group


def set_advantages(groups: Sequence[Group], *, config: GrpoConfig) -> None:
    """Set `advantage` of every trajectory from the rewards of its group."""
    members = [t for group in groups for t in group]
    if not members:
        return
    rewards = torch.tensor([t.reward for t in members], dtype=torch.float64)
    index = torch.tensor([i for i, group in enumerate(groups) for _ in group])
    advantages = group_advantages(rewards, index, scale_rewards=config.scale_rewards)
    for trajectory, advantage in zip(members, advantages.tolist(), strict=True):
        trajectory.advantage = advantage
