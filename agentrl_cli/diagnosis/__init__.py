"""Symptoms of a run, the evidence for them, and the setting to change."""

from agentrl_cli.diagnosis.engine import diagnose_run
from agentrl_cli.diagnosis.report import Diagnosis, Finding

__all__ = ["Diagnosis", "Finding", "diagnose_run"]
