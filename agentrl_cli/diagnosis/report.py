"""What a diagnosis says, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """How bad a finding is."""

    CRITICAL = "critical"
    WARN = "warn"
    INFO = "info"


_ORDER = list(Severity)


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that fired."""

    rule: int
    name: str
    severity: Severity
    evidence: str
    """What was seen, with numbers and steps."""
    values: Mapping[str, float]
    """The numbers of the evidence."""
    cause: str
    remedy: str
    patch: Sequence[str]
    """Settings to change as `key=value`; empty where the remedy is no setting."""
    confidence: str
    """high: all that was judged shows it; medium: most of it."""
    sources: Sequence[str]


@dataclass(frozen=True, slots=True)
class Silent:
    """A rule that did not fire, and why."""

    rule: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All rules' answers about one run."""

    source: str
    first_step: int
    last_step: int
    findings: Sequence[Finding]
    """The worst first."""
    no_data: Sequence[Silent]
    ok: Sequence[Silent]
    notes: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return everything, JSON-able."""
        return {
            "run": self.source,
            "first_step": self.first_step,
            "last_step": self.last_step,
            "findings": [_plain(finding) for finding in self.findings],
            "no_data": [asdict(silent) for silent in self.no_data],
            "ok": [asdict(silent) for silent in self.ok],
            "notes": list(self.notes),
        }

    def to_text(self) -> str:
        """Return everything for people."""
        lines = [f"{self.source}: steps {self.first_step}-{self.last_step}"]
        lines += [f"note: {note}" for note in self.notes]
        for finding in self.findings:
            lines += ["", *_finding_lines(finding)]
        if not self.findings:
            lines += ["", "nothing found"]
        if self.ok:
            lines += ["", "ok"] + [f"  rule {s.rule}, {s.name}: {s.reason}" for s in self.ok]
        if self.no_data:
            lines += ["", "no data"] + [f"  rule {s.rule}, {s.name}: {s.reason}" for s in self.no_data]
        return "\n".join(lines)


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """Sort findings by severity, then by number."""
    return sorted(findings, key=lambda f: (_ORDER.index(f.severity), f.rule))


def _plain(finding: Finding) -> dict[str, Any]:
    return {
        **asdict(finding),
        "severity": finding.severity.value,
        "values": dict(finding.values),
        "patch": list(finding.patch),
        "sources": list(finding.sources),
    }


def _finding_lines(finding: Finding) -> list[str]:
    lines = [
        f"{finding.severity.value.upper()}  rule {finding.rule}, {finding.name} (confidence {finding.confidence})",
        f"  seen    {finding.evidence}",
        f"  cause   {finding.cause}",
        f"  remedy  {finding.remedy}",
    ]
    if finding.patch:
        lines.append("  try     " + " ".join(f"--set {item}" for item in finding.patch))
    return lines
