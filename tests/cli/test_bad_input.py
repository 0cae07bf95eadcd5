"""Whatever is wrong with what a command is given: exit code, message, and nothing lost or left behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from agentrl_cli.config.digest import config_digest
from agentrl_cli.config.load import load_config
from agentrl_cli.main import app
from agentrl_cli.runs import RunFolder

SMALL = (
    "run.steps=1",
    "grpo.problems_per_step=2",
    "grpo.num_generations=2",
    "grpo.num_minibatches=1",
    "eval.num_problems=2",
    "eval.num_samples=1",
    "sandbox.pool_size=1",
)
"""An RL run of seconds."""
FILES = ("collect", "filter", "sft", "rl", "eval")


def invoke(*arguments: str | Path, small: bool = False) -> Result:
    """Run a command in this process, as the shell would."""
    options = [part for pair in SMALL for part in ("--set", pair)] if small else []
    return CliRunner().invoke(app, [*map(str, arguments), *options], prog_name="agentrl")


def agentrl(*arguments: str | Path, code: str = "", folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, after some lines of Python."""
    script = f"{code}\nimport sys\nfrom agentrl_cli.main import app\napp(sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], cwd=folder, capture_output=True, text=True, check=False
    )


def conversation(number: int, *, words: int = 0) -> str:
    """Return a row that sft can learn from."""
    answer = {"role": "assistant", "content": f"It is {'very ' * words}\\boxed{{{number}}}."}
    return json.dumps({"messages": [{"role": "user", "content": f"Say {number}."}, answer]})


def problem(number: int) -> str:
    """Return a row that rl can learn from."""
    return json.dumps({"problem": f"Say {number}.", "answer": str(number)})


def write_rows(file: Path, rows: Sequence[str]) -> Path:
    """Write lines."""
    file.write_text("\n".join(rows) + "\n")
    return file


@pytest.fixture
def model(tmp_path: Path, repo_root: Path) -> Path:
    """A copy of the tiny model to break."""
    return Path(shutil.copytree(repo_root / "agentrl_cli" / "assets" / "tiny", tmp_path / "model"))


def remove_tokenizer(model: Path) -> None:
    """Take what transformers needs to build the tokenizer."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()


def forget_tools(model: Path) -> None:
    """Give it a template that is in order, but never looks at the tools."""
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def break_template(model: Path) -> None:
    """Give it a template that fails on every conversation."""
    (model / "chat_template.jinja").write_text("{{ raise_exception('no such role') }}")


def poison_weights(model: Path) -> None:
    """Put a NaN into one matrix."""
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, model / "model.safetensors", {"format": "pt"})


def pickle_weights(model: Path) -> None:
    """Replace the weights by what torch.save writes."""
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()


def cut_weights(model: Path) -> None:
    """Lose the end of the weights, as a broken download does."""
    content = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("damage", "error", "hint"),
    [
        (remove_tokenizer, "no tokenizer in", "copy the tokenizer's files"),
        (forget_tools, "the chat template knows no tools", "--set model.chat_template=FILE.jinja"),
        (break_template, "the chat template fails on a conversation of user: no such role", ""),
        (poison_weights, "'model.norm.weight' has values that are not finite", "take an earlier checkpoint"),
        (pickle_weights, "holds its weights as a pickle (pytorch_model.bin)", "safetensors"),
        (cut_weights, "no usable weights in", "give a Hugging Face checkpoint folder"),
        (shutil.rmtree, "there is no folder", "a Hugging Face id"),
    ],
)
def test_a_model_that_can_not_be_used(
    damage: Callable[[Path], None], error: str, hint: str, model: Path, tmp_path: Path
) -> None:
    """Exit code 2, and the run folder that was begun goes, so that the next try can have its name."""
    damage(model)
    out = tmp_path / "run"
    for command in (["rl"], ["sft", "--data", write_rows(tmp_path / "rows.jsonl", [conversation(1)])]):
        if command[0] == "sft" and damage is forget_tools:
            continue  # rows without tools need none in the template
        result = invoke(*command, "--preset", "tiny", "--set", f"model.path={model}", "--out", out)
        assert (result.exit_code, result.stdout) == (2, ""), result.stderr
        assert result.stderr.startswith("error: ")
        assert error in result.stderr
        assert hint in result.stderr.partition("\n\nhint: ")[2]
        assert not out.exists()


@pytest.mark.parametrize("torn", ['{"messages": [{"role"', "[1, 2]", '{"text": "neither"}', "\xff\xfe"])
def test_a_torn_line_is_left_out_or_refused(torn: str, tmp_path: Path) -> None:
    """The rest of the file is used and the row named; --strict refuses the file at that row."""
    rows = tmp_path / "rows.jsonl"
    for command, good, where in (
        (["sft", "--preset", "tiny", "--set", "sft.epochs=1", "--data"], conversation, "line 2"),
        (["filter", "--set", "filter.min_calls=0", "--set", "filter.require_correct=false"], conversation, "line 2"),
        (["rl", "--preset", "tiny", "--set", "tools.names=[]", "--data"], problem, "rows.jsonl:2"),
        (["eval", "generated", "--preset", "tiny", "--model", "builtin:tiny", "--data"], problem, "rows.jsonl:2"),
    ):
        rows.write_bytes(f"{good(1)}\n{torn}\n{good(3)}\n".encode("latin-1"))
        out = tmp_path / f"{command[0]}-out"
        done = invoke(*command, rows, "--out", out, small=command[0] in ("rl", "eval"))
        assert done.exit_code == 0, done.stderr
        assert "left out 1 of 3 rows" in done.stderr
        assert where in done.stderr
        strict = invoke(*command, rows, "--strict", "--out", tmp_path / f"{command[0]}-strict")
        assert strict.exit_code == 2
        assert where in strict.stderr
        assert not (tmp_path / f"{command[0]}-strict").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["rl", "--set", "run.steps=many"], "run.steps must be", ""),
        (["rl", "--set", "grpo.filter_groups=3"], "grpo.filter_groups", ""),
        (["rl", "--set", "steps"], "'steps'", "such as --set grpo.epsilon_high=0.3"),
        (["rl", "--data", "none.jsonl"], "'none.jsonl'", ""),
        (["rl", "--data", "gsm9k"], "'gsm9k'", "did you mean 'gsm8k'?"),
        (["collect", "--problems", "hub:nobody"], "hub:nobody", "hub:ORG/NAME"),
        (["eval", "aime2052", "--model", "builtin:tiny"], "unknown benchmark 'aime2052'", "did you mean 'aime2025'?"),
        (["eval", "generated", "--model", "no/such/folder"], "there is no folder 'no/such/folder'", ""),
        (["eval", "generated", "--set", "rewards.module=none.py"], "there is no such file", "Python file"),
        (["diagnose"], "no run is named and ./runs holds none", "agentrl rl --preset tiny"),
        (["view", "none"], "'none' does not exist", "give a run"),
        (["runs", "compare", "a", "b"], "'a'", ""),
        (["doctor", "--preset", "5b"], "unknown preset '5b'", "presets are"),
    ],
)
def test_what_does_not_exist(
    arguments: list[str], error: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of the wrong type, unknown data sets, benchmarks, models and runs exit with 2 and leave nothing."""
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, ""), result.stderr
    assert error in result.stderr
    assert hint in result.stderr.partition("\n\nhint: ")[2]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_no_network(tmp_path: Path) -> None:
    """--offline fetches nothing, and the error says how to get model and data by hand."""
    model = agentrl("rl", "--preset", "135m", "--offline", folder=tmp_path)
    assert model.returncode == 2
    assert "HuggingFaceTB/SmolLM2-135M-Instruct is not on this machine" in model.stderr
    assert "hf download HuggingFaceTB/SmolLM2-135M-Instruct --local-dir DIR" in model.stderr
    data = agentrl("eval", "aime2025", "--model", "builtin:tiny", "--offline", folder=tmp_path)
    assert data.returncode == 2
    assert "nothing is fetched" in data.stderr
    assert "hf download math-ai/aime25 --repo-type dataset --local-dir aime2025" in data.stderr
    assert "--data FILE" in data.stderr
    assert list(tmp_path.rglob("*.jsonl")) == []


def begin_run(folder: Path) -> RunFolder:
    """Make a run with the small settings, and keep it open."""
    config = load_config("tiny", None, SMALL)
    return RunFolder.create(config, kind="rl", out=folder, digest=config_digest(config))


def test_a_run_that_another_process_writes(tmp_path: Path) -> None:
    """A second writer is refused; the first one's files stay."""
    with begin_run(tmp_path / "run"):
        result = invoke("rl", "--resume", tmp_path / "run")
    assert result.exit_code == 2
    assert "another process writes the run" in result.stderr
    assert (tmp_path / "run" / "config.json").is_file()


def test_a_resume_under_other_settings_or_files(tmp_path: Path) -> None:
    """What differs is named; the run stays as it was."""
    with begin_run(tmp_path / "run") as run:
        run.log_metrics(1, {"loss": 0.0})
    before = {path: path.read_bytes() for path in (tmp_path / "run").glob("*.json*")}
    result = invoke("rl", "--resume", tmp_path / "run", "--set", "grpo.epsilon_high=0.3")
    assert result.exit_code == 2
    assert "grpo.epsilon_high" in result.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "run").glob("*.json*")} == before


def test_sft_is_not_resumed_on_other_rows(tmp_path: Path) -> None:
    """Rows that have changed since would make it another run; the same rows under another name would not."""
    rows = write_rows(tmp_path / "rows.jsonl", [conversation(i) for i in range(8)])
    settings = ["--set", "sft.epochs=1", "--set", "sft.batch_size=4"]
    first = invoke("sft", "--preset", "tiny", "--data", rows, "--out", tmp_path / "run", *settings)
    assert first.exit_code == 0, first.stderr
    moved = rows.rename(tmp_path / "moved.jsonl")
    assert invoke("sft", "--data", moved, "--resume", tmp_path / "run").exit_code == 0
    write_rows(moved, [conversation(i) for i in range(9)])
    changed = invoke("sft", "--data", moved, "--resume", tmp_path / "run")
    assert changed.exit_code == 2
    assert "moved.jsonl" in changed.stderr


def test_no_result_of_an_evaluation_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second evaluation of the same kind gets a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        done = invoke("eval", "generated", "--preset", "tiny", "--model", "builtin:tiny", small=True)
        assert done.exit_code == 0, done.stderr
    folders = sorted(path.name for path in (tmp_path / "runs" / "eval").iterdir())
    assert folders == ["generated-builtin-tiny", "generated-builtin-tiny-2"]


_DROP_RIGHTS = """
import ctypes
class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]
none = (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(ctypes.byref(Header(0x20080522, 0)), none) == 0
"""
"""Takes root's power to write where the mode forbids it."""


@pytest.mark.skipif(sys.platform != "linux", reason="takes capabilities away, as Linux has them")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """No permission is the user's to mend: exit code 2 and the name of the place."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    rows = write_rows(tmp_path / "rows.jsonl", [conversation(1)])
    run = agentrl("rl", "--preset", "tiny", "--out", locked / "run", code=_DROP_RIGHTS, folder=tmp_path)
    assert run.returncode == 2
    assert "Permission denied" in run.stderr
    file = agentrl("filter", rows, "--out", locked / "out.jsonl", code=_DROP_RIGHTS, folder=tmp_path)
    assert file.returncode == 2
    assert "error: Permission denied: " in file.stderr
    assert "hint: give a place that you may read and write" in file.stderr


_LITTLE_MEMORY = """
import resource, torch
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 1024 * 2**20,) * 2)
"""
"""Leaves one gibibyte for whatever comes."""


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory by address space")
def test_out_of_memory_says_what_to_lower(tmp_path: Path) -> None:
    """One micro-batch of 800 long rows takes gibibytes: exit code 1 and the setting that cuts it."""
    rows = write_rows(tmp_path / "rows.jsonl", [conversation(i, words=60) for i in range(800)])
    settings = ["sft.epochs=1", "sft.batch_size=800", "sft.micro_batch_tokens=1000000", "sft.eval_frac=0"]
    arguments = [part for setting in settings for part in ("--set", setting)]
    done = agentrl("sft", "--preset", "tiny", "--data", rows, *arguments, code=_LITTLE_MEMORY, folder=tmp_path)
    assert done.returncode == 1
    assert "error: out of memory while fine-tuning" in done.stderr
    assert "hint: lower sft.micro_batch_tokens" in done.stderr


_ON_A_SMALL_DISK = """
import subprocess, sys
from pathlib import Path
disk = Path(sys.argv[1])
if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "none", disk]).returncode:
    sys.exit(77)
code = subprocess.run(sys.argv[2:]).returncode
for file in sorted(disk.rglob("checkpoints/*/*")):
    print("left:", file.relative_to(disk))
sys.exit(code)
"""
"""Runs a command on a disk of 20 MiB and lists the checkpoints that it leaves there."""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare to mount a small disk")
def test_a_full_disk_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    """When there is no room for the second checkpoint, the first one stands and the error says so."""
    disk = tmp_path / "disk"
    disk.mkdir()
    rows = write_rows(tmp_path / "rows.jsonl", [conversation(i) for i in range(8)])
    # a checkpoint of a million float32 parameters with two moments takes about 12 MiB: one fits, two do not
    settings = ["sft.epochs=1", "sft.batch_size=4", "sft.eval_frac=0", "run.save_every_steps=1"]
    command = [sys.executable, "-m", "agentrl_cli", "sft", "--preset", "tiny", "--data", str(rows)]
    command += ["--out", str(disk / "run"), *(part for setting in settings for part in ("--set", setting))]
    done = subprocess.run(
        ["unshare", "-Urm", sys.executable, "-c", _ON_A_SMALL_DISK, str(disk), *command],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no mount of its own here: {done.stderr}")
    assert done.returncode == 1, done.stderr
    assert "step-000002' can't be written" in done.stderr
    assert "hint: the checkpoints before it stand; make room on the disk" in done.stderr
    left = [line.split("/")[-2:] for line in done.stdout.splitlines() if line.startswith("left:")]
    assert {folder for folder, _ in left} == {"step-000001"}
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= {name for _, name in left}
