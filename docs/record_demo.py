"""Draws docs/images/demo.svg: what the terminal shows for the commands of the README's start, from a real run.

    .venv/bin/python docs/record_demo.py

Runs the commands in an empty folder (minutes on two CPU cores) and draws all that they print, but for the
middle of the table of steps.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 88
COMMANDS = ("agentrl rl --preset tiny --out runs/first", "agentrl diagnose runs/first")
KEEP_STEPS = 6
"""Lines of steps that are shown at each end of the table."""
IMAGE = Path(__file__).parent / "images" / "demo.svg"


def run(command: str, folder: Path) -> list[str]:
    """Return the lines that a command prints, stdout and stderr as they come."""
    arguments = [sys.executable, "-m", "agentrl_cli", *command.split()[1:]]
    done = subprocess.run(
        arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    return done.stdout.splitlines()


def is_step(line: str) -> bool:
    """Whether a line is a row of the table of steps."""
    first = line.split()[0] if line.split() else ""
    number, slash, total = first.partition("/")
    return bool(slash) and number.isdigit() and total.isdigit()


def without_middle(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines without those between the first and the last steps; warnings among them go, too."""
    steps = [i for i, line in enumerate(lines) if is_step(line)]
    cut = range(steps[KEEP_STEPS], steps[-KEEP_STEPS]) if len(steps) > 2 * KEEP_STEPS else range(0)
    for i, line in enumerate(lines):
        if i in cut:
            if i == cut.start:
                yield "      …"
            continue
        yield line


def main() -> None:
    """Run, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=IMAGE)
    out = parser.parse_args().out.resolve()
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            console.print(Text(f"$ {command}", style="bold green"))
            for line in without_middle(run(command, Path(folder))):
                console.print(Text(line, style="yellow" if line.startswith("warning:") else ""), soft_wrap=False)
            console.print()
    out.parent.mkdir(parents=True, exist_ok=True)
    console.save_svg(str(out), title="agentrl")


if __name__ == "__main__":
    main()
