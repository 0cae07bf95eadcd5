"""Runs all rules over a run and settles those that contradict each other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentrl_cli.diagnosis.report import Diagnosis, Finding, Silent, worst_first
from agentrl_cli.diagnosis.rules import OPPOSITES, RULES, Rule
from agentrl_cli.diagnosis.series import MetricLog, read_metric_log
from agentrl_cli.diagnosis.symptoms import Answer
from agentrl_cli.diagnosis.windows import NoDataError
from agentrl_cli.runs import FAILED, HELD_OUT, STOPPED, how_it_ended

_WORSE = 0.1
"""Loss of held-out accuracy that is named."""


def diagnose_run(path: Path) -> Diagnosis:
    """Return what is wrong with a run, on what evidence, and which setting to change.

    Args:
        path: A run folder, or a metrics file alone.

    Raises:
        RunError, DataError: there is nothing that can be read.
    """
    log = read_metric_log(path)
    diagnosis = diagnose_log(log)
    return replace(diagnosis, notes=[*_endings(path), *worse(log), *diagnosis.notes])


def worse(log: MetricLog) -> list[str]:
    """Return a sentence if the model does worse on held-out problems than at its start, by a tenth or more."""
    name = next((name for name in log.series if name.startswith(HELD_OUT)), "")
    scores = log.series.get(name, {})
    if len(scores) < 2:
        return []
    first, last = min(scores), max(scores)
    if scores[first] - scores[last] < _WORSE:
        return []
    rate = log.setting("optim.learning_rate")
    suspect = f"; if it fell at once, the first suspect is optim.learning_rate={rate:g}" if rate else ""
    return [
        f"the model got worse: held-out accuracy {scores[first]:.3f} at step {first}, {scores[last]:.3f} at step "
        f"{last}{suspect}"
    ]


def _endings(path: Path) -> list[str]:
    end = how_it_ended(path) if path.is_dir() else ""
    return [f"the run {end}"] if end.startswith((FAILED, STOPPED)) else []


def diagnose_log(log: MetricLog) -> Diagnosis:
    """Return all rules' answers about a log."""
    findings: list[Finding] = []
    no_data: list[Silent] = []
    ok: list[Silent] = []
    for rule in RULES:
        try:
            answer = rule.test(log)
        except NoDataError as error:
            no_data.append(Silent(rule.number, rule.name, str(error)))
            continue
        if answer.severity is None:
            ok.append(Silent(rule.number, rule.name, answer.text))
        else:
            findings.append(_finding(rule, answer, log))
    kept = worst_first(findings)
    for pair in OPPOSITES:
        rivals = [finding for finding in kept if finding.rule in pair]
        for loser in rivals[1:]:
            kept.remove(loser)
            ok.append(Silent(loser.rule, loser.name, f"not reported beside its opposite, rule {rivals[0].rule}"))
    return Diagnosis(
        source=log.source,
        first_step=log.steps[0],
        last_step=log.steps[-1],
        findings=kept,
        no_data=no_data,
        ok=sorted(ok, key=lambda silent: silent.rule),
        notes=log.notes,
    )


def _finding(rule: Rule, answer: Answer, log: MetricLog) -> Finding:
    assert answer.severity is not None
    return Finding(
        rule=rule.number,
        name=rule.name,
        severity=answer.severity,
        evidence=answer.text,
        values=answer.values,
        cause=answer.cause or rule.cause,
        remedy=answer.remedy or rule.remedy,
        patch=rule.patch(log, answer.severity),
        confidence="high" if answer.is_certain else "medium",
        sources=rule.sources,
    )
