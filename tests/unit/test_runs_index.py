"""Runs are listed as they are, pruned without harm, and compared without invented numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agentrl_cli.config.load import load_config
from agentrl_cli.errors import ConfigError, DataError, RunError
from agentrl_cli.files import atomic_dir, read_rows, write_atomic, write_rows
from agentrl_cli.records import trajectory_to_row
from agentrl_cli.runs import RunFolder
from agentrl_cli.runs_index.compare import compare_runs
from agentrl_cli.runs_index.compare_text import render_comparison
from agentrl_cli.runs_index.facts import show_size
from agentrl_cli.runs_index.listing import find_run, list_runs, render_runs
from agentrl_cli.runs_index.paired import sign_flip_p_value
from agentrl_cli.runs_index.prune import PrunePlan, apply_prune, plan_prune
from agentrl_cli.types import Problem, Trajectory, Verdict, VerdictStatus

NOW = datetime.now(UTC)


def make_run(path: Path, *settings: str, kind: str = "rl", steps: int = 0, checkpoints: Sequence[int] = ()) -> Path:
    """Write a run that ended well, with accuracy 0.5 at each step, one trajectory file a step, and checkpoints."""
    config = load_config("tiny", None, ["run.steps=12", *settings])
    with RunFolder.create(config, kind=kind, out=path, digest="d") as run:
        for step in range(1, steps + 1):
            run.log_metrics(step, {"accuracy": 0.5})
            for suffix in (".jsonl", ".safetensors"):
                write_atomic(run.trajectories / f"step-{step:06d}{suffix}", "x" * 10)
        for step in checkpoints:
            with atomic_dir(run.checkpoint_path(step)) as folder:
                (folder / "model.safetensors").write_bytes(b"w" * 100)
    return path


def prune(root: Path, *names: str, what: str = "checkpoints", keep: int | None = None, days: float | None = None):
    """Plan a prune of today."""
    return plan_prune(root, names, what=what, keep=keep, older_than_days=days, now=NOW)


def items(plan: PrunePlan) -> list[str]:
    return [f"{item.run.name}/{item.name}".rstrip("/") for item in plan.items]


def entries(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.name != ".lock")


# --- list ---


def test_runs_are_listed_newest_first_with_their_state(tmp_path: Path) -> None:
    """Running is whose lock is held; done and stopped stand in the events; what was killed left no word."""
    make_run(tmp_path / "b-done", steps=12)
    make_run(tmp_path / "a-failed", steps=3)
    with pytest.raises(ValueError, match="boom"), RunFolder.open(tmp_path / "a-failed"):
        raise ValueError("boom")
    make_run(tmp_path / "killed").joinpath("events.log").write_text("2026-01-01T00:00:00+00:00 created\n")
    make_run(tmp_path / "running", kind="sft")
    holder = RunFolder.open(tmp_path / "running")
    found = list_runs(tmp_path)
    holder.close()
    assert [(run.name, run.state, run.reason, run.steps, run.planned) for run in found] == [
        ("running", "running", "", 0, None),
        ("killed", "stopped", "killed, or the machine went down", 0, 12),
        ("a-failed", "failed", "ValueError: boom", 3, 12),
        ("b-done", "done", "", 12, 12),
    ]


def test_the_last_score_and_the_size_are_shown(tmp_path: Path) -> None:
    """Accuracy is that of the last step that has one, as is each held-out score; size counts every file."""
    run = make_run(tmp_path / "run", steps=2)
    with RunFolder.open(run) as folder:
        folder.log_metrics(3, {"accuracy": 0.75, "eval/held_out/avg@4": 0.25, "eval/held_out/greedy": 1.0})
        folder.log_metrics(4, {"loss": 1.0})
    before = list_runs(tmp_path)[0]
    assert (before.accuracy, before.eval, before.steps) == (0.75, {"eval/held_out/avg@4": 0.25}, 4)
    (run / "trajectories" / "more").write_bytes(b"x" * 5000)
    assert list_runs(tmp_path)[0].size_bytes == before.size_bytes + 5000
    assert before.to_json()["eval"] == {"eval/held_out/avg@4": 0.25}
    created = datetime.fromisoformat(before.created)
    header, row = render_runs([before], now=created + timedelta(hours=49)).splitlines()
    assert header.split() == ["name", "kind", "model", "state", "steps", "acc", "eval", "size", "age"]
    assert row.split()[:7] == ["run", "rl", "tiny", "done", "4/12", "0.750", "0.250"]
    assert row.split()[-1] == "2d"  # 49 hours


def test_what_is_no_run_is_skipped_and_damage_is_named(tmp_path: Path) -> None:
    """Models, evaluations, files and half-removed runs are no runs; a run that can't be read says why."""
    write_atomic(tmp_path / "model" / "config.json", "{}")
    write_atomic(tmp_path / "eval" / "aime" / "result.json", "{}")
    write_atomic(tmp_path / "notes.txt", "")
    write_atomic(tmp_path / ".gone.partial-abc" / "metrics.jsonl", "")
    make_run(tmp_path / "good")
    make_run(tmp_path / "torn").joinpath("config.json").write_text('{"schema": 1,')
    make_run(tmp_path / "broken").joinpath("metrics.jsonl").write_text("{]\n{}\n")
    bare = make_run(tmp_path / "bare") / "config.json"
    bare.write_text(json.dumps(json.loads(bare.read_text()) | {"created": "yesterday"}))
    found = {run.name: run for run in list_runs(tmp_path)}
    assert sorted(found) == ["bare", "broken", "good", "torn"]
    assert [name for name, run in found.items() if run.state == "damaged"] == ["bare", "broken", "torn"]
    assert "no readable config.json" in found["torn"].reason
    assert "line 1 of" in found["broken"].reason
    assert "yesterday" in found["bare"].reason
    assert "broken: damaged: line 1 of" in render_runs(list(found.values()), now=NOW)


def test_a_missing_root_is_named_and_an_empty_one_is_no_error(tmp_path: Path) -> None:
    """No runs yet is an answer; a wrong folder is a mistake."""
    assert render_runs(list_runs(tmp_path), now=NOW) == "no runs"
    with pytest.raises(RunError, match="no folder") as caught:
        list_runs(tmp_path / "no")
    assert "--root" in caught.value.hint


def test_a_run_is_found_by_path_or_name_and_the_nearest_is_named(tmp_path: Path) -> None:
    """A typing mistake gets the name that was meant."""
    run = make_run(tmp_path / "rl-tiny-1")
    assert find_run(tmp_path, "rl-tiny-1") == find_run(Path("elsewhere"), str(run)) == run
    with pytest.raises(RunError, match="'rl-tny-1' is no run") as caught:
        find_run(tmp_path, "rl-tny-1")
    assert caught.value.hint == "did you mean rl-tiny-1?"


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")])
def test_sizes_are_in_binary_units(size: int, text: str) -> None:
    """1.5 KiB is 1536 bytes."""
    assert show_size(size) == text


# --- prune ---


def test_old_checkpoints_go_and_the_newest_stays(tmp_path: Path) -> None:
    """By default all but the newest of each run go; copies under other names are not ours to remove."""
    run = make_run(tmp_path / "run", checkpoints=[1, 2, 10])
    (run / "checkpoints" / "step-000002-best").mkdir()
    plan = prune(tmp_path)
    assert (items(plan), plan.size_bytes) == (["run/checkpoints/step-000001", "run/checkpoints/step-000002"], 200)
    assert entries(run / "checkpoints") == ["step-000001", "step-000002", "step-000002-best", "step-000010"]
    assert items(apply_prune(plan)) == items(plan)
    assert entries(run / "checkpoints") == ["step-000002-best", "step-000010"]
    assert items(prune(tmp_path)) == []
    assert list_runs(tmp_path)[0].state == "done"
    assert "pruned 2 checkpoints" in (run / "events.log").read_text()


def test_keep_counts_the_newest_of_each_run(tmp_path: Path) -> None:
    """--keep 2 of three checkpoints takes the oldest; more than there are takes nothing."""
    make_run(tmp_path / "run", checkpoints=[1, 2, 3], steps=3)
    assert items(prune(tmp_path, keep=2)) == ["run/checkpoints/step-000001"]
    assert items(prune(tmp_path, keep=9)) == []
    assert items(prune(tmp_path, what="trajectories", keep=9)) == []
    kept_one = prune(tmp_path, what="trajectories", keep=1)
    assert items(kept_one) == ["run/trajectories/step-000001", "run/trajectories/step-000002"]
    assert kept_one.size_bytes == 40  # two files of 10 bytes each


def test_trajectories_go_with_their_tokens_and_metrics_stay(tmp_path: Path) -> None:
    """Rows and sidecar of a step are one item."""
    run = make_run(tmp_path / "run", steps=3)
    apply_prune(prune(tmp_path, what="trajectories"))
    assert entries(run / "trajectories") == []
    assert len(read_rows(run / "metrics.jsonl")[0]) == 3


def test_a_run_that_is_written_is_never_touched(tmp_path: Path) -> None:
    """Neither when it is planned nor when the writer comes after the plan was made."""
    run = make_run(tmp_path / "run", checkpoints=[1, 2], steps=1)
    for what in ("checkpoints", "trajectories", "runs"):
        early = prune(tmp_path, "run", what=what)
        assert len(early.items) == 1
        with RunFolder.open(run):
            late = prune(tmp_path, "run", what=what)
            assert (late.items, late.skipped) == ((), ((str(run), "a process is writing it"),))
            done = apply_prune(early)
        assert done.items == ()
        assert "writ" in done.skipped[0][1]
    assert entries(run / "checkpoints") == ["step-000001", "step-000002"]
    assert (run / "trajectories" / "step-000001.jsonl").exists()


def test_the_newest_checkpoint_stays_even_if_the_plan_is_old(tmp_path: Path) -> None:
    """A later checkpoint that has gone since must not make an old plan take the last one."""
    run = make_run(tmp_path / "run", checkpoints=[1, 2])
    plan = prune(tmp_path)
    (run / "checkpoints" / "step-000002" / "model.safetensors").unlink()
    (run / "checkpoints" / "step-000002").rmdir()
    assert apply_prune(plan).items == ()
    assert entries(run / "checkpoints") == ["step-000001"]


def test_what_another_run_starts_from_stays(tmp_path: Path) -> None:
    """Adapters and resumed runs load their start again; if both runs go, nothing holds it."""
    sft = make_run(tmp_path / "sft", kind="sft", checkpoints=[1, 2, 3])
    start = sft / "checkpoints" / "step-000001"
    make_run(tmp_path / "rl", f"model.path={start}")
    plan = prune(tmp_path)
    assert items(plan) == ["sft/checkpoints/step-000002"]
    assert plan.skipped == ((str(start), "the run rl starts from it"),)
    assert items(prune(tmp_path, "sft", what="runs")) == []
    assert sorted(items(prune(tmp_path, "sft", "rl", what="runs"))) == ["rl", "sft"]


def test_runs_go_by_age_and_number(tmp_path: Path) -> None:
    """Both conditions must hold; age is that of the last metrics."""
    for name, days in (("old", 30), ("older", 40), ("new", 1)):
        file = make_run(tmp_path / name, steps=1) / "metrics.jsonl"
        written = (NOW - timedelta(days=days)).timestamp()
        os.utime(file, (written, written))
    assert sorted(items(prune(tmp_path, what="runs", days=7))) == ["old", "older"]
    assert items(prune(tmp_path, what="runs", days=35)) == ["older"]
    assert items(prune(tmp_path, what="runs", keep=2)) == ["old"]  # created first
    assert items(prune(tmp_path, what="runs", keep=2, days=35)) == []
    apply_prune(prune(tmp_path, what="runs", days=7))
    assert entries(tmp_path) == ["new"]


def test_damaged_runs_go_by_name_only(tmp_path: Path) -> None:
    """It may be a run of another version."""
    make_run(tmp_path / "bad").joinpath("config.json").write_text("{")
    assert items(prune(tmp_path, what="runs", keep=0)) == []
    assert items(prune(tmp_path, "bad")) == []
    apply_prune(prune(tmp_path, "bad", what="runs"))
    assert entries(tmp_path) == []


def test_a_folder_that_is_no_run_is_never_removed(tmp_path: Path) -> None:
    """Naming any other folder is an error."""
    write_atomic(tmp_path / "precious" / "thesis.tex", "")
    with pytest.raises(RunError, match="is no run"):
        prune(tmp_path, str(tmp_path / "precious"), what="runs")


@pytest.mark.parametrize(
    ("what", "keep", "words"),
    [
        ("everything", None, "--what 'everything' is unknown"),
        ("checkpoints", 0, "would take the newest checkpoint"),
        ("runs", None, "nothing says which runs"),
    ],
)
def test_senseless_conditions_are_refused(tmp_path: Path, what: str, keep: int | None, words: str) -> None:
    """Each says what to give instead."""
    with pytest.raises(ConfigError, match=words) as caught:
        prune(tmp_path, what=what, keep=keep)
    assert caught.value.hint


# --- compare ---


def write_samples(file: Path, correct: dict[str, Sequence[bool]], *, gold: str = "1") -> None:
    """Write an evaluation's samples, problem by problem."""
    rows = []
    for problem, values in correct.items():
        for k, value in enumerate(values):
            trajectory = Trajectory(f"{problem}#{k}", Problem(problem, "?", gold), problem, 0, [], [])
            trajectory.verdict = Verdict(value, VerdictStatus.OK)
            rows.append(trajectory_to_row(trajectory))
    file.parent.mkdir(parents=True, exist_ok=True)
    write_rows(file, rows)


def measured(run: Path, step: int, correct: dict[str, Sequence[bool]], *, k: int) -> None:
    """Write a held-out evaluation as rl stores it: after the samples comes a greedy one of each problem."""
    result = {"step": step, "accuracy": 0.5, "accuracy_greedy": 0.25, "stderr": 0.125, "n": len(correct), "k": k}
    write_atomic(run / "eval" / f"step-{step:06d}.json", json.dumps(result))
    write_samples(run / "eval" / f"step-{step:06d}.jsonl", correct)


def test_settings_and_identity_that_differ_are_listed(tmp_path: Path) -> None:
    """By dotted name, with both values; equal ones are left out."""
    a = make_run(tmp_path / "a", "grpo.epsilon_high=0.3")
    b = make_run(tmp_path / "b", "grpo.epsilon_high=0.25", "model.lora.r=8")
    with RunFolder.open(b) as run:
        run.record_identity({"weights_sha256": "ab" * 32})
    result = compare_runs(a, b)
    settings = {row["name"]: (row["a"], row["b"]) for row in result["settings"]}
    assert settings.keys() == {"grpo.epsilon_high", "model.lora"}
    assert settings["grpo.epsilon_high"] == (0.3, 0.25)
    assert (settings["model.lora"][0], settings["model.lora"][1]["r"]) == (None, 8)
    assert result["identity"] == [{"name": "model.weights_sha256", "a": "(not set)", "b": "ab" * 32}]
    text = render_comparison(result)
    assert "  grpo.epsilon_high: 0.3 -> 0.25\n" in text
    assert "  model.weights_sha256: (not set) -> abababababab…\n" in text
    assert compare_runs(a, a)["settings"] == []


def test_metrics_are_means_of_the_last_ten_common_steps(tmp_path: Path) -> None:
    """Steps that one run lacks do not count for the other, and each mean comes with its standard error."""
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    with RunFolder.open(a) as run:
        for step in range(1, 13):
            run.log_metrics(step, {"accuracy": 0.4 if step % 2 else 0.6})
    with RunFolder.open(b) as run:
        for step in range(3, 16):
            run.log_metrics(step, {"accuracy": 0.75, "entropy": 1.0})
    [row] = compare_runs(a, b)["metrics"]
    assert (row["name"], row["first_step"], row["last_step"], row["n"]) == ("accuracy", 3, 12, 10)
    # A: ten values 0.1 off their mean 0.5: sd = sqrt(10 * 0.01 / 9) = 1/9.487, / sqrt(10) = 1/30
    assert (row["a"], row["a_stderr"]) == pytest.approx((0.5, 1 / 30))
    assert (row["b"], row["b_stderr"]) == pytest.approx((0.75, 0.0))
    assert (row["difference"], row["difference_stderr"]) == pytest.approx((0.25, 1 / 30))


def test_equal_problems_are_compared_in_pairs(tmp_path: Path) -> None:
    """The standard error is clustered by problem; greedy samples behind the k are left out."""
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    right, wrong = True, False
    measured(a, 5, {"p": [right, wrong, wrong], "q": [wrong, wrong, right], "r": [right, right, wrong]}, k=2)
    measured(b, 5, {"p": [right, right, wrong], "q": [right, wrong, right], "r": [right, right, wrong]}, k=2)
    [row] = compare_runs(a, b)["evaluations"]
    # avg@2 of p, q, r: A 1/2, 0, 1; B 1, 1/2, 1: differences 1/2, 1/2, 0
    # sd = sqrt((1/36 + 1/36 + 4/36) / 2) = sqrt(1/12); / sqrt(3) = 1/6
    # signs of the two that differ: sums 1, 0, 0, -1, of which two are as far from 0 as the observed 1
    assert (row["name"], row["n"], row["k"]) == ("after", 3, 2)
    assert (row["a"], row["b"], row["difference"], row["stderr"]) == pytest.approx((0.5, 5 / 6, 1 / 3, 1 / 6))
    assert row["p_value"] == 0.5
    assert row["low"] <= row["difference"] <= row["high"]


@pytest.mark.parametrize(
    ("other", "k", "gold", "reason"),
    [
        ({"p": [True], "x": [True]}, 1, "1", "other problems: 2 and 2, 1 in both"),
        ({"p": [True], "q": [True]}, 1, "2", "2 problems of the same id have another gold answer, such as 'p'"),
        ({"p": [True] * 2, "q": [True] * 2}, 2, "1", "1 and 2 samples of each problem"),
        ({"p": [True], "q": [True, True]}, 2, "1", "has not 2 samples of each problem ('p')"),
    ],
)
def test_what_can_not_be_paired_says_why(
    tmp_path: Path, other: dict[str, Sequence[bool]], k: int, gold: str, reason: str
) -> None:
    """Other problems, other golds, other k, missing samples."""
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    measured(a, 0, {"p": [True], "q": [False]}, k=1)
    measured(b, 0, other, k=k)
    write_samples(b / "eval" / "step-000000.jsonl", other, gold=gold)
    [row] = compare_runs(a, b)["evaluations"]
    assert row["name"] == "before"
    assert reason in row["not_comparable"]
    assert "difference" not in row


def test_benchmarks_are_paired_by_name_and_sampling(tmp_path: Path) -> None:
    """The same benchmark at another temperature is another measurement; one that only one run has is named."""
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    for run, name, temperature in ((a, "aime", 1.0), (b, "aime", 0.5), (b, "gsm8k", 1.0)):
        write_samples(run / "eval" / name / "samples.jsonl", {"p": [True]})
        result = {"k": 1, "temperature": temperature, "top_p": 1.0}
        write_atomic(run / "eval" / name / "result.json", json.dumps(result))
    assert {row["name"]: row["not_comparable"] for row in compare_runs(a, b)["evaluations"]} == {
        "aime": "sampled differently: temperature 1, top_p 1 and temperature 0.5, top_p 1",
        "gsm8k": "only B has it",
    }


def test_before_and_after_stand_side_by_side(tmp_path: Path) -> None:
    """Step 0 is before, the last later evaluation is after; what was not measured says so."""
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    for step in (0, 5, 12):
        measured(a, step, {"p": [True]}, k=1)
    result = compare_runs(a, b)
    assert (result["a"]["before"]["step"], result["a"]["after"]["step"]) == (0, 12)
    assert (result["b"]["before"], result["b"]["after"]) == (None, None)
    line = "  after   A 0.500 ± 0.125 (step 12, 1 problems x 1)  B not measured\n"
    assert line in render_comparison(result)


def test_a_damaged_result_is_an_error(tmp_path: Path) -> None:
    """A comparison over what can't be read would be half a comparison."""
    run = make_run(tmp_path / "a")
    write_atomic(run / "eval" / "step-000000.json", "{")
    with pytest.raises(DataError, match=r"step-000000\.json' can't be read"):
        compare_runs(run, run)


@pytest.mark.parametrize(
    ("differences", "p_value"),
    [
        ([1.0, 1.0, 1.0], 0.25),  # of 8 sign patterns +++ and --- reach 3
        ([1.0, 0.0, 1.0], 0.5),  # zeros have no sign: 2 of 4
        ([1.0, 0.5], 0.5),  # sums 1.5, 0.5, -0.5, -1.5
        ([0.5, -0.5], 1.0),
        ([0.0], 1.0),
    ],
)
def test_sign_flips_are_counted_exactly_for_few_problems(differences: list[float], p_value: float) -> None:
    """All patterns are enumerated."""
    assert sign_flip_p_value(differences, seed=0) == p_value


def test_sign_flips_of_many_problems_are_sampled_and_never_zero() -> None:
    """13 equal differences: 2 of 8192 patterns are as extreme, 0.00024; 60 are never drawn again."""
    assert 1 / 10_001 <= sign_flip_p_value([1.0] * 13, seed=0) < 0.001
    assert sign_flip_p_value([1.0] * 60, seed=0) == 1 / 10_001
