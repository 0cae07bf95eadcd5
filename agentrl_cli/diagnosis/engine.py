"""Runs all rules over a run and settles those that contradict each other."""

from __future__ import annotations

from pathlib import Path

from agentrl_cli.diagnosis.report import Diagnosis, Finding, Silent, worst_first
from agentrl_cli.diagnosis.rules import OPPOSITES, RULES, Rule
from agentrl_cli.diagnosis.series import MetricLog, read_metric_log
from agentrl_cli.diagnosis.symptoms import Answer
from agentrl_cli.diagnosis.windows import NoDataError


def diagnose_run(path: Path) -> Diagnosis:
    """Return what is wrong with a run, on what evidence, and which setting to change.

    Args:
        path: A run folder, or a metrics file alone.

    Raises:
        RunError, DataError: there is nothing that can be read.
    """
    return diagnose_log(read_metric_log(path))


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
