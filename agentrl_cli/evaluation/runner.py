"""Runs evaluations: k sampled trajectories of each problem, and one greedy one where asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from agentrl_cli.agent.batch import Job
from agentrl_cli.agent.behaviour import BehaviourBaseline
from agentrl_cli.agent.stack import Actor, open_actor
from agentrl_cli.config.schema import Config, EvalConfig
from agentrl_cli.data.sources import Reading, load_problems
from agentrl_cli.errors import RunError
from agentrl_cli.evaluation.benchmarks import load_benchmark
from agentrl_cli.evaluation.report import summarise
from agentrl_cli.files import write_atomic, write_rows
from agentrl_cli.records import trajectory_to_row
from agentrl_cli.reporting import Reporter
from agentrl_cli.rewards.compose import ScoreFn, make_scorer
from agentrl_cli.runs import HELD_OUT, ROOT, RunFolder, newest_trained_run
from agentrl_cli.seeding import derive_seed
from agentrl_cli.types import Problem, Trajectory

GENERATED = "generated"
"""Benchmark name of the held-out problems of the generator."""


def play(
    actor: Actor,
    problems: Sequence[Problem],
    score: ScoreFn,
    *,
    num_samples: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> list[list[Trajectory]]:
    """Return `num_samples` scored trajectories of each problem; equal seeds draw equal samples.

    Trajectories that failed by infrastructure are played once more; `summarise` refuses what failed twice.
    """
    mark = "" if temperature else "greedy-"
    jobs = [
        Job(problem, f"{problem.id}#{mark}{k}", problem.id, derive_seed(seed, "eval", problem.id, k))
        for problem in problems
        for k in range(num_samples)
    ]
    trajectories = _play(actor, jobs, score, temperature=temperature, top_p=top_p)
    lost = [i for i, trajectory in enumerate(trajectories) if not trajectory.ending.is_valid]
    if lost:
        again = _play(actor, [jobs[i] for i in lost], score, temperature=temperature, top_p=top_p)
        for i, trajectory in zip(lost, again, strict=True):
            trajectories[i] = trajectory
    return [trajectories[i : i + num_samples] for i in range(0, len(trajectories), num_samples)]


def _play(actor: Actor, jobs: Sequence[Job], score: ScoreFn, *, temperature: float, top_p: float) -> list[Trajectory]:
    trajectories = actor.run(jobs, temperature=temperature, top_p=top_p)
    score([t for t in trajectories if t.ending.is_valid])
    return trajectories


def evaluate_held_out(
    actor: Actor,
    problems: Sequence[Problem],
    score: ScoreFn,
    *,
    config: EvalConfig,
    seed: int,
    run: RunFolder,
    step: int,
    reporter: Reporter,
) -> dict[str, Any]:
    """Measure a policy in training on held-out problems, sampled and greedy; stored once per step.

    Returns:
        `{accuracy, accuracy_greedy, tool_calls, n, …}`: accuracy is avg@k at the settings' temperature.
    """
    file = run.path / "eval" / f"step-{step:06d}.json"
    if file.is_file():
        return dict(json.loads(file.read_text()))
    reporter.info(f"evaluating {len(problems)} held-out problems x {config.num_samples}, and greedy")
    sampled = play(
        actor,
        problems,
        score,
        num_samples=config.num_samples,
        temperature=config.temperature,
        top_p=config.top_p,
        seed=seed,
    )
    greedy = play(actor, problems, score, num_samples=1, temperature=0.0, top_p=1.0, seed=seed)
    summary = summarise(sampled)
    baseline = BehaviourBaseline.fit([t for group in sampled for t in group])
    result = {
        "step": step,
        "accuracy": summary["avg_at_k"],
        "accuracy_greedy": summarise(greedy)["avg_at_k"],
        "tool_calls": summary["tool_calls"],
        "n": len(problems),
        "k": config.num_samples,
        "stderr": summary["stderr"],
        "answers_on_tool_frac": summary["answers_on_tool_frac"],
        "by_family": accuracy_by_family(sampled),
        "behaviour_baseline": baseline and baseline.to_json(),
    }
    write_samples(file.with_suffix(".jsonl"), [*sampled, *greedy])
    write_atomic(file, json.dumps(result, allow_nan=False, indent=1))
    reporter.info(
        f"step {step}: accuracy {result['accuracy']:.3f}, greedy {result['accuracy_greedy']:.3f}, "
        f"{result['tool_calls']:.2f} tool calls a problem"
    )
    return result


def eval_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of `evaluate_held_out` under their names in metrics.jsonl."""
    return {
        f"{HELD_OUT}{result['k']}": result["accuracy"],
        "eval/held_out/greedy": result["accuracy_greedy"],
        "eval/held_out/tool_calls": result["tool_calls"],
    }


def accuracy_by_family(samples: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """Return mean correctness per family of problems; problems without one are left out."""
    by_family: dict[str, list[bool]] = {}
    for group in samples:
        for trajectory in group:
            if trajectory.verdict is not None and trajectory.problem.family:
                by_family.setdefault(trajectory.problem.family, []).append(trajectory.verdict.correct)
    return {family: sum(values) / len(values) for family, values in sorted(by_family.items())}


def run_eval(
    config: Config,
    *,
    benchmark: str,
    model: str | None,
    data: Path | None,
    limit: int | None,
    out: Path | None,
    reporter: Reporter,
) -> dict[str, Any]:
    """Evaluate a model on a benchmark with its tools and store every sample with its verdict.

    Args:
        model: A run folder (its best checkpoint is taken), a checkpoint folder or a Hugging Face id; None
            takes the newest run that has a checkpoint, or `model.path` where there is no run.
        data: A local copy of the benchmark.
        limit: Only the first so many problems.
        out: Folder for the samples; None makes `eval/<benchmark>` in the run or under runs/, with a number
            behind it where there is a result already.

    Returns:
        `{benchmark, model, n, k, avg_at_k, stderr, …, samples_file}`.
    """
    problems = _problems(config, benchmark, data, limit, reporter)
    path, run = find_model(model)
    if path is not None:
        reporter.info(f"model: {path}" + (" (best checkpoint of the newest run)" if model is None else ""))
    score = make_scorer(
        config.rewards, overlong=config.grpo.overlong, max_completion_length=config.agent.max_completion_length
    )
    with open_actor(config, model_path=path) as actor:
        reporter.info(f"{benchmark}: {len(problems)} problems x {config.eval.num_samples} samples")
        samples = play(
            actor,
            problems,
            score,
            num_samples=config.eval.num_samples,
            temperature=config.eval.temperature,
            top_p=config.eval.top_p,
            seed=config.run.seed,
        )
        name = actor.name
    folder = out or _free((run or ROOT) / "eval" / _file_name(benchmark, name if run is None else ""))
    samples_file = folder / "samples.jsonl"
    write_samples(samples_file, samples)
    result = {
        "benchmark": benchmark,
        "model": name,
        **summarise(samples),
        "by_family": accuracy_by_family(samples),
        "temperature": config.eval.temperature,
        "top_p": config.eval.top_p,
        "seed": config.run.seed,
        "samples_file": str(samples_file),
    }
    write_atomic(folder / "result.json", json.dumps(result, allow_nan=False, indent=1))
    return result


def find_model(model: str | None) -> tuple[str | None, Path | None]:
    """Return what to load and the run that it belongs to: a run stands for its best checkpoint."""
    if model is None:
        newest = newest_trained_run(ROOT)
        if newest is None:
            return None, None
        model = str(newest)
    path = Path(model)
    if not (path / "config.json").is_file() or not (path / "metrics.jsonl").exists():
        return model, None
    checkpoint = RunFolder.open(path, read_only=True).best_checkpoint()
    if checkpoint is None:
        raise RunError(f"the run {model!r} has no checkpoint yet", hint="wait for its first, or give a model path")
    return str(checkpoint), path


def write_samples(file: Path, samples: Sequence[Sequence[Trajectory]]) -> None:
    """Write trajectories as records, the whole file or nothing."""
    write_rows(file, [trajectory_to_row(t) for group in samples for t in group])


def _problems(
    config: Config, benchmark: str, data: Path | None, limit: int | None, reporter: Reporter
) -> list[Problem]:
    if benchmark != GENERATED or data is not None:
        reading = Reading(columns=config.data.columns, strict=config.data.strict)
        return load_benchmark(benchmark, data, limit, reading=reading, warn=reporter.warn)
    problems = load_problems("generated:test", generated=config.data.generated, seed=config.run.seed)
    return problems[: limit or config.eval.num_problems]


def _free(folder: Path) -> Path:
    """Return the folder, or one with a number behind its name where it holds a result: none is ever replaced."""
    numbered = (folder.with_name(f"{folder.name}-{n}") for n in count(2))
    return next(path for path in chain([folder], numbered) if not (path / "result.json").exists())


def _file_name(benchmark: str, model: str) -> str:
    text = f"{benchmark}-{model}" if model else benchmark
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)[-100:]
