"""Run folders: never overwritten, one writer, cut back exactly for a resume."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl_cli import __version__
from agentrl_cli.config.load import load_run_config
from agentrl_cli.config.schema import Config
from agentrl_cli.errors import RunError
from agentrl_cli.files import atomic_dir, read_rows, write_atomic
from agentrl_cli.runs import RunFolder, find_run_folder, how_it_ended, newest_run, newest_trained_run


def new_run(path: Path) -> RunFolder:
    return RunFolder.create(Config(), kind="rl", out=path, digest="d")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_new_run_says_what_it_is(tmp_path: Path) -> None:
    """config.json holds version, digest, model identity and settings that load back to the same."""
    with new_run(tmp_path / "run") as run:
        run.record_identity({"path": "m", "weights": "abc"})
    facts = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (facts["schema"], facts["kind"], facts["agentrl"], facts["digest"]) == (1, "rl", __version__, "d")
    assert facts["model"] == {"path": "m", "weights": "abc"}
    assert load_run_config(tmp_path / "run", []) == Config()
    assert RunFolder.open(tmp_path / "run", read_only=True).digest == "d"


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    """A folder with anything in it, or a file, is refused with what to do; an empty folder is taken."""
    new_run(tmp_path / "run").close()
    for path in (tmp_path / "run", tmp_path / "run" / "config.json"):
        with pytest.raises(RunError, match="never overwritten") as caught:
            new_run(path)
        assert "--resume" in caught.value.hint
    (tmp_path / "empty").mkdir()
    new_run(tmp_path / "empty").close()


def test_default_names_never_collide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs without --out get a name of command, model and time, each its own within one second too."""
    monkeypatch.chdir(tmp_path)
    runs = [RunFolder.create(Config(), kind="rl", out=None, digest="d") for _ in range(3)]
    for run in runs:
        run.close()
    assert len({run.path for run in runs}) == 3
    assert all(run.path.parent == Path("runs") and run.path.name.startswith("rl-tiny-2") for run in runs)
    assert newest_run() == runs[-1].path


def test_metrics_keep_numbers_that_json_lacks(tmp_path: Path) -> None:
    """Non-finite values become texts that float() reads, so the file stays JSON."""
    with new_run(tmp_path / "run") as run:
        run.log_metrics(1, {"a": float("nan"), "b": float("inf"), "c": float("-inf"), "d": 0.5, "e": 3})
        run.sync()
    row = json.loads(
        (tmp_path / "run" / "metrics.jsonl").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON")
    )
    assert row == {"step": 1, "a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 0.5, "e": 3}
    assert float(row["b"]) == float("inf")


HOLDER = """
import sys, time
from pathlib import Path
from agentrl_cli.runs import RunFolder
run = RunFolder.open(Path(sys.argv[1]))
run.log_metrics(1, {"a": 1})
print("open", flush=True)
time.sleep(60)
"""


def test_one_process_writes_a_run_and_a_kill_frees_it(tmp_path: Path) -> None:
    """While a process has the run open, others may only read; its lock dies with it."""
    path = tmp_path / "run"
    new_run(path).close()
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(RunError, match="another process writes the run"):
            RunFolder.open(path)
        assert RunFolder.open(path, read_only=True).digest == "d"
        holder.kill()
    with RunFolder.open(path) as run:
        run.log_metrics(2, {"a": 2})
    assert [row["step"] for row in read_rows(path / "metrics.jsonl")[0]] == [1, 2]


def test_a_resume_cuts_back_to_its_checkpoint(tmp_path: Path) -> None:
    """Metrics, trajectories, evaluations and checkpoints of later steps go, a torn row too; earlier ones stay."""
    path = tmp_path / "run"
    with new_run(path) as run:
        for step in range(1, 13):
            run.log_metrics(step, {"a": step})
            for suffix in (".jsonl", ".safetensors"):
                write_atomic(run.trajectories / f"step-{step:06d}{suffix}", "")
            if step % 5 == 0:
                with atomic_dir(run.checkpoint_path(step)):
                    pass
        write_atomic(path / "eval" / "step-000000.json", "{}")
        write_atomic(path / "eval" / "step-000012.json", "{}")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13, "a"')
    (path / "checkpoints" / ".step-000015.partial-x").mkdir()
    with RunFolder.open(path) as run:
        assert run.latest_checkpoint() == run.checkpoint_path(10)
        run.truncate_after(5)
        assert run.latest_checkpoint() == run.checkpoint_path(5)
        run.log_metrics(6, {"a": 60})
    assert [(row["step"], row["a"]) for row in read_rows(path / "metrics.jsonl")[0]] == [
        *((step, step) for step in range(1, 6)),
        (6, 60),
    ]
    assert names(path / "trajectories") == [
        f"step-{step:06d}{suffix}" for step in range(1, 6) for suffix in (".jsonl", ".safetensors")
    ]
    assert names(path / "eval") == ["step-000000.json"]
    assert names(path / "checkpoints") == ["step-000005"]


def test_steps_are_ordered_by_number(tmp_path: Path) -> None:
    """A run beyond a million steps still finds its newest checkpoint."""
    with new_run(tmp_path / "run") as run:
        for step in (999_999, 1_000_000):
            with atomic_dir(run.checkpoint_path(step)):
                pass
        assert run.latest_checkpoint() == run.checkpoint_path(1_000_000)


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ({2: {"accuracy": 0.9}, 4: {"accuracy": 0.1}}, 6),  # training accuracy measures nothing that was held out
        ({2: {"eval/held_out/avg@4": 0.5}, 4: {"eval/held_out/avg@4": 0.75}}, 4),
        ({2: {"eval/held_out/avg@4": 0.75}, 4: {"eval/held_out/avg@4": 0.75}}, 4),
        ({2: {"eval/held_out/avg@4": 0.5}, 5: {"eval/held_out/avg@4": 0.9}}, 2),  # step 5 has no checkpoint
        ({2: {"eval_loss": 0.25}, 4: {"eval_loss": 0.5}, 6: {"eval_loss": float("nan")}}, 2),
    ],
)
def test_the_best_checkpoint_is_kept_and_found(rows: dict[int, dict[str, float]], best: int, tmp_path: Path) -> None:
    """Best on what was held out, the later of equals, the newest if none was measured; pruning spares it."""
    with new_run(tmp_path / "run") as run:
        for step in range(1, 7):
            run.log_metrics(step, rows.get(step, {}))
            if step % 2 == 0:
                with atomic_dir(run.checkpoint_path(step)):
                    pass
        assert run.best_checkpoint() == run.checkpoint_path(best)
        run.prune_checkpoints(1)
        assert run.checkpoints() == [run.checkpoint_path(step) for step in sorted({best, 6})]


def test_without_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    """A run that was killed before its first checkpoint starts over: nothing of it stays."""
    with new_run(tmp_path / "run") as run:
        run.log_metrics(1, {"a": 1})
        assert run.latest_checkpoint() is None
        run.truncate_after(0)
    assert read_rows(tmp_path / "run" / "metrics.jsonl") == ([], False)


def test_the_newest_run_with_a_checkpoint_stands_for_a_model(tmp_path: Path) -> None:
    """A newer run that has not saved yet does not hide the one that has."""
    assert newest_trained_run(tmp_path) is None
    with new_run(tmp_path / "old") as run, atomic_dir(run.checkpoint_path(1)):
        run.log_metrics(1, {})
    with new_run(tmp_path / "new"):
        pass
    assert newest_run(tmp_path) == tmp_path / "new"
    assert newest_trained_run(tmp_path) == tmp_path / "old"


def test_a_run_that_fails_before_it_has_computed_anything_goes(tmp_path: Path) -> None:
    """The next try can have its name; what has measured or logged something stays, whatever ends it."""

    def fail(run: RunFolder, *, logged: bool) -> None:
        if logged:
            run.log_metrics(1, {})
        raise KeyError

    for logged in (False, True):
        with pytest.raises(KeyError), new_run(tmp_path / "run") as run:
            fail(run, logged=logged)
        assert (tmp_path / "run").exists() is logged
    with pytest.raises(KeyError), RunFolder.open(tmp_path / "run"):
        raise KeyError
    assert (tmp_path / "run").exists()


def test_a_name_means_the_run_of_that_name_unless_it_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What exists where it is named comes first; what exists nowhere stays as it was typed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "both").mkdir()
    (tmp_path / "both").mkdir()
    assert find_run_folder("first") == Path("runs/first")
    assert find_run_folder("both") == Path("both")
    assert find_run_folder("none") == Path("none")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, "done"),
        (KeyboardInterrupt(), "stopped by Ctrl-C"),
        (SystemExit(143), "stopped by SIGTERM"),
        (ValueError("a\nb"), "failed: ValueError: a b"),
    ],
)
def test_how_a_run_ended_is_kept(error: BaseException | None, text: str, tmp_path: Path) -> None:
    """What pruning writes later does not hide it, and a run that goes on has none."""
    with new_run(tmp_path / "run") as run:
        run.log_metrics(1, {})
    with RunFolder.open(tmp_path / "run") as run:
        run.log_event("resumed after step 1")
        assert how_it_ended(tmp_path / "run") == ""

    def end() -> None:
        with RunFolder.open(tmp_path / "run"):
            if error is not None:
                raise error

    if error is None:
        end()
    else:
        with pytest.raises(type(error)):
            end()
    with (tmp_path / "run" / "events.log").open("a") as events:
        events.write("2026-01-01T00:00:00+00:00 pruned 2 checkpoints\n")
    assert how_it_ended(tmp_path / "run") == text


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    """A missing folder, a model folder and a run of a newer version each get their own message."""
    with pytest.raises(RunError, match="is not a run: no such folder"):
        RunFolder.open(tmp_path / "no")
    with pytest.raises(RunError, match="is not a run: no readable config"):
        RunFolder.open(tmp_path)
    write_atomic(tmp_path / "model" / "config.json", '{"architectures": ["Qwen3ForCausalLM"]}')
    with pytest.raises(RunError, match="was not written by agentrl"):
        RunFolder.open(tmp_path / "model")
    new_run(tmp_path / "run").close()
    config = tmp_path / "run" / "config.json"
    write_atomic(config, json.dumps(json.loads(config.read_text()) | {"schema": 2, "agentrl": "9.9"}))
    with pytest.raises(RunError, match=r"written by agentrl 9\.9 \(schema 2, this one reads 1\)"):
        RunFolder.open(tmp_path / "run")


def test_the_newest_run_is_the_one_created_last(tmp_path: Path) -> None:
    """Age is the time of creation, not the name or a later write; other folders do not count."""
    assert newest_run(tmp_path / "none") is None
    for name in ("b", "a"):
        new_run(tmp_path / name).close()
    (tmp_path / "eval").mkdir()
    write_atomic(tmp_path / "z" / "config.json", "{}")
    write_atomic(tmp_path / "z" / "metrics.jsonl", "")
    with RunFolder.open(tmp_path / "b") as run:
        run.log_metrics(1, {})
    assert newest_run(tmp_path) == tmp_path / "a"


def test_events_tell_how_a_run_ended(tmp_path: Path) -> None:
    """events.log has one line an event, however many lines the error's message has."""
    with new_run(tmp_path / "run"):
        pass
    with pytest.raises(ValueError, match="a\nb"), RunFolder.open(tmp_path / "run"):
        raise ValueError("a\nb")
    lines = (tmp_path / "run" / "events.log").read_text().splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["created", "done", "failed: ValueError: a b"]
