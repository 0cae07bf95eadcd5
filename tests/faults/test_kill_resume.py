"""A run that is killed at any moment and resumed ends with the bits of one that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).with_name("kill_harness.py")


def kill(folder: Path, root: Path, *, kills: int, seed: int) -> dict[str, object]:
    """Run the harness and return its report."""
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(HARNESS), str(folder), str(kills), str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.slow
def test_twenty_kills_change_nothing(tmp_path: Path, repo_root: Path) -> None:
    """Weights, optimizer, metrics and evaluations of each resumed run equal the uninterrupted run's."""
    report = kill(tmp_path, repo_root, kills=20, seed=20)
    assert report["rows"] == 5, "the evaluation before, and four steps"
    assert report["kills"] >= 20
    assert [run for run in report["runs"] if run["differs"]] == [], report  # type: ignore[attr-defined]
