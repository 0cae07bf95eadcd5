"""Errors that a user can act on.

Every mistake of the user, of their data or of their machine is an `AgentRLError`; the command line
prints its message and hint without a traceback. A broken invariant of our own is an `assert`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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


class OutOfMemoryError(AgentRLError):
    """The device or the machine has no memory left; the hint names the settings to lower."""

    exit_code = 1


class SandboxError(AgentRLError):
    """The sandbox itself failed (no process, dead pool); never the fault of the code that ran in it."""

    exit_code = 1


def first_user_error(group: ExceptionGroup[Exception]) -> AgentRLError | None:
    """Return the first error of a group of tasks that is no fault of ours, if there is one."""
    for error in group.exceptions:
        found = first_user_error(error) if isinstance(error, ExceptionGroup) else error
        if isinstance(found, AgentRLError):
            return found
    return None


_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
"""Parts of the messages with which CUDA and torch's allocators give up."""


@contextmanager
def explain_out_of_memory(doing: str, *, lower: str) -> Iterator[None]:
    """Within this block, turn a failed allocation into an error that says what to lower.

    Args:
        doing: What is going on, as in "while ...".
        lower: Settings that make it need less.

    Raises:
        OutOfMemoryError: the block ran out of memory; anything else is raised as it is.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = " ".join(str(error).split())
        if not isinstance(error, MemoryError) and not any(part in text.lower() for part in _NO_MEMORY):
            raise
        reason = f": {text[:200]}" if text else ""
        raise OutOfMemoryError(f"out of memory while {doing}{reason}", hint=f"lower {lower}") from error
