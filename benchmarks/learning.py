"""Is it learning, or sharpening? One table per seed, on the tiny preset.

    python benchmarks/learning.py --seeds 0 1 2 --json benchmarks/results/learning.json

For each seed, through the commands that a user types:

- GRPO-TCR (`agentrl rl --preset tiny`): accuracy on held-out problems before and after, sampled
  (avg@4) and greedy, on the family that the cold start never shows, and the share of right answers
  whose value stands in a successful tool output;
- plain GRPO with the same number of trajectories (symmetric clip, sequence-mean loss, no length
  term, no refill of groups);
- more SFT of the starter on its own data, for at least as long as the RL run took;

and once: a model of the same size trained on direct answers without a tool.
Finished cells are kept in the work folder and not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl_cli.data.generated import generate_problems

UNSEEN_FAMILY = "left_bags"
PLAIN_GRPO = (
    "grpo.epsilon_high=0.2",
    "grpo.loss_agg_mode=seq-mean-token-mean",
    "grpo.overlong.enabled=false",
    "grpo.filter_groups.enabled=false",
)


def agentrl(*arguments: str) -> dict[str, Any]:
    """Run one command and return its JSON result; progress goes to this terminal."""
    command = [sys.executable, "-m", "agentrl_cli", *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def cell(file: Path, make: Any) -> dict[str, Any]:
    """Return the stored result of a cell, or make and store it."""
    if file.is_file():
        return dict(json.loads(file.read_text()))
    start = time.monotonic()
    result = {**make(), "cell_wall_s": round(time.monotonic() - start, 1)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1))
    return result


def fresh(folder: Path) -> str:
    """Return a run folder's name after removing what an interrupted cell left there (its times would be wrong)."""
    if folder.exists():
        shutil.rmtree(folder)
    return str(folder)


def settings(*pairs: str) -> list[str]:
    """Return `--set` options."""
    return [part for pair in pairs for part in ("--set", pair)]


def rl(work: Path, seed: int, name: str, *, steps: int | None, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Train one policy."""
    extra = [*overrides, *([f"run.steps={steps}"] if steps else [])]
    out = work / f"{name}-{seed}-run"
    return cell(
        work / f"{name}-{seed}.json",
        lambda: agentrl("rl", "--preset", "tiny", "--seed", str(seed), "--out", fresh(out), *settings(*extra)),
    )


def cold_start_rows(work: Path) -> Path:
    """Collect and filter the data that the starter was made from."""
    rows = work / "sft.jsonl"
    if not rows.is_file():
        raw = work / "collected.jsonl"
        agentrl(
            "collect", "--preset", "tiny", "--problems", "generated:sft", "--teacher", "scripted", "--out", str(raw)
        )
        agentrl("filter", str(raw), "--preset", "tiny", "--out", str(rows))
    return rows


def more_sft(work: Path, seed: int, *, wall_s: float) -> dict[str, Any]:
    """Go on with SFT from the starter for at least as long as RL took, then evaluate."""

    def make() -> dict[str, Any]:
        rows = str(cold_start_rows(work))
        common = ("sft", "--preset", "tiny", "--seed", str(seed), "--data", rows)
        probe = agentrl(*common, "--out", fresh(work / f"sft-probe-{seed}"), *settings("sft.epochs=1"))
        epochs = math.ceil(wall_s / probe["wall_s"])
        run = agentrl(*common, "--out", fresh(work / f"sft-{seed}-run"), *settings(f"sft.epochs={epochs}"))
        return {**evaluate(run["checkpoint"], seed), "epochs": epochs, "wall_s": run["wall_s"]}

    return cell(work / f"more-sft-{seed}.json", make)


def evaluate(model: str, seed: int, *extra: str) -> dict[str, Any]:
    """Return sampled and greedy accuracy on held-out problems."""
    common = ("eval", "generated", "--preset", "tiny", "--model", model, "--seed", str(seed), *extra)
    sampled = agentrl(*common, "--out", f"{model}-eval")
    greedy = agentrl(*common, "--out", f"{model}-greedy", *settings("eval.temperature=0", "eval.num_samples=1"))
    return {"accuracy": sampled["avg_at_k"], "accuracy_greedy": greedy["avg_at_k"], "n": sampled["n"]}


def direct_answers(work: Path, *, epochs: int) -> dict[str, Any]:
    """Train a fresh model of the same size on question -> answer, and evaluate it without a tool."""

    def make() -> dict[str, Any]:
        rows = work / "direct.jsonl"
        problems = [
            *generate_problems("sft", count=4000, seed=0),
            *generate_problems("train", count=4000, seed=0),
        ]
        lines = []
        for problem in problems:
            answer = {"role": "assistant", "content": f"The answer is \\boxed{{{problem.answer}}}."}
            lines.append(json.dumps({"messages": [{"role": "user", "content": problem.prompt}, answer], "tools": []}))
        rows.write_text("\n".join(lines) + "\n")
        untrained = work / "fresh"
        make_fresh = [sys.executable, "-m", "agentrl_cli.training.starter", "fresh", str(rows), str(untrained)]
        subprocess.run(make_fresh, check=True)
        run = agentrl(
            *("sft", "--preset", "tiny", "--data", str(rows), "--out", fresh(work / "direct-run")),
            *settings(f"model.path={untrained}", f"sft.epochs={epochs}"),
        )
        return {**evaluate(run["checkpoint"], 0, "--no-tools"), "wall_s": run["wall_s"]}

    return cell(work / "direct.json", make)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Align columns."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(value.rjust(width) for value, width in zip(row, widths, strict=True)) for row in rows)


def main() -> None:
    """Run all cells and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, help="RL steps; the preset's without it")
    parser.add_argument("--direct-epochs", type=int, default=10)
    parser.add_argument("--work", type=Path, default=Path("runs/learning"))
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()

    header = [
        "seed",
        "arm",
        "avg@4 before",
        "after",
        "greedy before",
        "after",
        "unseen before",
        "after",
        "on tool",
        "s",
    ]
    rows = [header]
    results: dict[str, Any] = {"direct": direct_answers(options.work, epochs=options.direct_epochs), "seeds": {}}
    for seed in options.seeds:
        tcr = rl(options.work, seed, "grpo-tcr", steps=options.steps)
        plain = rl(options.work, seed, "grpo", steps=options.steps, overrides=PLAIN_GRPO)
        sft = more_sft(options.work, seed, wall_s=tcr["wall_s"])
        cells = {"grpo_tcr": tcr, "grpo": plain, "more_sft": sft}
        results["seeds"][str(seed)] = {name: {k: v for k, v in cells[name].items() if k != "run"} for name in cells}
        for name, result in (("GRPO-TCR", tcr), ("plain GRPO", plain)):
            before, after = result["before"], result["after"]
            numbers = [
                *(before["accuracy"], after["accuracy"], before["accuracy_greedy"], after["accuracy_greedy"]),
                *(before["by_family"][UNSEEN_FAMILY], after["by_family"][UNSEEN_FAMILY]),
                after["answers_on_tool_frac"],
            ]
            rows.append([str(seed), name, *(f"{x:.3f}" for x in numbers), f"{result['wall_s']:.0f}"])
        before = tcr["before"]
        numbers = [before["accuracy"], sft["accuracy"], before["accuracy_greedy"], sft["accuracy_greedy"]]
        rows.append([str(seed), "more SFT", *(f"{x:.3f}" for x in numbers), "", "", "", f"{sft['wall_s']:.0f}"])
    print(table(rows))
    direct = results["direct"]
    print(f"direct answers without a tool: avg@4 {direct['accuracy']:.3f}, greedy {direct['accuracy_greedy']:.3f}")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
