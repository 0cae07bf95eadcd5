"""How long `agentrl --help` and every command's `--help` take, beside a bare import of typer and rich.

    .venv/bin/python benchmarks/help_time.py

All are new processes of one interpreter, taken in turn, so that a machine that drifts drifts for all. The ratio
of medians is to stay at 1.6 or below.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from statistics import median

from typer.main import get_command

BARE = ("-c", "import typer, rich")


def commands() -> list[str]:
    """Return the names of all commands, those of groups with a space."""
    from agentrl_cli.main import app

    names = [""]

    def visit(command: object, path: str) -> None:
        for name, child in getattr(command, "commands", {}).items():
            names.append(f"{path} {name}".strip())
            visit(child, names[-1])

    visit(get_command(app), "")
    return names


def seconds(arguments: tuple[str, ...]) -> float:
    """Return the wall-clock time of a new interpreter."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    cases = {name: ("-m", "agentrl_cli", *name.split(), "--help") for name in commands()}
    bare: list[float] = []
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, arguments in cases.items():
            bare.append(seconds(BARE))
            times[name].append(seconds(arguments))
    base = median(bare)
    print(f"bare import of typer and rich: {base:.3f} s")
    for name, values in times.items():
        print(f"{f'agentrl {name}'.strip():24} --help  {median(values):.3f} s  {median(values) / base:.2f}x")


if __name__ == "__main__":
    main()
