"""The `agentrl` command: subcommands, exit codes and how errors are shown.

Exit codes: 0 done, 1 the run failed (or an audit found a disagreement), 2 a mistake in what was asked,
130 Ctrl-C, 143 terminated.
"""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from agentrl_cli import __version__, console
from agentrl_cli.commands import options
from agentrl_cli.commands.chat import chat
from agentrl_cli.commands.collect import collect
from agentrl_cli.commands.diagnose import diagnose
from agentrl_cli.commands.doctor import doctor
from agentrl_cli.commands.eval import evaluate
from agentrl_cli.commands.export import export
from agentrl_cli.commands.filter import filter_
from agentrl_cli.commands.pipeline import pipeline
from agentrl_cli.commands.presets import presets
from agentrl_cli.commands.rl import rl
from agentrl_cli.commands.runs import runs
from agentrl_cli.commands.sft import sft
from agentrl_cli.commands.tools import tools
from agentrl_cli.commands.view import view
from agentrl_cli.errors import AgentRLError

EXIT_FAILED = 1
EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM


_HINTS = {
    errno.EACCES: "give a place that you may read and write, as with --out",
    errno.EROFS: "give a place that can be written, as with --out",
    errno.ENOSPC: "make room on the disk (agentrl runs prune); what was complete before stands",
}
_USER_ERRORS = {errno.EACCES, errno.EROFS}


class ErrorBoundary(TyperGroup):
    """Turns what a command raises into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the subcommand (typer's context type differs between its versions)."""
        try:
            with _terminated_by_exit():
                return super().invoke(ctx)
        except AgentRLError as error:
            console.print_error(error, debug=options.is_debug(ctx))
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(EXIT_INTERRUPTED) from error
        except BrokenPipeError:
            raise
        except OSError as error:
            shown = AgentRLError(_describe(error), hint=_HINTS.get(error.errno or 0, ""))
            console.print_error(shown.with_traceback(error.__traceback__), debug=options.is_debug(ctx))
            raise typer.Exit(shown.exit_code if error.errno in _USER_ERRORS else EXIT_FAILED) from error
        except Exception as error:
            if _belongs_to_typer(error):
                raise
            console.print_fault(error, debug=options.is_debug(ctx))
            raise typer.Exit(EXIT_FAILED) from error


app = typer.Typer(
    name="agentrl",
    cls=ErrorBoundary,
    help="Agentic reinforcement learning of tool-using language models.",
    epilog="Start with: agentrl rl --preset tiny",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
)
app.command("collect")(collect)
app.command("filter")(filter_)
app.command("sft")(sft)
app.command("rl")(rl)
app.command("eval")(evaluate)
app.command("diagnose")(diagnose)
app.command("pipeline")(pipeline)
app.command("view")(view)
app.command("chat")(chat)
app.command("export")(export)
app.add_typer(runs)
app.add_typer(presets)
app.add_typer(tools)
app.command("doctor")(doctor)


def _show_version(value: bool) -> None:
    if value:
        console.print_text(f"agentrl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Agentic reinforcement learning of tool-using language models."""


def _describe(error: OSError) -> str:
    """Return what the system says, with the file that it says it of."""
    if error.strerror is None:
        return str(error)
    return f"{error.strerror}: {str(error.filename)!r}" if error.filename is not None else error.strerror


def _belongs_to_typer(error: Exception) -> bool:
    """Usage errors and deliberate exits (they carry an exit code) are handled by typer itself."""
    return isinstance(error, typer.Abort) or hasattr(error, "exit_code")


@contextmanager
def _terminated_by_exit() -> Iterator[None]:
    """Within this block SIGTERM unwinds the stack like an exit, so that files and processes are closed."""

    def on_terminate(signum: int, frame: FrameType | None) -> NoReturn:
        sys.exit(EXIT_TERMINATED)

    before = signal.signal(signal.SIGTERM, on_terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
