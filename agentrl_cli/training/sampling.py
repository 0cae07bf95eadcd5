"""The sampling phase of a step: draw problems, roll out groups, score them, keep what can teach."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_cli.agent.batch import Job
from agentrl_cli.agent.stack import Stack
from agentrl_cli.config.schema import GrpoConfig, GuardConfig
from agentrl_cli.errors import TrainingError
from agentrl_cli.grpo.advantage import is_mixed
from agentrl_cli.rewards.compose import ScoreFn
from agentrl_cli.rewards.user import infra_hint
from agentrl_cli.seeding import derive_seed
from agentrl_cli.types import Ending, Problem, Trajectory

Group = list[Trajectory]
"""Sets verdict, reward and reward_parts of each trajectory."""


class ProblemStream:
    """An endless stream over the problems, reshuffled each epoch; a position fully determines the problem."""

    def __init__(self, problems: Sequence[Problem], *, seed: int) -> None:
        assert problems
        self._problems = problems
        self._seed = seed
        self._epoch = -1
        self._order: list[int] = []

    def at(self, position: int) -> Problem:
        """Return the problem at a position, from 0."""
        epoch, offset = divmod(position, len(self._problems))
        if epoch != self._epoch:
            self._order = list(range(len(self._problems)))
            random.Random(derive_seed(self._seed, "order", epoch)).shuffle(self._order)
            self._epoch = epoch
        return self._problems[self._order[offset]]


@dataclass(frozen=True, slots=True)
class SampledStep:
    """What sampling gave: the groups to train on, everything that was rolled out, the next position."""

    groups: list[Group]
    trajectories: list[Trajectory]
    cursor: int
    num_filtered: int
    """Groups rolled out and left out of training: not mixed (filter_groups) or fewer than 2 valid."""


def sample_step(
    stack: Stack,
    stream: ProblemStream,
    score: ScoreFn,
    *,
    config: GrpoConfig,
    seed: int,
    step: int,
    cursor: int,
) -> SampledStep:
    """Roll out and score the groups of one step, refilling those that `filter_groups` leaves out.

    A refill rolls out only as many problems as are missing, for at most `max_extra_rounds` rounds; the
    step goes on with fewer groups after that.
    """
    kept: list[Group] = []
    everything: list[Trajectory] = []
    num_filtered = 0
    rounds = 1 + (config.filter_groups.max_extra_rounds if config.filter_groups.enabled else 0)
    for _ in range(rounds):
        missing = config.problems_per_step - len(kept)
        if not missing:
            break
        groups = _roll_out(stack, stream, range(cursor, cursor + missing), config=config, seed=seed, step=step)
        cursor += missing
        for group in groups:
            score([t for t in group if t.ending.is_valid])
            everything += group
            usable = usable_members(group, mask_truncated=config.mask_truncated)
            if len(usable) < 2 or (config.filter_groups.enabled and not is_mixed([_is_correct(t) for t in usable])):
                num_filtered += 1
            else:
                kept.append(usable)
    return SampledStep(kept, everything, cursor, num_filtered)


def usable_members(group: Group, *, mask_truncated: bool) -> Group:
    """Return the members that belong to group and loss."""
    return [t for t in group if t.ending.is_valid and not (mask_truncated and t.ending is Ending.MAX_TOKENS)]


def _is_correct(trajectory: Trajectory) -> bool:
    assert trajectory.verdict is not None, trajectory.id
    return trajectory.verdict.correct


def _roll_out(
    stack: Stack, stream: ProblemStream, positions: range, *, config: GrpoConfig, seed: int, step: int
) -> list[Group]:
    jobs = []
    for position in positions:
        group_id = f"step{step}-{position}"
        for member in range(config.num_generations):
            jobs.append(
                Job(
                    problem=stream.at(position),
                    trajectory_id=f"{group_id}-{member}",
                    group_id=group_id,
                    seed=derive_seed(seed, "rollout", position, member),
                )
            )
    trajectories = stack.run(jobs, temperature=config.temperature)
    size = config.num_generations
    return [trajectories[i : i + size] for i in range(0, len(trajectories), size)]


class InfraGuard:
    """Stops a run whose sandbox, sampler or verifier fails: its rewards could not be trusted."""

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        self._bad_steps = 0

    def check(self, trajectories: Sequence[Trajectory]) -> None:
        """Look at one step.

        Raises:
            TrainingError: too many trajectories failed by infrastructure.
        """
        failed = [t for t in trajectories if t.ending is Ending.INFRA_ERROR]
        share = len(failed) / max(1, len(trajectories))
        self._bad_steps = self._bad_steps + 1 if share > 0.5 else 0
        many = share > self._config.max_infra_frac and len(failed) >= self._config.min_infra_count
        if many or self._bad_steps >= 2:
            raise TrainingError(
                f"{len(failed)} of {len(trajectories)} trajectories failed by infrastructure; the last: "
                f"{failed[-1].error!r}",
                hint=f"{infra_hint(failed[-1].error)}, then --resume the run",
            )
