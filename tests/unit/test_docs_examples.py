"""The examples of the documentation: those of docs/extending.md are run, every other command is parsed."""

from __future__ import annotations

import asyncio
import csv
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from agentrl_cli.agent.tools import build_toolbox
from agentrl_cli.config.load import load_config
from agentrl_cli.config.schema import SandboxConfig, ToolsConfig
from agentrl_cli.files import read_rows
from agentrl_cli.main import app
from agentrl_cli.rewards.user import load_reward, sample
from agentrl_cli.sandbox.local import LocalSandbox
from agentrl_cli.types import ToolCall, ToolEvent, ToolResult, ToolStatus

ROOT = Path(__file__).resolve().parents[2]
EXTENDING = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MOST_LINES = 20

# One small step on one thread, so that running an example takes seconds.
SMALL = {
    "eval": ["--limit", "1", "--set", "eval.num_samples=1"],
    "rl": [
        f"--set={setting}"
        for setting in (
            "run.steps=1",
            "run.threads=1",
            "problems_per_step=2",
            "num_generations=2",
            "num_minibatches=1",
            "grpo.num_epochs=1",
            "filter_groups.enabled=false",
            "generated.num_train=4",
            "max_completion_length=96",
            "eval.num_problems=1",
            "eval.num_samples=1",
        )
    ],
}

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^`([\w.]+)`\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(agentrl [^`]+)`")
_TYPED = re.compile(r"^(?:\$ )?(?:\S*/)?(agentrl .+)$", re.MULTILINE)
_FILL_INS = {"N": "1", "DAYS": "1", "KEY=VALUE": "run.steps=1", "key=value": "run.steps=1"}
"""What stands for a word in capitals where any other word would be refused."""


@dataclass(frozen=True)
class Example:
    """One section of docs/extending.md: its files by name, and its commands without `agentrl`."""

    files: dict[str, str]
    commands: list[list[str]]


def examples() -> dict[str, Example]:
    """Return the sections that have files, by heading."""
    sections = (part.partition("\n") for part in EXTENDING.split("\n## ")[1:])
    found = {heading: Example(dict(_FILE.findall(body)), typed_commands(body)) for heading, _, body in sections}
    return {heading: example for heading, example in found.items() if example.files}


def typed_commands(text: str) -> list[list[str]]:
    """Return the words behind `agentrl` of each command in the fenced blocks of a text."""
    blocks = (block.replace("\\\n", " ") for _, block in _BLOCK.findall(text))
    return [words(command) for block in blocks for command in _TYPED.findall(block)]


def words(command: str) -> list[str]:
    """Split a command as a shell does, up to a pipe or a redirection; what it would fill in is a word."""
    plain = re.sub(r"\$\([^)]*\)|\$\w+", "filled_in", command.replace("\\|", "|"))
    all_words = shlex.split(plain, comments=True)[1:]
    end = next((i for i, word in enumerate(all_words) if word in ("|", ">", "2>", "&&", ";")), len(all_words))
    return [word for word in all_words[:end] if word not in ("…", "...")]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch use one thread, and give it its threads back."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run_example(heading: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Write a section's files, run its commands in small, and return their results."""
    monkeypatch.chdir(folder)
    example = examples()[heading]
    for name, text in example.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    assert example.commands, heading
    results = []
    for command in example.commands:
        done = CliRunner().invoke(app, [*command, *SMALL[command[0]], "--json"], prog_name="agentrl")
        assert done.exit_code == 0, done.stderr
        results.append(json.loads(done.stdout))
    return results


def training_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the first step of a run recorded."""
    return read_rows(Path(result["run"]) / "trajectories" / "step-000001.jsonl")[0]


def test_every_section_with_a_file_is_run_here() -> None:
    """A new example needs a test of its own below."""
    assert list(examples()) == ["A reward", "A tool", "Data", "A benchmark"]


def test_no_block_is_longer_than_promised() -> None:
    """Twenty lines, as the page says of its files."""
    blocks = [block for _, block in _BLOCK.findall(EXTENDING)]
    assert len(blocks) == 8  # a file and a command in each of four sections
    assert max(block.count("\n") for block in blocks) <= MOST_LINES


def test_the_reward_is_a_part_of_what_trajectories_are_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """Each trajectory of training carries the part `module`, and it counts with its weight."""
    (result,) = run_example("A reward", tmp_path, monkeypatch)
    rows = training_rows(result)
    assert len(rows) == 4  # 2 problems x 2
    for row in rows:
        parts = row["reward_parts"]
        assert set(parts) == {"outcome", "length", "module"}
        assert row["reward"] == parts["outcome"] + parts["length"] + 0.5 * parts["module"]
        assert (parts["module"] > 0) <= row["verdict"]["correct"]


@pytest.mark.parametrize(
    ("is_right", "num_calls", "value"),
    # 1 up to one call, then a quarter less each: 1 - 0.25 * 2 at three, 1 - 0.25 * 8 < 0 at nine
    [(True, 0, 1.0), (True, 1, 1.0), (True, 3, 0.5), (True, 9, 0.0), (False, 0, 0.0), (False, 1, 0.0)],
)
def test_the_reward_pays_what_its_docstring_says(is_right: bool, num_calls: int, value: float, tmp_path: Path) -> None:
    """Right answers with few calls are paid most, wrong ones nothing."""
    ((name, text),) = examples()["A reward"].files.items()
    (tmp_path / name).write_text(text)
    trajectory = sample(is_right=is_right)
    event = ToolEvent(0, ToolCall("1", "python", '{"code": "1"}'), ToolResult(ToolStatus.OK, "1"))
    trajectory.events = [event] * num_calls
    assert load_reward(str(tmp_path / name))(trajectory) == value


def test_the_tool_is_offered_to_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """Its schema, made from hints and docstring, stands beside that of python in every sample."""
    (result,) = run_example("A tool", tmp_path, monkeypatch)
    rows, _ = read_rows(tmp_path / result["samples_file"])
    assert len(rows) == 1  # 1 problem x 1
    python, convert = (tool["function"] for tool in rows[0]["tools"])
    assert (python["name"], convert["name"]) == ("python", "convert")
    assert convert["description"] == "Convert a length to another unit."
    kinds = {name: argument["type"] for name, argument in convert["parameters"]["properties"].items()}
    assert kinds == {"value": "number", "unit": "string", "to": "string"}
    assert convert["parameters"]["properties"]["value"]["description"] == "The length."


def test_the_tool_answers_and_fails_as_the_page_says(tmp_path: Path) -> None:
    """A call gives a number; an unknown unit gives the very line that the page shows."""
    ((name, text),) = examples()["A tool"].files.items()
    (tmp_path / name).write_text(text)

    async def play() -> list[ToolResult]:
        limits = SandboxConfig(pool_size=1)
        sandbox = LocalSandbox(limits)
        tools = ToolsConfig(names=[], module=str(tmp_path / name))
        session = (await asyncio.to_thread(build_toolbox, tools, sandbox, limits)).open()
        units = [("km", "m"), ("furlong", "m")]
        calls = [
            ToolCall("1", "convert", json.dumps({"value": 2, "unit": unit, "to": wanted})) for unit, wanted in units
        ]
        results = [await session.call(call) for call in calls]
        await session.close()
        await sandbox.close()
        return results

    done, failed = asyncio.run(play())
    assert (done.status, done.content) == (ToolStatus.OK, "2000.0")  # 2 km are 2000 m
    assert failed.status is ToolStatus.ERROR
    assert f"`{failed.content}`" in EXTENDING


def test_the_problems_of_the_table_are_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """Text, answer and id of the recorded problems are those of the named columns."""
    (result,) = run_example("Data", tmp_path, monkeypatch)
    ((_, text),) = examples()["Data"].files.items()
    table = {row["number"]: (row["task"], row["result"]) for row in csv.DictReader(text.splitlines(), delimiter=";")}
    assert len(table) == 6
    rows = training_rows(result)
    assert len({row["problem_id"] for row in rows}) == 2  # problems of a step
    for row in rows:
        assert (row["problem"], row["answer"]) == table[row["problem_id"]]


def test_the_benchmark_has_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    """The score of its problems lies where the page says, under the name that was given."""
    monkeypatch.setitem(SMALL, "eval", ["--set", "eval.num_samples=1"])
    (shown,) = run_example("A benchmark", tmp_path, monkeypatch)
    (folder,) = (tmp_path / "runs" / "eval").iterdir()
    result = json.loads((folder / "result.json").read_text())
    assert result == shown
    assert (result["benchmark"], result["n"], result["k"]) == ("basics", 4, 1)
    assert set(result["by_family"]) == {"integers", "fractions", "powers"}
    rows, _ = read_rows(folder / "samples.jsonl")
    assert [row["problem_id"] for row in rows] == ["gcd", "primes", "fraction", "top"]
    assert [row["kind"] for row in rows] == ["integer", "integer", "math", "choice"]
    assert all("\\boxed" in row["problem"] for row in rows)


def all_commands() -> list[Any]:
    """Return every command in README.md and docs/, with its page for a name."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        inline = [words(command) for command in _INLINE.findall(_BLOCK.sub("", text))]
        for command in [*typed_commands(text), *inline]:
            found.append(pytest.param(command, id=f"{page.name}: {' '.join(command)}"))
    return found


@pytest.mark.parametrize("arguments", all_commands())
def test_every_command_of_the_documentation_parses(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands, options, settings and presets that pages show exist; a bare name in a sentence need not be complete."""
    monkeypatch.chdir(tmp_path)
    command, rest = get_command(app), list(arguments)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    if not rest or {"--help", "--version", "--install-completion"} & set(rest):
        return
    assert not hasattr(command, "commands"), f"no such command: agentrl {' '.join(arguments)}"
    rest = [_FILL_INS.get(word, word) for word in rest]
    make_files(rest)
    given = command.make_context(command.name, rest).params
    if "preset" in given:
        preset = "tiny" if str(given["preset"]).isupper() else given["preset"]
        load_config(preset, None, given.get("overrides") or [])


def make_files(names: list[str]) -> None:
    """Make empty files of these names, here: options whose file must exist look for it."""
    for name in sorted(names, key=lambda name: -name.count("/")):  # deepest first: a prefix is a folder
        if re.fullmatch(r"\w[\w./-]*", name) and not Path(name).exists():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).touch()
