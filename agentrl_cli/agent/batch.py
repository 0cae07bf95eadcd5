"""Runs many trajectories at once over one conversation with a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_cli.agent.base import Conversation, Toolbox
from agentrl_cli.agent.loop import AgentLimits, run_trajectory
from agentrl_cli.errors import first_user_error
from agentrl_cli.types import Problem, Trajectory


@dataclass(frozen=True, slots=True)
class Job:
    """One trajectory to run."""

    problem: Problem
    trajectory_id: str
    group_id: str
    seed: int


@dataclass(frozen=True, slots=True)
class Setting:
    """What all trajectories of a batch have in common."""

    toolbox: Toolbox
    limits: AgentLimits
    system_prompt: str = ""


async def run_jobs(
    jobs: Sequence[Job], conversation: Conversation, setting: Setting, *, concurrency: int
) -> list[Trajectory]:
    """Run all jobs, at most `concurrency` at a time, and return their trajectories in the order of the jobs.

    Raises:
        AgentRLError: something that no other trajectory would survive either, such as a lack of memory.
    """
    places = asyncio.Semaphore(concurrency)

    async def run(job: Job) -> Trajectory:
        async with places:
            return await run_trajectory(
                job.problem,
                conversation,
                setting.toolbox,
                limits=setting.limits,
                seed=job.seed,
                trajectory_id=job.trajectory_id,
                group_id=job.group_id,
                system_prompt=setting.system_prompt,
            )

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(job)) for job in jobs]
    except ExceptionGroup as errors:
        error = first_user_error(errors)
        if error is None:
            raise
        raise error from errors
    return [task.result() for task in tasks]
