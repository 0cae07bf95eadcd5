"""Errors that a user can act on.

Every mistake of the user, of their data or of their machine is an `AgentRLError`; the command line
prints its message and hint without a traceback. A broken invariant of our own is an `assert`.
"""

from __future__ import annotations


class AgentRLError(Exception):
    """A user-facing error: `message` says what is wrong and what was got, `hint` how to fix it."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ConfigError(AgentRLError):
    """A setting is unknown, contradictory or out of range."""


class DataError(AgentRLError):
    """A file that was given to us is missing, unreadable or has the wrong layout."""


class ModelError(AgentRLError):
    """A model, tokenizer or chat template can't be loaded or does not do what training needs."""


class RunError(AgentRLError):
    """A run folder can't be created, read or resumed."""


class TrainingError(AgentRLError):
    """A run went wrong while it was going (non-finite loss, infrastructure failing, nothing to learn from)."""

    exit_code = 1


class SamplerError(AgentRLError):
    """The engine that generates failed; the trajectory becomes `infra_error`, never a wrong answer."""

    exit_code = 1


class SandboxError(AgentRLError):
    """The sandbox itself failed (no process, dead pool); never the fault of the code that ran in it."""

    exit_code = 1
