"""The chain of a preset in one folder: finished stages are skipped, cut-off ones go on, and nothing is mixed up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from agentrl_cli.commands.pipeline import pipeline
from agentrl_cli.config.load import load_config
from agentrl_cli.errors import AgentRLError, DataError, RunError
from agentrl_cli.files import read_rows
from agentrl_cli.pipeline.chain import plan_pipeline, run_pipeline
from agentrl_cli.pipeline.journal import open_journal
from agentrl_cli.pipeline.names import Stage
from agentrl_cli.pipeline.stages import Order
from agentrl_cli.pipeline.text import render_pipeline, render_plan
from agentrl_cli.reporting import NullReporter
from agentrl_cli.runs import RunFolder
from agentrl_cli.training.checkpoint import read_trainer_state

SMALL = [
    "run.steps=2",
    "run.threads=1",
    "collect.num_problems=8",
    "sft.epochs=1",
    "sft.batch_size=4",
    "grpo.problems_per_step=2",
    "grpo.num_generations=2",
    "grpo.num_minibatches=1",
    "grpo.filter_groups.enabled=false",
    "eval.num_problems=2",
    "eval.num_samples=1",
    "data.generated.num_train=16",
    "sandbox.pool_size=2",
]
LEFT = {"status": "left", "result": {}}


class Stopper(NullReporter):
    """Ends the chain as Ctrl-C would, when a stage is announced or at a step of it."""

    def __init__(self, stage: str, *, at_step: int = 0) -> None:
        self.lines: list[str] = []
        self._stage, self._at_step, self._is_there = stage, at_step, False

    def info(self, text: str) -> None:
        """Stop if this announces the stage."""
        self.lines.append(text)
        self._is_there = self._is_there or text.startswith(f"{self._stage}: stage")
        if self._is_there and not self._at_step:
            raise KeyboardInterrupt

    def step(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        """Stop if this is the step."""
        if self._is_there and step == self._at_step:
            raise KeyboardInterrupt


def order(
    *settings: str, teacher: str = "scripted", problems: str | None = None, benchmark: str = "generated"
) -> Order:
    config = load_config("tiny", None, [*SMALL, *settings])
    return Order(config, teacher=teacher, problems=problems, benchmark=benchmark)


def run(asked: Order, out: Path, until: Stage, reporter: NullReporter | None = None) -> dict[str, Any]:
    return run_pipeline(asked, out=out, until=until, open_reporter=lambda: nullcontext(reporter or NullReporter()))


def stop(asked: Order, out: Path, until: Stage, reporter: Stopper) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(asked, out, until, reporter)


def note_as_finished(asked: Order, out: Path, *stages: Stage) -> None:
    """Make a folder in which stages are finished that nobody ran."""
    with open_journal(out, asked) as journal:
        for stage in stages:
            journal.record(stage, {"in": 1})


def statuses(result: Mapping[str, Any]) -> list[str]:
    return [entry["status"] for entry in result["stages"]]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_plan_names_a_command_per_stage_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is left of a folder that is not there; rl starts from where sft will end."""
    monkeypatch.chdir(tmp_path)
    asked = order(teacher="model:my model", problems="p.jsonl", benchmark="aime2025")
    plan = plan_pipeline(asked, out=Path("out"), until=Stage.EVAL, settings=["--preset", "tiny"])
    assert [entry.get("command") for entry in plan["stages"]] == [
        "agentrl collect --preset tiny --problems p.jsonl --teacher 'model:my model' --out out/collected.jsonl",
        "agentrl filter --preset tiny out/collected.jsonl --out out/sft.jsonl",
        "agentrl sft --preset tiny --data out/sft.jsonl --out out/sft",
        f"agentrl rl --preset tiny --set model.path={tmp_path}/out/sft/checkpoints/step-N --out out/rl",
        "agentrl eval --preset tiny aime2025 --model out/rl --out out/eval",
        None,
    ]
    assert [{"status": entry["status"], "result": entry["result"]} for entry in plan["stages"]] == [LEFT] * 6
    assert plan["config"]["run"]["steps"] == 2
    assert plan["batch"]["rl_trajectories_per_step"] == 4  # 2 problems x 2
    assert list(tmp_path.iterdir()) == []
    assert render_plan(plan).splitlines()[:2] == ["collect   left", "filter    left"]


def test_finished_stages_are_skipped(tmp_path: Path) -> None:
    """The same call again gives the same results, says so, and touches no file but the lock's and the journal's."""
    first = run(order(), tmp_path / "out", Stage.FILTER)
    assert statuses(first) == ["done", "done", "left", "left", "left", "left"]
    assert first["stages"][0]["result"]["in"] == 8
    before = contents(tmp_path)
    reporter = Stopper("none")
    again = run(order("collect.concurrency=1"), tmp_path / "out", Stage.FILTER, reporter)
    assert statuses(again) == ["skipped", "skipped", "left", "left", "left", "left"]
    assert [e["result"] for e in again["stages"]] == [e["result"] for e in first["stages"]]
    assert reporter.lines == ["collect: done, skipped", "filter: done, skipped"]
    after = contents(tmp_path)
    journal = str(tmp_path / "out" / "pipeline.json")
    assert {name: text for name, text in after.items() if name != journal} == {
        name: text for name, text in before.items() if name != journal
    }
    assert statuses(run(order(), tmp_path / "out", Stage.COLLECT))[:3] == ["skipped", "skipped", "left"]


def test_a_chain_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """What was collected before a stop stays; a stage that was announced but not run is run by the next call."""
    out = tmp_path / "out"
    stop(order(), out, Stage.FILTER, Stopper("collect", at_step=3))
    stop(order(), out, Stage.FILTER, Stopper("filter"))
    assert not (out / "sft.jsonl").exists()
    result = run(order(), out, Stage.FILTER)
    assert statuses(result) == ["skipped", "done", "left", "left", "left", "left"]
    collected = result["stages"][0]["result"]
    assert collected["skipped"] >= 3
    assert collected["skipped"] + collected["collected"] == 8
    straight = run(order(), tmp_path / "straight", Stage.FILTER)
    rows = [[row["id"] for row in read_rows(folder / "sft.jsonl")[0]] for folder in (out, tmp_path / "straight")]
    assert rows[0] == rows[1]
    assert result["stages"][1]["result"]["kept"] == straight["stages"][1]["result"]["kept"] == len(rows[0])


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (order("run.seed=7"), "run.seed"),
        (order("collect.num_problems=9"), "collect.num_problems"),
        (order("grpo.overlong.cache_tokens=40"), "grpo.overlong.cache_tokens"),
        (order("filter.min_calls=2"), "filter.min_calls"),
        (order(teacher="model:m"), "--teacher"),
        (order(problems="generated:test"), "--problems"),
    ],
)
def test_settings_that_a_finished_stage_has_read_may_not_change(tmp_path: Path, changed: Order, name: str) -> None:
    """The error names what changed; planning refuses it as well, and the folder stays as it was."""
    note_as_finished(order(), tmp_path / "out", Stage.COLLECT, Stage.FILTER)
    before = contents(tmp_path)
    for call in (
        lambda: run(changed, tmp_path / "out", Stage.FILTER),
        lambda: plan_pipeline(changed, out=tmp_path / "out", until=Stage.FILTER, settings=[]),
    ):
        with pytest.raises(RunError, match=f"since then changed: {name}$") as caught:
            call()
        assert "another --out" in caught.value.hint
    assert contents(tmp_path) == before


def test_settings_that_only_later_stages_read_may_change(tmp_path: Path) -> None:
    """A remedy for a failed stage costs no finished one: nothing is collected or filtered again."""
    note_as_finished(order(), tmp_path / "out", Stage.COLLECT, Stage.FILTER)
    later = ["sft.max_length=99", "model.path=m", "grpo.beta=0.1", "optim.learning_rate=0.1", "eval.num_samples=2"]
    asked = order(*later, "run.steps=3", benchmark="aime2025")
    assert statuses(run(asked, tmp_path / "out", Stage.FILTER))[:2] == ["skipped", "skipped"]
    recorded = json.loads((tmp_path / "out" / "pipeline.json").read_text())["asked"]["settings"]
    assert (recorded["sft"]["max_length"], recorded["--benchmark"]) == (99, "aime2025")


def test_a_changed_file_of_problems_is_noticed(tmp_path: Path) -> None:
    """Names alone do not say what is in a file; one that is gone since is not needed any more."""
    problems = tmp_path / "p.jsonl"
    problems.write_text('{"problem": "What is 6*7?", "answer": "42"}\n')
    asked = order(problems=str(problems))
    note_as_finished(asked, tmp_path / "out", Stage.COLLECT)
    problems.unlink()
    run_nothing = plan_pipeline(asked, out=tmp_path / "out", until=Stage.COLLECT, settings=[])
    assert statuses(run_nothing)[0] == "done"
    with open_journal(tmp_path / "out", asked):
        pass
    problems.write_text('{"problem": "What is 6*8?", "answer": "48"}\n')
    with pytest.raises(RunError, match="--problems \\(content of the file\\)"):
        plan_pipeline(asked, out=tmp_path / "out", until=Stage.COLLECT, settings=[])


def test_two_pipelines_in_one_folder_are_refused(tmp_path: Path) -> None:
    """The second one is told to wait; when the first has let go it may begin."""
    with open_journal(tmp_path / "out", order()), pytest.raises(RunError, match="another process runs the pipeline"):
        run(order(), tmp_path / "out", Stage.COLLECT)
    assert statuses(run(order(), tmp_path / "out", Stage.COLLECT))[0] == "done"


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    """Neither a file nor a folder of other things is written into; an empty one, or one just begun, is taken."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    for path in (tmp_path / "mine", tmp_path / "mine" / "notes.txt"):
        with pytest.raises(RunError, match="is not empty, and holds no pipeline"):
            run(order(), path, Stage.COLLECT)
    assert contents(tmp_path) == {str(tmp_path / "mine" / "notes.txt"): b"keep"}
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".pipeline-lock").touch()
    assert statuses(run(order(), tmp_path / "begun", Stage.COLLECT))[0] == "done"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (order(benchmark="aime2052"), "unknown benchmark 'aime2052'"),
        (order("data.eval=no.jsonl"), "no.jsonl"),
        (order("model.dtype=bfloat16"), "model.dtype='bfloat16'"),
    ],
)
def test_what_a_later_stage_would_refuse_is_refused_first(tmp_path: Path, asked: Order, words: str) -> None:
    """Nothing is collected for a chain that can't come to its end, and the mistake can be put right in place."""
    with pytest.raises(AgentRLError, match=words):
        run(asked, tmp_path / "out", Stage.DIAGNOSE)
    assert not (tmp_path / "out" / "collected.jsonl").exists()
    assert statuses(run(order(), tmp_path / "out", Stage.COLLECT))[0] == "done"


def test_a_damaged_journal_is_an_error(tmp_path: Path) -> None:
    """It is never taken for an empty one, which would do everything again."""
    run(order(), tmp_path / "out", Stage.COLLECT)
    (tmp_path / "out" / "pipeline.json").write_text("{")
    with pytest.raises(DataError, match=r"pipeline\.json' can't be read"):
        run(order(), tmp_path / "out", Stage.COLLECT)


@pytest.mark.parametrize("has_settings", [True, False])
def test_a_run_without_checkpoint_is_begun_anew_under_other_settings(tmp_path: Path, has_settings: bool) -> None:
    """A stage that failed before its first checkpoint can be tried with the remedy, and so can one killed at once."""
    out = tmp_path / "out"
    run(order(), out, Stage.FILTER)
    if has_settings:
        RunFolder.create(order().config, kind="sft", out=out / "sft", digest="of other settings").close()
    else:
        (out / "sft").mkdir()
        (out / "sft" / ".lock").touch()
    result = run(order("sft.micro_batch_tokens=512"), out, Stage.SFT)
    assert statuses(result) == ["skipped", "skipped", "done", "left", "left", "left"]
    assert result["stages"][2]["result"]["steps"] == 2  # 8 rows, 4 at a time
    assert RunFolder.open(out / "sft", read_only=True).settings["sft"]["micro_batch_tokens"] == 512


def test_a_run_with_a_checkpoint_is_never_removed(tmp_path: Path) -> None:
    """Under other settings it is refused as by its own command, and stays."""
    out = tmp_path / "out"
    run(order(), out, Stage.FILTER)
    with RunFolder.create(order().config, kind="sft", out=out / "sft", digest="of other settings") as begun:
        begun.checkpoint_path(1).mkdir()
    with pytest.raises(RunError, match=r"sft\.micro_batch_tokens"):
        run(order("sft.micro_batch_tokens=512"), out, Stage.SFT)
    assert (out / "sft" / "checkpoints" / "step-000001").is_dir()


def test_a_run_that_ended_before_it_was_noted_is_not_trained_again(tmp_path: Path) -> None:
    """A kill between the end of a stage and its entry in the journal repeats none of its steps."""
    out = tmp_path / "out"
    run(order(), out, Stage.SFT)
    journal = json.loads((out / "pipeline.json").read_text())
    del journal["stages"]["sft"]
    (out / "pipeline.json").write_text(json.dumps(journal))
    checkpoint = out / "sft" / "checkpoints" / "step-000002"
    before = contents(checkpoint)
    assert read_trainer_state(checkpoint).step == 2  # 8 rows, 4 at a time
    assert statuses(run(order(), out, Stage.SFT)) == ["skipped", "skipped", "done", "left", "left", "left"]
    assert contents(checkpoint) == before
    assert [row["step"] for row in RunFolder.open(out / "sft", read_only=True).metric_rows()] == [1, 2]


@pytest.mark.slow
def test_the_whole_chain_ends_in_a_diagnosis_and_goes_on_after_a_stop_in_rl(tmp_path: Path) -> None:
    """rl starts from the checkpoint of sft, is resumed where it was stopped, and is what eval and diagnose see."""
    out = tmp_path / "out"
    asked = order("run.save_every_steps=1")
    stop(asked, out, Stage.DIAGNOSE, Stopper("rl", at_step=2))
    start = out / "sft" / "checkpoints" / "step-000002"
    plan = plan_pipeline(asked, out=out, until=Stage.DIAGNOSE, settings=["--preset", "tiny"])
    assert statuses(plan) == ["done", "done", "done", "left", "left", "left"]
    assert plan["stages"][3]["command"] == f"agentrl rl --preset tiny --set model.path={start} --resume {out}/rl"
    result = run(asked, out, Stage.DIAGNOSE)
    assert statuses(result) == ["skipped", "skipped", "skipped", "done", "done", "done"]
    rl = RunFolder.open(out / "rl", read_only=True)
    assert rl.settings["model"]["path"] == str(start)
    assert [row["step"] for row in rl.metric_rows()] == [0, 1, 2]
    assert "resumed after step 1" in (out / "rl" / "events.log").read_text()
    evaluated, diagnosis = (entry["result"] for entry in result["stages"][4:])
    assert evaluated == json.loads((out / "eval" / "result.json").read_text())
    assert evaluated["model"].startswith(str(out / "rl" / "checkpoints"))
    assert (diagnosis["run"], diagnosis["last_step"]) == (str(out / "rl"), 2)
    before = contents(out)
    assert statuses(run(asked, out, Stage.DIAGNOSE)) == ["skipped"] * 6
    assert contents(out) == before


def test_the_result_is_a_table_with_the_next_command() -> None:
    """A line per stage says what it came to; below it stands the same command, or what to do with the model."""
    rl = {"steps": 3, "before": {"accuracy": 0.5}, "after": {"accuracy": 0.75, "n": 8}}
    results: list[dict[str, Any]] = [
        {"collected": 5, "skipped": 3, "failed": 1, "correct": 6},
        {"in": 8, "kept": 7},
        {"steps": 2, "rows": 7, "loss": 0.25},
        rl,
        {"benchmark": "generated", "k": 4, "avg_at_k": 0.5, "stderr": 0.125, "n": 8},
        {"findings": [{"name": "truncation"}], "no_data": [{}, {}]},
    ]
    stages = [{"stage": s.value, "status": "done", "result": r} for s, r in zip(Stage, results, strict=True)]
    assert render_pipeline({"out": "my out", "stages": stages}, order(), settings=[]).splitlines() == [
        "collect   done     8 trajectories, 6 right, 1 failed by infrastructure",
        "filter    done     7 of 8 trajectories kept",
        "sft       done     2 steps on 7 rows, loss 0.250",
        "rl        done     3 steps, accuracy 0.500 -> 0.750 on 8 held-out problems",
        "eval      done     generated: avg@4 0.500 ± 0.125 on 8 problems",
        "diagnose  done     1 found: truncation (2 rules had too little data)",
        "",
        "next: agentrl diagnose 'my out/rl'",
    ]
    stages[5] |= {"result": {"findings": [], "no_data": []}}
    healthy = render_pipeline({"out": "o", "stages": stages}, order(), settings=[])
    assert healthy.splitlines()[5:] == [
        "diagnose  done     nothing found",
        "",
        "next: agentrl export o/rl --out o/export",
    ]
    stages[5] = {"stage": "diagnose", **LEFT}
    asked = order(teacher="model:m", problems="p.jsonl", benchmark="aime2025")
    unfinished = render_pipeline({"out": "o", "stages": stages}, asked, settings=["--preset", "4b"])
    assert unfinished.splitlines()[-1] == (
        "next: agentrl pipeline --preset 4b --problems p.jsonl --teacher model:m --benchmark aime2025 --out o"
    )


def test_the_command_prints_one_object_or_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go to stdout, progress to stderr; settings stand in the commands as they were typed."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(pipeline)
    (tmp_path / "small.toml").write_text("[collect]\nnum_problems = 2\n")
    arguments = ["--config", "small.toml", "--set", "sft.epochs=1", "--seed", "3", "--out", "out", "--until", "filter"]
    planned = CliRunner().invoke(app, [*arguments, "--dry-run", "--json"])
    assert json.loads(planned.stdout)["stages"][1]["command"] == (
        "agentrl filter --config small.toml --seed 3 --set sft.epochs=1 out/collected.jsonl --out out/sft.jsonl"
    )
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert statuses(json.loads(done.stdout))[:3] == ["done", "done", "left"]
    assert "filter: stage 2 of 6" in done.stderr
    again = CliRunner().invoke(app, arguments)
    assert again.stdout.startswith("collect   skipped  2 trajectories")
    assert again.stdout.endswith("next: agentrl pipeline --config small.toml --seed 3 --set sft.epochs=1 --out out\n")
    planned_text = CliRunner().invoke(app, [*arguments, "--dry-run"]).stdout
    assert planned_text.startswith("config.run.seed ")
    assert "\n\ncollect   done     2 trajectories" in planned_text
    assert planned_text.endswith("\neval      left\ndiagnose  left\n")
