"""Each rule on synthetic metrics: it fires on its fault, keeps still on a healthy run, and says when it can't tell.

Faults start at step 15, after the baseline (steps 3-12). Runs have 65 steps, so that the last five
windows of ten steps (16-25 ... 56-65) lie within the fault.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agentrl_cli.config.digest import config_digest
from agentrl_cli.config.load import load_config
from agentrl_cli.diagnosis import Diagnosis, Finding, diagnose_run
from agentrl_cli.diagnosis.rules import RULES
from agentrl_cli.diagnosis.series import decode_metric, read_metric_log
from agentrl_cli.errors import DataError, RunError
from agentrl_cli.runs import RunFolder

Curve = Callable[[int], float | None]
FAULT = 15


def healthy(seed: int) -> dict[str, Curve]:
    """Return the metrics of a run that learns: accuracy 0.3 to 0.7, entropy 0.6 to 0.45, some noise on all."""
    rng = random.Random(seed)

    def noisy(start: float, end: float, noise: float) -> Curve:
        return lambda step: max(0.0, start + (end - start) * step / 65 + rng.gauss(0, noise))

    return {
        "entropy": noisy(0.6, 0.45, 0.04),
        "accuracy": noisy(0.3, 0.7, 0.05),
        "by_group/frac_all_bad": noisy(0.3, 0.1, 0.05),
        "by_group/frac_all_good": noisy(0.1, 0.3, 0.05),
        "advantage/abs_mean": noisy(0.7, 0.7, 0.05),
        "num_updates": lambda step: 4.0,
        "loss": lambda step: rng.gauss(0, 0.02),
        "grad_norm": noisy(0.5, 0.5, 0.1),
        "completions/clipped_ratio": noisy(0.05, 0.05, 0.02),
        "completions/mean_length": noisy(100, 110, 5),
        "num_turns/mean": noisy(2.5, 2.5, 0.1),
        "tools/call_frequency": noisy(1.5, 1.6, 0.1),
        "tools/failure_frequency": noisy(0.1, 0.05, 0.02),
        "tools/top_error_frac": noisy(0.5, 0.5, 0.1),
        "verdict/no_answer": noisy(0.05, 0.05, 0.02),
        "epsilon_high": lambda step: 0.315,
        "beta": lambda step: 0.0,
        "learning_rate": lambda step: 1e-4,
    }


def write_run(
    folder: Path,
    *,
    steps: int = 65,
    seed: int = 0,
    overrides: Sequence[str] = (),
    without: Sequence[str] = (),
    **faults: Curve,
) -> Path:
    """Write a run whose named metrics (`/` written as `__`) follow a fault from step 15 on."""
    config = load_config("tiny", None, list(overrides))
    curves = {name: curve for name, curve in healthy(seed).items() if name not in without}
    with RunFolder.create(config, kind="rl", out=folder / "run", digest=config_digest(config)) as run:
        for step in range(1, steps + 1):
            row = {name: curve(step) for name, curve in curves.items()}
            if step >= FAULT:
                row |= {name.replace("__", "/"): curve(step) for name, curve in faults.items()}
            run.log_metrics(step, {name: value for name, value in row.items() if value is not None})
    return folder / "run"


def only(diagnosis: Diagnosis) -> Finding:
    """Return the one finding."""
    assert [f.rule for f in diagnosis.findings] == [diagnosis.findings[0].rule], diagnosis.to_text()
    return diagnosis.findings[0]


def level(value: float) -> Curve:
    """Return a flat curve."""
    return lambda step: value


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_run_is_quiet(tmp_path: Path, seed: int) -> None:
    """Every rule can be judged, and none fires."""
    diagnosis = diagnose_run(write_run(tmp_path, seed=seed))
    assert diagnosis.findings == []
    assert diagnosis.no_data == []
    assert [silent.rule for silent in diagnosis.ok] == [rule.number for rule in RULES]


@pytest.mark.parametrize(
    ("rule", "severity", "faults"),
    [
        (2, "warn", {"entropy": level(0.25)}),  # baseline about 0.58: below 0.29, above 0.116
        (2, "critical", {"entropy": level(0.05)}),
        (3, "warn", {"entropy": level(1.0)}),  # above 0.87
        (6, "warn", {"by_group__frac_all_bad": level(0.6)}),
        (6, "critical", {"by_group__frac_all_bad": level(0.9)}),
        (8, "critical", {"advantage__abs_mean": level(0.0)}),
        (8, "critical", {"loss": level(0.0), "grad_norm": level(0.0)}),
        (8, "critical", {"num_updates": level(0.0), "loss": lambda step: None, "grad_norm": lambda step: None}),
        (16, "warn", {"completions__clipped_ratio": level(0.3)}),
        (16, "critical", {"completions__clipped_ratio": level(1.0)}),
        (19, "warn", {"tools__call_frequency": level(0.5)}),  # baseline about 1.5
        (21, "warn", {"tools__failure_frequency": level(0.4)}),
        (21, "warn", {"tools__failure_frequency": level(0.25)}),  # baseline about 0.1, doubled 0.2
    ],
)
def test_a_fault_fires_its_rule_alone(tmp_path: Path, rule: int, severity: str, faults: dict[str, Curve]) -> None:
    """The rule of the fault fires at its severity, with certainty, and no other does."""
    finding = only(diagnose_run(write_run(tmp_path, **faults)))
    assert (finding.rule, finding.severity) == (rule, severity)
    assert finding.confidence == "high"


@pytest.mark.parametrize(
    ("steps", "fires"),
    # the fault holds from step 15 to step 44: windows of the last 50 steps that lie within it
    [(65, True), (75, False)],
)
def test_three_of_the_last_five_windows(tmp_path: Path, steps: int, fires: bool) -> None:
    """A bound must be broken in three of the last five windows; what passed long ago is forgotten."""
    # 65 steps: windows 16-25, 26-35, 36-45 are low (36-45 in 9 of 10 steps), the last two are not
    # 75 steps: windows 26-35, 36-45 are low: two
    run = write_run(tmp_path, steps=steps, entropy=lambda step: 0.1 if step <= 44 else 0.5)
    found = diagnose_run(run).findings
    assert bool(found) is fires
    if fires:
        assert found[0].confidence == "medium"
        assert "3 of 5 windows" in found[0].evidence


def test_calls_vanish_over_twenty_steps(tmp_path: Path) -> None:
    """Twenty steps of few calls are enough for rule 19, ten are not."""
    ten = write_run(tmp_path / "a", tools__call_frequency=lambda step: 0.3 if step > 55 else 1.5)
    assert diagnose_run(ten).findings == []
    twenty = write_run(tmp_path / "b", tools__call_frequency=lambda step: 0.3 if step > 45 else 1.5)
    assert only(diagnose_run(twenty)).rule == 19


def test_entropy_that_falls_with_the_problems_solved_is_news_not_a_fault(tmp_path: Path) -> None:
    """Near the ceiling of accuracy, low entropy is information, and no patch is offered."""
    finding = only(diagnose_run(write_run(tmp_path, entropy=level(0.05), accuracy=level(0.95))))
    assert (finding.rule, finding.severity, list(finding.patch)) == (2, "info", [])
    assert finding.cause == "the problems are solved"


def test_entropy_above_a_nat_counts_only_if_success_is_flat(tmp_path: Path) -> None:
    """From a high baseline, rising entropy is a fault while accuracy is flat and none while it rises."""
    # baseline 1.5 from step 1; the rise to 2.0 at step 65 stays below 1.5 x baseline
    climb: dict[str, Curve] = {"entropy": lambda step: 1.5 + 0.01 * (step - FAULT)}
    for name, accuracy, rules in (("flat", level(0.5), [3]), ("up", lambda step: 0.3 + 0.005 * step, [])):
        log = tmp_path / f"{name}.jsonl"
        rows = [
            {"step": s, "entropy": 1.5 if s < FAULT else climb["entropy"](s), "accuracy": accuracy(s)}
            for s in range(1, 66)
        ]
        log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        assert [f.rule for f in diagnose_run(log).findings] == rules, name


def test_solved_groups_are_news(tmp_path: Path) -> None:
    """Groups that are all right with a high held-out score say: raise the difficulty."""
    faults = {"by_group__frac_all_good": level(0.7), "eval__generated__avg@k": level(0.85)}
    finding = only(diagnose_run(write_run(tmp_path / "a", **faults)))
    assert (finding.rule, finding.severity) == (6, "info")
    assert "eval/generated/avg@k 0.85" in finding.evidence
    # the same with a low score is none
    faults["eval__generated__avg@k"] = level(0.4)
    assert diagnose_run(write_run(tmp_path / "b", **faults)).findings == []


def test_no_signal_tells_a_solved_problem_from_a_broken_parser(tmp_path: Path) -> None:
    """All advantages 0 at full accuracy is information; with answers that nobody finds it names their share."""
    solved = only(diagnose_run(write_run(tmp_path / "a", advantage__abs_mean=level(0.0), accuracy=level(1.0))))
    assert (solved.rule, solved.severity) == (8, "info")
    faults = {"advantage__abs_mean": level(0.0), "verdict__no_answer": level(1.0), "accuracy": level(0.0)}
    broken = only(diagnose_run(write_run(tmp_path / "b", **faults)))
    assert (broken.rule, broken.severity) == (8, "critical")
    assert "100% of the trajectories gave no answer" in broken.evidence


def test_a_run_that_never_learned_needs_only_ten_steps(tmp_path: Path) -> None:
    """When every step is dead, rule 8 does not wait for windows; with a live one among few steps it does."""
    log = tmp_path / "m.jsonl"
    rows = [{"step": s, "loss": 0.0, "grad_norm": 0.0} for s in range(1, 11)]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    finding = only(diagnose_run(log))
    assert (finding.rule, finding.severity) == (8, "critical")
    rows[4]["grad_norm"] = 0.5
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert 8 in {silent.rule for silent in diagnose_run(log).no_data}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_single_value_that_is_not_finite_is_critical(tmp_path: Path, value: float) -> None:
    """One NaN or infinity anywhere fires rule 12 with its step and name, and disturbs no other rule."""
    finding = only(diagnose_run(write_run(tmp_path, loss=lambda step: value if step == 40 else 0.01)))
    assert (finding.rule, finding.severity) == (12, "critical")
    assert finding.evidence == "first at step 40: loss; 1 metrics in all"


def test_one_error_everywhere_points_to_the_environment(tmp_path: Path) -> None:
    """The cause of tool errors is narrowed down when nearly all are the same."""
    same = write_run(tmp_path / "a", tools__failure_frequency=level(0.9), tools__top_error_frac=level(0.97))
    assert only(diagnose_run(same)).cause.startswith("the environment")
    varied = write_run(tmp_path / "b", tools__failure_frequency=level(0.9), tools__top_error_frac=level(0.2))
    assert not only(diagnose_run(varied)).cause.startswith("the environment")


def test_a_few_more_errors_than_almost_none_are_noise(tmp_path: Path) -> None:
    """Twice a tiny share of errors is not reported below a tenth of the calls."""
    log = tmp_path / "m.jsonl"
    rows = [{"step": s, "tools/failure_frequency": 0.01 if s < FAULT else 0.06} for s in range(1, 66)]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert diagnose_run(log).findings == []


def test_a_short_run_says_what_it_lacks(tmp_path: Path) -> None:
    """Rules that can't be judged name the metric and the step they need."""
    reasons = {s.rule: s.reason for s in diagnose_run(write_run(tmp_path, steps=20)).no_data}
    assert set(reasons) == {2, 3, 6, 8, 16, 19, 21}  # 12 looks at every step
    assert "too short" in reasons[2]
    assert "step 42 at least, the run is at 20" in reasons[2]  # baseline to 12, three windows of 10
    assert "step 30 at least, the run is at 20" in reasons[16]  # no baseline needed


def test_a_missing_metric_is_named(tmp_path: Path) -> None:
    """Without its metric a rule has no data; without accuracy entropy can't be judged either."""
    missing = ("tools/call_frequency", "accuracy")
    reasons = {s.rule: s.reason for s in diagnose_run(write_run(tmp_path, without=missing)).no_data}
    assert reasons[19] == "metric 'tools/call_frequency' is missing"
    assert reasons[2] == "neither 'accuracy' nor 'reward/outcome' is in the log"


def test_outcome_stands_in_for_accuracy(tmp_path: Path) -> None:
    """A log with the unshaped outcome (+1 / -1) alone is judged by it."""
    run = write_run(tmp_path, without=("accuracy",), entropy=level(0.05), reward__outcome=level(0.9))
    assert only(diagnose_run(run)).severity == "info"  # (0.9 + 1) / 2 = 0.95


def test_a_run_without_calls_can_not_lose_them(tmp_path: Path) -> None:
    """With no call in the baseline rule 19 has nothing to compare."""
    log = tmp_path / "m.jsonl"
    log.write_text("".join(json.dumps({"step": s, "tools/call_frequency": 0.0}) + "\n" for s in range(1, 66)))
    reasons = {s.rule: s.reason for s in diagnose_run(log).no_data}
    assert reasons[19].startswith("no tool was called in steps 3-12")


def test_the_worst_comes_first(tmp_path: Path) -> None:
    """Critical findings stand before warnings, whatever their number."""
    run = write_run(tmp_path, entropy=level(0.25), completions__clipped_ratio=level(1.0))
    assert [(f.rule, f.severity.value) for f in diagnose_run(run).findings] == [(16, "critical"), (2, "warn")]


BASES: list[list[str]] = [
    [],
    ["grpo.beta=0.001"],
    ["grpo.beta=0.2"],
    ["grpo.kl_monitor_every=5"],
    ["grpo.delta=1.32"],
    ["grpo.epsilon_high_schedule={kind='linear',start=0.3,end=0.25}"],
    ["grpo.epsilon_high_schedule.kind=progressive"],
    ["grpo.loss_agg_mode=sequence", "grpo.epsilon_high=0.0004", "grpo.epsilon_low=0.0003"],
    ["grpo.beta=0.02", "grpo.entropy_control.enabled=true", "grpo.entropy_control.beta_max=0.03"],
    ["rewards.tool_reward=none", "agent.max_tokens_without_call=50"],
    ["grpo.epsilon_high=0.02"],
]


@pytest.mark.parametrize("base", BASES, ids=" ".join)
@pytest.mark.parametrize("collapse", [True, False])
def test_patches_load_on_top_of_the_runs_own_settings(tmp_path: Path, base: list[str], collapse: bool) -> None:
    """Whatever the run was set to, each patch is accepted beside it, and changes something."""
    faults = {
        "entropy": level(0.05 if collapse else 2.0),
        "by_group__frac_all_bad": level(0.9),
        "completions__clipped_ratio": level(0.5),
        "tools__call_frequency": level(0.1),
        "loss": lambda step: float("nan") if step == 30 else 0.01,
    }
    diagnosis = diagnose_run(write_run(tmp_path, overrides=base, **faults))
    assert {f.rule for f in diagnosis.findings} == {2 if collapse else 3, 6, 12, 16, 19}
    before = load_config("tiny", None, base)
    for finding in diagnosis.findings:
        after = load_config("tiny", None, [*base, *finding.patch])
        assert (after != before) is bool(finding.patch), finding


def test_patch_of_a_collapse_raises_the_clip_and_brings_the_controller(tmp_path: Path) -> None:
    """Epsilon_high goes up one step, and the controller comes with its bound and its reference."""
    finding = only(diagnose_run(write_run(tmp_path, entropy=level(0.05))))
    assert list(finding.patch) == [
        "grpo.epsilon_high=0.335",  # tiny has 0.315
        "grpo.entropy_control.enabled=true",
        "grpo.entropy_control.beta_min=0.001",
        "grpo.beta=0.01",
    ]


def test_patch_of_vanishing_calls_caps_a_turn_at_twice_its_baseline(tmp_path: Path) -> None:
    """The cap is twice the generated tokens of a turn in the baseline."""
    log = tmp_path / "m.jsonl"
    rows = [
        {
            "step": s,
            "tools/call_frequency": 2.0 if s < FAULT else 0.1,
            "completions/mean_length": 90.0,
            "num_turns/mean": 3.0,
        }
        for s in range(1, 66)
    ]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert list(only(diagnose_run(log)).patch) == ["agent.max_tokens_without_call=60"]  # 2 * 90 / 3


def test_a_metrics_file_alone_offers_what_was_logged(tmp_path: Path) -> None:
    """Without settings a patch builds on logged values, and where there are none the remedy stays in words."""
    run = write_run(tmp_path, entropy=level(2.0), completions__clipped_ratio=level(0.5))
    by_rule = {f.rule: f for f in diagnose_run(run / "metrics.jsonl").findings}
    assert list(by_rule[3].patch) == ["grpo.epsilon_high=0.275", "grpo.beta=0.01"]  # 0.315 - 0.04
    assert list(by_rule[16].patch) == []


def test_a_torn_last_line_is_left_out_and_said(tmp_path: Path) -> None:
    """A killed writer's last line does not stop the diagnosis."""
    run = write_run(tmp_path)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 66, "entro')
    diagnosis = diagnose_run(run)
    assert diagnosis.last_step == 65
    assert any("cut off" in note for note in diagnosis.notes)


def test_unreadable_settings_cost_patches_not_the_diagnosis(tmp_path: Path) -> None:
    """A broken config.json is said and the metrics are judged all the same."""
    run = write_run(tmp_path, completions__clipped_ratio=level(1.0))
    (run / "config.json").write_text("{")
    diagnosis = diagnose_run(run)
    assert only(diagnosis).rule == 16
    assert any("settings can't be read" in note for note in diagnosis.notes)


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        ("", RunError, "holds no step yet"),
        ('{"loss": 1}\n', DataError, "no whole number as 'step'"),
        ('{"step": "1"}\n', DataError, "got '1'"),
        ('{"step": 1\n{"step": 2}\n', DataError, "not JSON"),
    ],
)
def test_what_is_no_metrics_file_is_refused(tmp_path: Path, content: str, error: type[Exception], said: str) -> None:
    """Errors say what is wrong with the file."""
    log = tmp_path / "metrics.jsonl"
    log.write_text(content)
    with pytest.raises(error, match=said):
        diagnose_run(log)


def test_a_folder_without_metrics_is_refused(tmp_path: Path) -> None:
    """A folder that is no run has no metrics to read."""
    with pytest.raises(RunError, match=r"has no metrics\.jsonl"):
        diagnose_run(tmp_path)


def test_reading_keeps_values_by_name_and_step(tmp_path: Path) -> None:
    """Rows of one step are merged, later ones win, and what is no number is named in a note."""
    log = tmp_path / "m.jsonl"
    log.write_text('{"step": 2, "a": 1}\n{"step": 1, "a": 5}\n{"step": 2, "a": 3, "b": "NaN", "c": "x", "d": true}\n')
    found = read_metric_log(log)
    assert found.series == {"a": {1: 5.0, 2: 3.0}}
    assert list(found.steps) == [1, 2]
    assert [(item.step, item.name) for item in found.non_finite] == [(2, "b")]
    assert found.notes == ["not numbers, left out: c, d"]


@pytest.mark.parametrize("value", [0, -1.5, float("inf"), float("-inf"), float("nan")])
def test_metrics_survive_the_file(tmp_path: Path, value: float) -> None:
    """What a run folder writes is read back as it was, finite or not."""
    config = load_config("tiny", None, [])
    with RunFolder.create(config, kind="rl", out=tmp_path / "run", digest="d") as run:
        run.log_metrics(1, {"x": value})
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert decode_metric(row["x"]) == pytest.approx(value, nan_ok=True)


def test_output_is_json_and_text(tmp_path: Path) -> None:
    """The JSON holds every answer; the text shows evidence and a patch that can be pasted."""
    diagnosis = diagnose_run(write_run(tmp_path, steps=45, entropy=level(0.05), loss=level(float("nan"))))
    data = json.loads(json.dumps(diagnosis.to_json(), allow_nan=False))
    assert {f["rule"] for f in data["findings"]} == {2, 12}
    assert set(data["findings"][0]) == {
        "rule", "name", "severity", "evidence", "values", "cause", "remedy", "patch", "confidence", "sources"
    }  # fmt: skip
    rules = [entry["rule"] for part in ("findings", "no_data", "ok") for entry in data[part]]
    assert sorted(rules) == [rule.number for rule in RULES]
    text = diagnosis.to_text()
    assert "CRITICAL  rule 2, entropy collapse (confidence high)" in text
    assert "--set grpo.epsilon_high=0.335 --set grpo.entropy_control.enabled=true" in text


def test_a_real_log_of_another_trainer_is_read(public_data: Path) -> None:
    """A foreign log with names of its own is read without an error; rules without their metrics say so."""
    diagnosis = diagnose_run(public_data / "metrics" / "tinker_cog_rl_exp7_metrics.jsonl")
    assert diagnosis.last_step == 119
    assert {s.rule for s in diagnosis.no_data} == {2, 3, 6, 8, 16, 19, 21}


def test_the_manual_has_every_rule(repo_root: Path) -> None:
    """docs/diagnosis.md has a row for each rule, by number and name."""
    text = (repo_root / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    for rule in RULES:
        assert f"| {rule.number} | {rule.name} |" in text


def test_a_model_that_got_worse_and_a_run_that_failed_are_said(tmp_path: Path) -> None:
    """However short the run: held-out accuracy that fell by a tenth or more, the rate it fell under, and the end."""
    config = load_config("tiny", None, ["optim.learning_rate=0.5"])
    run = RunFolder.create(config, kind="rl", out=tmp_path / "run", digest=config_digest(config))
    with run:
        for step, accuracy in ((0, 0.5), (1, None), (2, 0.375)):
            run.log_metrics(step, {"loss": 0.0} | ({"eval/held_out/avg@4": accuracy} if accuracy is not None else {}))
    worse, *_ = diagnose_run(tmp_path / "run").notes
    assert worse.startswith("the model got worse: held-out accuracy 0.500 at step 0, 0.375 at step 2")
    assert worse.endswith("the first suspect is optim.learning_rate=0.5")

    def fail() -> None:
        with RunFolder.open(tmp_path / "run") as again:
            again.log_metrics(3, {"eval/held_out/avg@4": 0.41})
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail()
    notes = diagnose_run(tmp_path / "run").notes
    assert notes[0] == "the run failed: ValueError: boom"
    assert not any("got worse" in note for note in notes)  # 0.09 below its start
