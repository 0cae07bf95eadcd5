"""Kills RL runs at random moments and resumes them; prints what became of each as JSON.

A script of its own: it imports torch once and forks a process for each run, before any thread of torch
exists, so that a kill costs what a run costs and not the imports.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from agentrl_cli.config.load import load_config
from agentrl_cli.files import read_rows
from agentrl_cli.reporting import NullReporter
from agentrl_cli.training.rl import run_rl

SETTINGS = [
    "run.steps=4",
    "run.save_every_steps=2",
    "run.threads=1",
    "grpo.problems_per_step=4",
    "grpo.num_generations=4",
    "grpo.num_minibatches=2",
    "eval.num_problems=3",
    "eval.num_samples=2",
    "data.generated.num_train=64",
    "sandbox.pool_size=2",
    "optim.schedule=cosine",
]


def start(out: Path, *, resume: bool) -> int:
    """Fork a process that runs (or resumes) the run; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        config = load_config("tiny", None, SETTINGS)
        target = {"out": None, "resume": out} if resume else {"out": out, "resume": None}
        run_rl(config, **target, reporter=NullReporter())
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def finish(pid: int) -> float:
    """Wait for a run to end well; returns the seconds that took."""
    began = time.monotonic()
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(f"a run ended with wait status {status}")
    return time.monotonic() - began


def outcome(out: Path) -> dict[str, object]:
    """Return what must be equal: final weights, optimizer and metrics without times."""
    (checkpoint,) = (out / "checkpoints").glob("step-*4")
    rows, torn = read_rows(out / "metrics.jsonl")
    metrics = [{k: v for k, v in row.items() if not k.startswith(("time/", "perf/"))} for row in rows]
    return {
        "weights": (checkpoint / "model.safetensors").read_bytes().hex(),
        "optimizer": (checkpoint / "optimizer.pt").read_bytes().hex(),
        "metrics": metrics,
        "after": json.loads((out / "eval" / "step-000004.json").read_text()),
        "trajectories": sorted(file.name for file in (out / "trajectories").iterdir()),
        "torn": torn,
    }


def main() -> None:
    """Run once without a kill, then kill and resume until enough kills have met a run."""
    folder, num_kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    whole = folder / "whole"
    seconds = finish(start(whole, resume=False))
    expected = outcome(whole)
    results: list[dict[str, object]] = []
    kills = 0
    while kills < num_kills:
        out = folder / f"killed-{len(results)}"
        at: list[float] = []
        resume = False
        for _ in range(rng.randint(1, 3)):
            pid = start(out, resume=resume)
            delay = rng.uniform(0.02, seconds)
            time.sleep(delay)
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            resume = (out / "config.json").is_file()
            if os.WIFSIGNALED(status):
                kills += 1
                at.append(round(delay, 2))
        finish(start(out, resume=resume))
        got = outcome(out)
        results.append({"killed_at_s": at, "differs": [key for key in expected if got[key] != expected[key]]})
    print(json.dumps({"seconds": seconds, "kills": kills, "runs": results, "rows": len(expected["metrics"])}))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
