"""Speed beside TRL's GRPOTrainer and beside a bare decode loop, on one model and the same problems.

    python3 -m venv .venv-trl
    .venv-trl/bin/python -m pip install -c benchmarks/speed/constraints.txt torch transformers trl datasets jmespath
    python benchmarks/speed/run.py --trl-python .venv-trl/bin/python --json benchmarks/results/speed.json

An RL step: both sides run the tool in their own process, in float32, with one optimizer update a step; each
is a process of its own, so the peak memory is that side's alone. TRL runs at its defaults (gradient
checkpointing, 8 rows a micro-batch) and without checkpointing at two larger micro-batches. A further line is
ours with the tool in the sandbox; `tool s` is what the step's calls took together (in the sandbox they run
beside each other and beside decoding, so the step grows by less).

Sides take turns, round by round, so that a machine that slows down slows all of them; the ratio of each round
is printed, and the median of the rounds. Keep the machine free of other work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentrl_cli.data.generated import generate_problems
from agentrl_cli.sampler.loading import resolve_path

HERE = Path(__file__).parent
TRL_SETTINGS: dict[str, dict[str, Any]] = {
    "TRL, defaults": {"micro_batch": 8, "gradient_checkpointing": True},
    "TRL, no checkpointing, 32 rows": {"micro_batch": 32, "gradient_checkpointing": False},
    "TRL, no checkpointing, 128 rows": {"micro_batch": 128, "gradient_checkpointing": False},
}
OURS = "agentrl"
OURS_SANDBOXED = "agentrl, tool in the sandbox"


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-python", required=True, help="interpreter of the environment that has trl")
    parser.add_argument("--model", default="builtin:tiny")
    parser.add_argument("--steps", type=int, default=8, help="steps of a side in each round; the first is left out")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    job = {
        "model": str(resolve_path(options.model)),
        "problems": [asdict_problem(p) for p in generate_problems("train", count=max(128, 16 * options.steps), seed=0)],
        "steps": options.steps,
        "threads": options.threads,
        "problems_per_step": 16,
        "num_generations": 8,
        "max_turns": 4,
        "max_completion_length": 192,
        "learning_rate": 1e-5,
        "micro_batch_tokens": 2048,
        "decode_batch": 128,
        "decode_tokens": 64,
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in (OURS, OURS_SANDBOXED, *TRL_SETTINGS)}
    for _ in range(options.rounds):
        runs[OURS].append(run_side(sys.executable, "our_side.py", {**job, "sandbox": False}))
        runs[OURS_SANDBOXED].append(run_side(sys.executable, "our_side.py", {**job, "sandbox": True}))
        for name, setting in TRL_SETTINGS.items():
            runs[name].append(run_side(options.trl_python, "trl_side.py", {**job, **setting}))
    decoding = run_side(sys.executable, "decode_side.py", job)
    report_steps(runs)
    report_decoding(decoding, batch=job["decode_batch"])
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"steps": runs, "decode_tokens_per_s": decoding}, indent=1) + "\n")


def asdict_problem(problem: Any) -> dict[str, str]:
    """Return what both sides need of a problem."""
    values = asdict(problem)
    return {"prompt": values["prompt"], "answer": values["answer"]}


def run_side(python: str, script: str, job: dict[str, Any]) -> dict[str, Any]:
    """Run one side in a fresh process and return what it printed last."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job))
        done = subprocess.run([python, str(HERE / script), str(file)], stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def report_steps(runs: dict[str, list[dict[str, Any]]]) -> None:
    """Print medians over all steps but each run's first, and the ratio to ours in the same round."""
    columns = f"{'step s':>7} {'gen s':>6} {'tool s':>7} {'tokens':>7} {'calls':>6} {'peak MiB':>9} {'x ours':>7}"
    print(f"{'side':34} {columns}  rounds")
    for name, rounds in runs.items():
        ratios = [step_s(theirs) / step_s(ours) for theirs, ours in zip(rounds, runs[OURS], strict=True)]
        print(
            f"{name:34} {statistics.median(step_s(r) for r in rounds):7.2f} "
            f"{statistics.median(statistics.median(r['generation_s'][1:]) for r in rounds):6.2f} "
            f"{statistics.median(statistics.median(r['tool_s'][1:]) for r in rounds):7.3f} "
            f"{mean(rounds, 'completion_tokens'):7.1f} {mean(rounds, 'tool_calls'):6.2f} "
            f"{max(r['peak_mib'] for r in rounds):9.0f} {statistics.median(ratios):7.2f}  "
            + " ".join(f"{ratio:.2f}" for ratio in ratios)
        )


def report_decoding(rates: dict[str, float], *, batch: int) -> None:
    """Print tokens a second, and the share of the bare loop's."""
    print(f"\ndecoding, batch {batch:<5} {'tokens/s':>9} {'of bare':>8}")
    for name, rate in rates.items():
        print(f"{name:22} {rate:9.0f} {rate / rates['bare loop']:8.2f}")


def step_s(run: dict[str, Any]) -> float:
    """Return the median seconds of a step, the first left out (it warms up)."""
    return statistics.median(run["step_s"][1:])


def mean(rounds: list[dict[str, Any]], key: str) -> float:
    """Return the mean of a per-step value over all steps and rounds."""
    return statistics.fmean(value for run in rounds for value in run[key])


if __name__ == "__main__":
    main()
