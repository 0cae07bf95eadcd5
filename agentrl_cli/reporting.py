"""How long jobs tell what they are doing, without knowing who listens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Reporter(Protocol):
    """Receives progress; never a result, and nothing that a run may depend on."""

    def info(self, text: str) -> None:
        """Say what happens now, in one line."""
        ...

    def warn(self, text: str) -> None:
        """Say what is wrong but does not stop the job."""
        ...

    def begin_rl(self, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
        """Say that steps of an RL run follow, which can be diagnosed as they come.

        Args:
            rows: The steps that the run has already, as in metrics.jsonl.
            settings: Resolved settings of the run.
        """
        ...

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Report that `step` (from 1) of `total` is done, with its metrics."""
        ...


class NullReporter:
    """Swallows everything; for tests and for calls from other programs."""

    def info(self, text: str) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Say nothing."""

    def begin_rl(self, rows: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
        """Say nothing."""

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Say nothing."""
