"""What the rules say about a run while it goes on: one light a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentrl_cli.diagnosis.engine import diagnose_log
from agentrl_cli.diagnosis.rules import RULES
from agentrl_cli.diagnosis.series import metric_log


class LightState(StrEnum):
    """What a rule answers."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    CRITICAL = "critical"
    NO_DATA = "no data"


@dataclass(frozen=True, slots=True)
class Light:
    """One rule's answer about a run so far."""

    rule: int
    name: str
    state: LightState
    text: str
    """Evidence, or why nothing can be said."""


def lights(rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> list[Light]:
    """Return each rule's light, in the order of the rules.

    Args:
        rows: `{step, metric: value, …}`, as in metrics.jsonl; at least one.
        settings: Resolved settings of the run.
    """
    diagnosis = diagnose_log(metric_log(rows, source="this run", settings=settings))
    found = {f.rule: Light(f.rule, f.name, LightState(f.severity.value), f.evidence) for f in diagnosis.findings}
    found |= {s.rule: Light(s.rule, s.name, LightState.OK, s.reason) for s in diagnosis.ok}
    found |= {s.rule: Light(s.rule, s.name, LightState.NO_DATA, s.reason) for s in diagnosis.no_data}
    return [found[rule.number] for rule in RULES]
