"""Ctrl-C once finishes the step and saves; twice stops now. SIGTERM (a scheduler's notice) does the same."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from agentrl_cli.reporting import Reporter


class StopRequest:
    """Whether someone asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def __bool__(self) -> bool:
        return self.signum is not None

    def exit(self) -> None:
        """End as the signal asks: KeyboardInterrupt (exit code 130) or exit code 143."""
        if self.signum == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        if self.signum is not None:
            raise KeyboardInterrupt


@contextmanager
def graceful_stop(reporter: Reporter) -> Iterator[StopRequest]:
    """Within this block the first signal sets the request, the second one raises at once."""
    request = StopRequest()

    def on_signal(signum: int, frame: FrameType | None) -> None:
        if request:
            raise KeyboardInterrupt
        request.signum = signum
        reporter.warn("stopping after this step, with a checkpoint; a second signal (Ctrl-C) stops now")

    previous = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
