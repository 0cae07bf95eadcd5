"""The lines of a conversation: what a person types, and what each line does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from agentrl_cli.chat.session import Session
from agentrl_cli.errors import DataError
from agentrl_cli.records import trajectory_to_row
from agentrl_cli.types import Trajectory
from agentrl_cli.view.render import escape_text, render_trajectory

OPENING = (
    "Type a problem in one line. Each is a problem of its own: nothing is remembered between them.\n"
    "/help lists the commands, /quit ends."
)
COMMANDS = {
    "= GOLD": "score the last answer against GOLD",
    "/again": "ask the last problem once more, with the next seed",
    "/help": "show this list",
    "/quit": "end (as does Ctrl-D); Ctrl-C ends in the middle of an answer",
}
_PROMPT = "> "


def converse(
    lines: Iterable[str], session: Session, *, width: int, show: Callable[[str], None], say: Callable[[str], None]
) -> None:
    """Answer line by line until the lines or the person end it.

    Args:
        width: Columns for prose.
        show: Takes results: trajectories and rewards.
        say: Takes everything else: opening, help, and what is wrong with a line.
    """
    say(OPENING)
    for line in lines:
        text = line.strip()
        if text == "/quit":
            return
        try:
            if text.startswith("="):
                show(render_reward(session.grade(text[1:]), width))
            elif text == "/help":
                say(_help())
            elif text == "/again":
                show(render_answer(session.again(), width))
            elif text.startswith("/"):
                say(f"unknown command {text!r}: known are /again, /help, /quit and = GOLD")
            elif text:
                show(render_answer(session.ask_text(text), width))
        except DataError as error:
            say(escape_text(f"{error.message}; {error.hint}" if error.hint else error.message))


def render_answer(trajectory: Trajectory, width: int) -> str:
    """Return all that was said, called and answered, as text for a terminal."""
    return render_trajectory(trajectory_to_row(trajectory), width) + "\n"


def render_reward(trajectory: Trajectory, width: int) -> str:
    """Return what a trajectory came to, without what was said."""
    return render_trajectory({**trajectory_to_row(trajectory), "messages": []}, width) + "\n"


def read_lines() -> Iterator[str]:
    """Yield what is typed or piped in, line by line; a person gets a prompt.

    Raises:
        DataError: the input is no text.
    """
    try:
        yield from _typed() if sys.stdin.isatty() else sys.stdin
    except UnicodeDecodeError as error:
        raise DataError(f"what was piped in is no UTF-8 text: {error.reason}") from error


def _typed() -> Iterator[str]:
    """Yield lines from a terminal, with editing and history where Python has readline."""
    with suppress(ImportError):
        import readline  # noqa: F401
    while True:
        try:
            yield _ask_line()
        except EOFError:
            return


def _ask_line() -> str:
    """Return one typed line; the prompt goes to stderr where stdout is not the terminal."""
    if sys.stdout.isatty():
        return input(_PROMPT)
    sys.stderr.write(_PROMPT)
    sys.stderr.flush()
    return input()


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = (f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return "\n".join(["Any other line is a problem.", *lines])
