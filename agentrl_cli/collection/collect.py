"""Records a teacher solving problems with tools: the same agent loop as training, one row a trajectory.

What was recorded is on disk at once; a collection that was stopped goes on where it was, and the file
that comes of it holds the same trajectories in the same order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentrl_cli.agent.base import Conversation
from agentrl_cli.agent.batch import Job, Setting
from agentrl_cli.agent.loop import run_trajectory
from agentrl_cli.collection.recording import Recording
from agentrl_cli.collection.teachers import Teacher, TeacherSpec, open_teacher, parse_teacher
from agentrl_cli.config.load import resolved_dump
from agentrl_cli.config.schema import Config, GuardConfig
from agentrl_cli.data.sources import Reading, load_problems
from agentrl_cli.errors import TrainingError, first_user_error
from agentrl_cli.reporting import Reporter
from agentrl_cli.rewards.compose import ScoreFn, make_scorer
from agentrl_cli.rewards.verify import check_gold
from agentrl_cli.seeding import derive_seed
from agentrl_cli.types import Problem, Trajectory

_REPORTS = 20
"""Progress lines of a collection."""
_MODEL_SETTINGS = ("revision", "dtype", "chat_template", "trust_remote_code")
"""Settings of a local teacher that matter; its path stands in the spec."""


def run_collect(config: Config, *, problems: str | None, teacher: str, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Record trajectories of a teacher into a JSONL file, going on where an earlier call was stopped.

    Args:
        problems: Where the problems come from; None takes `collect.problems`, or else `data.train`.
        teacher: A spec, see `agentrl_cli.collection.teachers`.
        out: The file; its card (NAME.card.json) lies beside it.

    Returns:
        `{in, collected, skipped, failed, correct, teacher, problems, file, card, wall_s}`: trajectories
        wanted, recorded now, recorded before, failed by infrastructure (tried again by the next call),
        and right ones of those recorded now and before.

    Raises:
        ConfigError, DataError: it can't begin, or the file holds what was made in another way.
        TrainingError: sandbox, teacher or verifier fail too often.
    """
    start = time.monotonic()
    spec = parse_teacher(teacher)
    source = problems or config.collect.problems or config.data.train
    tasks = load_problems(
        source,
        generated=config.data.generated,
        seed=config.run.seed,
        count=config.collect.num_problems,
        reading=Reading(columns=config.data.columns, strict=config.data.strict, check=check_gold),
        warn=reporter.warn,
    )
    jobs = plan_jobs(tasks, per_problem=config.collect.trajectories_per_problem, seed=config.run.seed)
    with Recording(out, jobs=jobs, facts={"teacher": spec.text, "settings": _settings(config, spec)}) as recording:
        todo = [job for job in jobs if job.trajectory_id not in recording.done]
        skipped = len(jobs) - len(todo)
        reporter.info(f"{len(jobs)} trajectories of {len(tasks)} problems from {source}, into {out}")
        if skipped:
            reporter.info(f"{skipped} of {len(jobs)} trajectories are in {out} already")
        watch = _Watch(recording, config.guard, total=len(todo), reporter=reporter)
        if todo:
            with open_teacher(spec, config, tasks) as opened:
                recording.begin(opened.identity)
                _record(todo, opened, _score_fn(config), watch.note)
        recording.finish()
    if watch.failed:
        reporter.warn(f"{watch.failed} trajectories failed by infrastructure; the same command tries them again")
    return {
        "in": len(jobs),
        "collected": recording.tally.valid - skipped,
        "skipped": skipped,
        "failed": watch.failed,
        "correct": recording.tally.correct,
        "teacher": spec.text,
        "problems": source,
        "file": str(out),
        "card": str(recording.card),
        "wall_s": round(time.monotonic() - start, 2),
    }


def plan_jobs(problems: Sequence[Problem], *, per_problem: int, seed: int) -> list[Job]:
    """Return the trajectories to record; id and seed depend on problem and number alone."""
    return [
        Job(problem, f"{problem.id}#{k}", problem.id, derive_seed(seed, "collect", problem.id, k))
        for problem in problems
        for k in range(per_problem)
    ]


class _Watch:
    """Records what is done, tells how it goes, and stops a collection that only fails."""

    def __init__(self, recording: Recording, guard: GuardConfig, *, total: int, reporter: Reporter) -> None:
        self.failed = 0
        self._recording = recording
        self._guard = guard
        self._total = total
        self._reporter = reporter
        self._count = 0
        self._correct = 0

    def note(self, trajectory: Trajectory) -> None:
        """Take in a trajectory that is done.

        Raises:
            TrainingError: too many failed by infrastructure, or all of them.
        """
        self._recording.add(trajectory)
        self._count += 1
        self._correct += trajectory.verdict is not None and trajectory.verdict.correct
        self.failed += not trajectory.ending.is_valid
        if not trajectory.ending.is_valid:
            self._check(trajectory)
        if self._count % max(1, self._total // _REPORTS) == 0:
            valid = max(1, self._count - self.failed)
            self._reporter.step(self._count, self._total, {"accuracy": self._correct / valid})

    def _check(self, failure: Trajectory) -> None:
        many = self.failed >= self._guard.min_infra_count and self.failed > self._guard.max_infra_frac * self._count
        if many or self.failed == self._total:
            raise TrainingError(
                f"{self.failed} of {self._count} trajectories failed by infrastructure; the last: {failure.error!r}",
                hint="check the teacher and the sandbox, then give the same command again: what is recorded stays",
            )


def _record(jobs: Sequence[Job], teacher: Teacher, score: ScoreFn, note: Callable[[Trajectory], None]) -> None:
    for batch in teacher.batches(jobs):
        conversation = teacher.converse(batch)
        try:
            teacher.runner.run(
                _run_batch(batch, conversation, teacher.setting, score, note, concurrency=teacher.concurrency)
            )
        except ExceptionGroup as group:
            error = first_user_error(group)
            if error is None:
                raise
            raise error from group


async def _run_batch(
    jobs: Sequence[Job],
    conversation: Conversation,
    setting: Setting,
    score: ScoreFn,
    note: Callable[[Trajectory], None],
    *,
    concurrency: int,
) -> None:
    """Run all jobs, at most `concurrency` at a time; each is scored and noted as soon as it is done."""
    queue = iter(jobs)

    async def work() -> None:
        for job in queue:
            trajectory = await run_trajectory(
                job.problem,
                conversation,
                setting.toolbox,
                limits=setting.limits,
                seed=job.seed,
                trajectory_id=job.trajectory_id,
                group_id=job.group_id,
                system_prompt=setting.system_prompt,
            )
            if trajectory.ending.is_valid:
                # comparing expressions waits for a process
                await asyncio.to_thread(score, [trajectory])
            note(trajectory)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(jobs))):
            group.create_task(work())


def _score_fn(config: Config) -> ScoreFn:
    return make_scorer(
        config.rewards, overlong=config.grpo.overlong, max_completion_length=config.agent.max_completion_length
    )


def _settings(config: Config, spec: TeacherSpec) -> dict[str, Any]:
    """Return the settings that a recorded trajectory depends on."""
    dump = resolved_dump(config)
    sandbox = {name: dump["sandbox"][name] for name in ("timeout_s", "memory_mib", "max_output_chars")}
    settings = {
        "run": {"seed": config.run.seed},
        "agent": dump["agent"],
        "tools": dump["tools"],
        "sandbox": sandbox,
        "rewards": dump["rewards"],
        "grpo": {"overlong": dump["grpo"]["overlong"]},
        "collect": {"temperature": config.collect.temperature},
    }
    if spec.kind == "model":
        settings["model"] = {name: dump["model"][name] for name in _MODEL_SETTINGS}
    return settings
