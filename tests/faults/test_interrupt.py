"""Ctrl-C once finishes the step and saves; twice stops now; both leave a run that can be resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SETTINGS = (
    "run.save_every_steps=1000",
    "run.threads=1",
    "grpo.problems_per_step=4",
    "grpo.num_generations=4",
    "grpo.num_minibatches=2",
    "eval.num_problems=2",
    "eval.num_samples=1",
    "data.generated.num_train=64",
    "sandbox.pool_size=2",
    "optim.schedule=constant",
)
LONG = "run.steps=500"


def command(*arguments: str) -> list[str]:
    """Return an `agentrl rl` command line with the small settings."""
    sets = [part for setting in SETTINGS for part in ("--set", setting)]
    return [sys.executable, "-m", "agentrl_cli", "rl", *sets, "--json", *arguments]


def start(root: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a run in a process group of its own, as a terminal would."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(*arguments),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def steps_of(run: Path) -> int:
    """Return how many steps the run has logged."""
    file = run / "metrics.jsonl"
    return max(0, len(file.read_text().splitlines()) - 1) if file.exists() else 0


def wait_for_step(process: subprocess.Popen[str], run: Path, step: int) -> None:
    """Wait until a step is logged."""
    deadline = time.monotonic() + 120
    while steps_of(run) < step:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.05)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_finishes_the_step_and_saves(
    tmp_path: Path, repo_root: Path, number: signal.Signals, code: int
) -> None:
    """The checkpoint is that of the last logged step, and the run can be extended from there."""
    run = tmp_path / "run"
    process = start(repo_root, "--out", str(run), "--set", LONG)
    wait_for_step(process, run, 1)
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err[-2000:]
    assert "stopping after this step" in err
    done = steps_of(run)
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert checkpoint.name == f"step-{done:06d}"
    again = start(repo_root, "--resume", str(run), "--set", f"run.steps={done + 1}")
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err[-2000:]
    assert json.loads(out)["steps"] == done + 1
    assert steps_of(run) == done + 1


def test_two_signals_stop_at_once_without_damage(tmp_path: Path, repo_root: Path) -> None:
    """Nothing is saved, nothing half-done has a checkpoint's name, and the run starts over."""
    run = tmp_path / "run"
    process = start(repo_root, "--out", str(run), "--set", LONG)
    wait_for_step(process, run, 1)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    # the second signal may have come after the step was done and saved
    saved = [int(p.name.removeprefix("step-")) for p in (run / "checkpoints").iterdir() if p.name.startswith("step-")]
    goal = max(saved, default=0) + 1
    again = start(repo_root, "--resume", str(run), "--set", f"run.steps={goal}")
    _, err = again.communicate(timeout=120)
    assert again.returncode == 0, err[-2000:]
    assert steps_of(run) == goal
