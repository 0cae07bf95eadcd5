"""`agentrl runs compare`: what differs between two runs, in settings and in what came of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from agentrl_cli.config.digest import changed_settings
from agentrl_cli.diagnosis.series import MetricLog, read_metric_log
from agentrl_cli.errors import DataError, RunError
from agentrl_cli.runs_index.facts import RunFacts, held_out_results, lookup, read_facts, read_json
from agentrl_cli.runs_index.paired import Evaluation, compare_evaluations, read_evaluation, why_not_comparable

METRICS = (
    "accuracy",
    "reward/outcome",
    "entropy",
    "tools/call_frequency",
    "completions/mean_length",
    "loss",
    "eval_loss",
)
"""What is compared; the shaped reward is not, since other settings make it another measure."""
_SFT_ONLY = ("loss", "eval_loss")
NUM_STEPS = 10
_FIGURES = ("step", "accuracy", "stderr", "accuracy_greedy", "n", "k")


@dataclass(frozen=True, slots=True)
class _Samples:
    """An evaluation that was stored: its name, and how to read it."""

    file: Path
    k: int
    conditions: Mapping[str, float]

    def read(self) -> Evaluation:
        return read_evaluation(self.file, k=self.k, conditions=self.conditions)


def compare_runs(first: Path, second: Path) -> dict[str, Any]:
    """Return what differs between two runs, B being the second.

    Metrics are means over the last 10 steps that both have logged. The standard error of a mean is
    sd / sqrt(10); that of the difference is taken over the differences step by step, which is right whether
    or not equal steps saw equal problems. Both treat steps as independent, so a trend widens them.

    Returns:
        `{a, b, settings, identity, metrics, evaluations}`: settings and identity list `{name, a, b}` where they
        differ; an evaluation has what `agentrl_cli.runs_index.paired` gives, or `not_comparable` with the reason.

    Raises:
        RunError: one is no run; DataError: one of its files is damaged.
    """
    a, b = read_facts(first), read_facts(second)
    return {
        "a": _figures(a),
        "b": _figures(b),
        "settings": _differences(a.settings, b.settings),
        "identity": _differences(_identity(a), _identity(b)),
        "metrics": _compare_metrics(_log(a), _log(b), kinds={a.kind, b.kind}),
        "evaluations": _compare_evaluations(_stored(a), _stored(b)),
    }


def _chosen(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a held-out result that people compare."""
    return {name: result[name] for name in _FIGURES}


def _figures(facts: RunFacts) -> dict[str, Any]:
    results = held_out_results(facts.path)
    before = next((_chosen(result) for result in results if result["step"] == 0), None)
    after = next((_chosen(result) for result in reversed(results) if result["step"] > 0), None)
    log = _log(facts)
    return {
        "run": str(facts.path),
        "kind": facts.kind,
        "created": facts.created.isoformat(),
        "steps": max(log.steps, default=0),
        "before": before,
        "after": after,
    }


def _identity(facts: RunFacts) -> dict[str, Any]:
    return {"kind": facts.kind, "agentrl": facts.version, **{f"model.{k}": v for k, v in facts.model.items()}}


def _differences(a: dict[str, Any], b: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, "a": lookup(a, name), "b": lookup(b, name)} for name in changed_settings(a, b)]


def _log(facts: RunFacts) -> MetricLog:
    """Return a run's metrics; a run that was killed before its first step has none."""
    try:
        return read_metric_log(facts.path)
    except RunError:
        return MetricLog(source=str(facts.path), series={}, steps=[])


def _compare_metrics(a: MetricLog, b: MetricLog, *, kinds: set[str]) -> list[dict[str, Any]]:
    rows = []
    for name in METRICS:
        if name in _SFT_ONLY and kinds != {"sft"}:
            continue
        first, second = a.series.get(name, {}), b.series.get(name, {})
        steps = sorted(first.keys() & second.keys())[-NUM_STEPS:]
        if not steps:
            continue
        values_a, values_b = [first[step] for step in steps], [second[step] for step in steps]
        by_step = [y - x for x, y in zip(values_a, values_b, strict=True)]
        rows.append(
            {
                "name": name,
                "first_step": steps[0],
                "last_step": steps[-1],
                "n": len(steps),
                "a": fmean(values_a),
                "a_stderr": _stderr(values_a),
                "b": fmean(values_b),
                "b_stderr": _stderr(values_b),
                "difference": fmean(by_step),
                "difference_stderr": _stderr(by_step),
            }
        )
    return rows


def _stderr(values: list[float]) -> float | None:
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def _stored(facts: RunFacts) -> dict[str, _Samples]:
    """Return the evaluations of a run: held-out problems before and after, and benchmarks by name."""
    stored = {}
    conditions = {name: facts.settings["eval"][name] for name in ("temperature", "top_p")}
    for result in held_out_results(facts.path):
        file = facts.path / "eval" / f"step-{result['step']:06d}.jsonl"
        stored["before" if result["step"] == 0 else "after"] = _Samples(file, result["k"], conditions)
    for file in sorted((facts.path / "eval").glob("*/result.json")):
        result = read_json(file, needs=("k", "temperature", "top_p"))
        conditions = {name: result[name] for name in ("temperature", "top_p")}
        stored[file.parent.name] = _Samples(file.parent / "samples.jsonl", result["k"], conditions)
    return stored


def _compare_evaluations(a: Mapping[str, _Samples], b: Mapping[str, _Samples]) -> list[dict[str, Any]]:
    return [{"name": name, **_compare_evaluation(a.get(name), b.get(name))} for name in {**a, **b}]


def _compare_evaluation(a: _Samples | None, b: _Samples | None) -> dict[str, Any]:
    if a is None or b is None:
        return {"not_comparable": f"only {'A' if b is None else 'B'} has it"}
    try:
        first, second = a.read(), b.read()
    except DataError as error:
        return {"not_comparable": error.message}
    reason = why_not_comparable(first, second)
    return {"not_comparable": reason} if reason else compare_evaluations(first, second)
