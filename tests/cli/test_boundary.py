"""What the error boundary makes of anything a command may raise, and what the console writes where."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest
import typer
from typer.testing import CliRunner, Result

from agentrl_cli.commands import options
from agentrl_cli.console.reporter import ConsoleReporter
from agentrl_cli.errors import AgentRLError, ConfigError, SamplerError, TrainingError
from agentrl_cli.main import ErrorBoundary


def run_command(action: Callable[[], object], *arguments: str) -> Result:
    """Run a command that does `action` behind the same boundary as agentrl."""
    app = typer.Typer(cls=ErrorBoundary, rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.command("work")
    def work(debug: options.Debug = False) -> None:
        action()

    app.callback()(lambda: None)
    return CliRunner().invoke(app, ["work", *arguments])


def raising(error: BaseException) -> Callable[[], NoReturn]:
    """Return an action that raises."""

    def action() -> NoReturn:
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no such thing"), 2),
        (TrainingError("the loss is not finite"), 1),
        (SamplerError("the engine died"), 1),
        (KeyboardInterrupt(), 130),
        (SystemExit(143), 143),
        (typer.Exit(3), 3),
        (OSError(28, "No space left on device"), 1),
        (ValueError("shape"), 1),
    ],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    """0 done, 1 failed, 2 asked for wrongly, 130 interrupted, 143 terminated."""
    assert run_command(raising(error)).exit_code == code
    assert run_command(lambda: None).exit_code == 0


def test_error_and_hint_are_two_paragraphs_on_stderr() -> None:
    """The hint follows a blank line; square brackets are text, not markup."""
    result = run_command(raising(AgentRLError("[run] is [bold]odd[/]", hint="look at [grpo]")))
    assert result.stderr == "error: [run] is [bold]odd[/]\n\nhint: look at [grpo]\n"
    assert result.stdout == ""


def test_a_fault_of_ours_says_so_and_hides_its_traceback() -> None:
    """An unforeseen exception is not the user's mistake; --debug shows where it came from."""
    result = run_command(raising(ValueError("shape [3]")))
    assert result.stderr.startswith("error: unexpected ValueError: shape [3]\n\nhint: this is a fault in agentrl")
    assert "Traceback" not in result.stderr
    assert "raise error\nValueError: shape [3]" in run_command(raising(ValueError("shape [3]")), "--debug").stderr


def test_a_long_message_is_not_wrapped() -> None:
    """Paths in a message stay in one piece for whoever pastes them."""
    path = "/".join(["folder"] * 40)
    assert f"error: {path}\n" in run_command(raising(AgentRLError(path))).stderr


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_unwind_and_set_the_exit_code(signum: signal.Signals, code: int) -> None:
    """A signal in the middle of a command runs its clean-up and ends with 128 + its number."""
    code_text = (
        "import signal, time, typer\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored\n"
        "from agentrl_cli.main import app\n"
        "@app.command('wait')\n"
        "def wait():\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        time.sleep(60)\n"
        "    finally:\n"
        "        print('cleaned', flush=True)\n"
        "app(['wait'])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code_text], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signum)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (code, "cleaned\n")


def test_progress_goes_to_stderr_as_plain_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """No colour codes, no cursor movement, nothing on stdout."""
    with ConsoleReporter() as reporter:
        reporter.info("loading [model]")
        reporter.warn("2 rows left out")
        reporter.step(3, 10, {"accuracy": 0.5, "reward/outcome": -0.25, "unknown": 1.0})
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "loading [model]",
        "warning: 2 rows left out",
        " step outcome   acc     eta",
        " 3/10  -0.250 0.500       -",
    ]


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_colour_appears_on_a_terminal_unless_no_color_is_set(no_color: str, coloured: bool) -> None:
    """On a pseudo-terminal errors are coloured; NO_COLOR switches that off."""
    import pty

    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    environment |= {"NO_COLOR": no_color} if no_color else {}
    command = [sys.executable, "-m", "agentrl_cli", "rl", "--preset", "5b"]
    done = subprocess.run(command, stderr=follower, stdout=subprocess.DEVNULL, env=environment, check=False)
    os.close(follower)
    text = os.read(leader, 10_000).decode()
    os.close(leader)
    assert done.returncode == 2
    assert "unknown preset '5b'" in re_plain(text)
    assert ("\x1b[1;31m" in text) is coloured


def re_plain(text: str) -> str:
    """Drop colour codes."""
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)
