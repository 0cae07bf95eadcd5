"""Puts the reward of a trajectory together from its verdict, its calls, its length and its ending.

| ending | outcome | tool term | length term |
|---|---|---|---|
| `answered` | verdict | yes | ramp |
| `no_answer`, `max_turns`, `tool_limit` | wrong | yes | ramp |
| `max_tokens` | wrong, also with a complete box | yes | -1 |
| `infra_error`, `cancelled` | never scored | | |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from agentrl_cli.config.schema import OverlongConfig, RewardsConfig
from agentrl_cli.errors import ConfigError
from agentrl_cli.rewards.components import length_term, outcome, tool_term
from agentrl_cli.rewards.math_pool import MathPool
from agentrl_cli.rewards.user import SETTING, UserRewardError, load_reward
from agentrl_cli.rewards.verify import Response, verify_all
from agentrl_cli.types import Ending, Trajectory, VerdictStatus


@dataclass(frozen=True, slots=True)
class Score:
    """A reward and what it is made of: `total` is the weighted sum of `parts`, which are unweighted."""

    total: float
    parts: dict[str, float]


ScoreFn = Callable[[Sequence[Trajectory]], None]


def make_scorer(rewards: RewardsConfig, *, overlong: OverlongConfig, max_completion_length: int) -> ScoreFn:
    """Return `score_trajectories` under these settings; a user's own reward is tried on samples first.

    Raises:
        ConfigError: `rewards.module` can't be loaded or fails on its samples.
    """
    if rewards.module:
        load_reward(rewards.module)
    return partial(score_trajectories, rewards=rewards, overlong=overlong, max_completion_length=max_completion_length)


def score_trajectories(
    trajectories: Sequence[Trajectory],
    *,
    rewards: RewardsConfig,
    overlong: OverlongConfig,
    max_completion_length: int,
    pool: MathPool | None = None,
) -> None:
    """Verify and score trajectories in place: sets `verdict`, `reward` and `reward_parts`.

    Where the verifier itself or the user's own reward failed, the ending becomes `infra_error` and there is
    no reward: such a trajectory belongs to no group. Those that ended as `infra_error` or `cancelled` are refused.

    Raises:
        DataError: a gold answer can't be read.
        ConfigError: `overlong.count` is `all` and a trajectory has no token ids.
    """
    responses = [Response(t.final_text, t.problem, t.ending) for t in trajectories]
    verdicts = verify_all(responses, timeout_s=rewards.verify_timeout_s, pool=pool)
    for trajectory, verdict in zip(trajectories, verdicts, strict=True):
        trajectory.verdict = verdict
        if verdict.status is VerdictStatus.INFRA_ERROR:
            trajectory.ending = Ending.INFRA_ERROR
            trajectory.error = "the verifier failed on known-good input too"
            continue
        try:
            score = score_trajectory(
                trajectory, rewards=rewards, overlong=overlong, max_completion_length=max_completion_length
            )
        except UserRewardError as error:
            trajectory.ending = Ending.INFRA_ERROR
            trajectory.error = f"{SETTING}: {error}"
            continue
        trajectory.reward, trajectory.reward_parts = score.total, score.parts


def score_trajectory(
    trajectory: Trajectory, *, rewards: RewardsConfig, overlong: OverlongConfig, max_completion_length: int
) -> Score:
    """Return the reward of a trajectory that has a verdict.

    Args:
        rewards: Components with their weights, form of the tool term and which calls it counts.
        overlong: Length ramp; disabled, the length term is 0.
        max_completion_length: L_max where `overlong.max_tokens` is 0.
    """
    ending, verdict = trajectory.ending, trajectory.verdict
    assert ending.is_valid, f"{trajectory.id}: {ending} is never scored"
    assert verdict is not None, f"{trajectory.id} has no verdict"
    assert verdict.status is not VerdictStatus.INFRA_ERROR, f"{trajectory.id}: {verdict}"
    is_correct = verdict.correct and ending is Ending.ANSWERED
    num_calls = count_calls(trajectory, rewards.tool_count)
    parts: dict[str, float] = {}
    for component in rewards.components:
        match component.name:
            case "outcome":
                parts["outcome"] = outcome(is_correct=is_correct)
            case "tool":
                parts["tool"] = tool_term(rewards.tool_reward, is_correct=is_correct, num_calls=num_calls)
            case "length":
                parts["length"] = _length(trajectory, overlong, max_completion_length)
            case "module":
                parts["module"] = load_reward(rewards.module)(trajectory)
    total = sum(component.weight * parts[component.name] for component in rewards.components)
    return Score(total, parts)


def count_calls(trajectory: Trajectory, which: Literal["executed", "successful"]) -> int:
    """Return n of the tool term."""
    return trajectory.num_calls if which == "executed" else trajectory.num_successful_calls


def _length(trajectory: Trajectory, overlong: OverlongConfig, max_completion_length: int) -> float:
    if not overlong.enabled:
        return 0.0
    if overlong.count == "all" and trajectory.num_generated and not trajectory.ids:
        raise ConfigError(
            "overlong.count is 'all' but the trajectory has no token ids (it comes from a chat endpoint)",
            hint="set grpo.overlong.count=generated",
        )
    return length_term(
        trajectory.num_generated if overlong.count == "generated" else len(trajectory.ids),
        max_tokens=overlong.max_tokens or max_completion_length,
        cache_tokens=overlong.cache_tokens,
        is_cut=trajectory.ending is Ending.MAX_TOKENS,
    )
