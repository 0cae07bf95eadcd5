"""The command line from outside: exit codes, messages, streams, and the frozen set of options."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from agentrl_cli import __version__
from agentrl_cli.main import app

SHARED = {"--preset", "--config", "--set", "--out", "--dry-run", "--seed", "--json", "--debug"}
READING = {"--strict", "--offline"}
SURFACE = {
    "collect": SHARED | READING | {"--problems", "--teacher"},
    "filter": SHARED | {"input_", "--strict"},
    "sft": SHARED | READING | {"--data", "--resume"},
    "rl": SHARED | READING | {"--data", "--resume"},
    "eval": SHARED | READING | {"benchmark", "--model", "--data", "--limit", "--no-tools"},
    "diagnose": {"run", "--json", "--debug"},
    "pipeline": SHARED | READING | {"--problems", "--teacher", "--benchmark", "--until"},
    "chat": (SHARED - {"--out", "--dry-run"}) | {"model", "--ask", "--gold", "--offline"},
    "view": {"path", "--id", "--correct", "--limit", "--tokens", "--json", "--debug"},
    "export": {"model", "--out", "--to", "--merge", "--json", "--debug"},
    "runs list": {"--root", "--json", "--debug"},
    "runs prune": {"names", "--keep", "--older-than", "--what", "--yes", "--root", "--dry-run", "--json", "--debug"},
    "runs compare": {"a", "b", "--root", "--json", "--debug"},
    "doctor": {"--preset", "--json", "--debug"},
    "tools list": {"--preset", "--config", "--set", "--json", "--debug"},
    "tools show": {"name", "--preset", "--config", "--set", "--json", "--debug"},
    "tools call": {"name", "arguments", "--preset", "--config", "--set", "--json", "--debug"},
    "presets list": set(),
    "presets show": {"name"},
    "presets explain": {"key"},
}
MAX_OWN_OPTIONS = 8


def invoke(*arguments: str) -> Result:
    """Run the command in this process, as the shell would."""
    return CliRunner().invoke(app, arguments, prog_name="agentrl")


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def option_names() -> dict[str, set[str]]:
    """Return what each command takes, as typer built it."""
    names: dict[str, set[str]] = {}

    def visit(command: object, path: str) -> None:
        for name, child in getattr(command, "commands", {}).items():
            full = f"{path} {name}".strip()
            if getattr(child, "commands", None):
                visit(child, full)
                continue
            names[full] = {parameter.opts[0] for parameter in child.params if parameter.name != "help"}

    visit(get_command(app), "")
    return names


def test_the_flag_surface_is_frozen() -> None:
    """A new option is a decision: it changes this table, and stays within eight of its own per command."""
    assert option_names() == SURFACE
    assert all(len(flags - SHARED) <= MAX_OWN_OPTIONS for flags in SURFACE.values())


def test_version() -> None:
    """--version prints one line and stops."""
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"agentrl {__version__}\n")


@pytest.mark.parametrize("command", ["", *SURFACE])
def test_help_fits_80_columns(command: str) -> None:
    """Every command explains itself within a terminal's width."""
    result = invoke(*command.split(), "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: agentrl")
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_help_and_settings_load_no_torch() -> None:
    """Neither --help nor a fully checked configuration pays for torch, and validation not for rich either."""
    code = (
        "import sys\n"
        "from agentrl_cli.main import app\n"
        "try: app(['rl', '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "try: app(['rl', '--preset', '4b', '--dry-run', '--json'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print({'torch', 'transformers', 'datasets', 'peft'} & set(sys.modules))\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("command", ["", "rl", "pipeline", "runs prune"])
def test_help_loads_neither_settings_nor_terminal(command: str) -> None:
    """Help costs little more than its interpreter: no pydantic, no rich, nothing of ours but commands."""
    done = python(
        "import sys\n"
        "from agentrl_cli.main import app\n"
        f"try: app([*{command.split()}, '--help'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print({'pydantic', 'rich.console', 'rich.text', 'numpy', 'agentrl_cli.config.schema'} & set(sys.modules))\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("agentrl rl --preset 4", {"4b", "4b-grpo"}),
        ("agentrl eval aime", {"aime2024", "aime2025"}),
        ("agentrl rl --set grpo.epsilon_l", {"grpo.epsilon_low="}),
        ("agentrl presets explain run.keep", {"run.keep_checkpoints", "run.keep_trajectories"}),
    ],
)
def test_the_shell_completes_names(line: str, offered: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """TAB gives presets, benchmarks and settings, as bash asks for them."""
    environment = {
        "_AGENTRL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split()) - 1),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = python("from agentrl_cli.main import app; app(prog_name='agentrl')")
    assert set(done.stdout.split()) == offered, done.stderr


def test_loading_settings_alone_needs_neither_terminal_library() -> None:
    """A program that only reads settings gets pydantic and nothing more."""
    done = python(
        "import sys\n"
        "from agentrl_cli.config.load import load_config\n"
        "load_config('4b', None, ['steps=2'])\n"
        "print({'torch', 'rich', 'typer', 'numpy'} & set(sys.modules))\n"
    )
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_python_dash_m_is_the_same_command() -> None:
    """A clone runs without being installed."""
    done = subprocess.run(
        [sys.executable, "-m", "agentrl_cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"agentrl {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (
            ["rl", "--set", "grpo.epsilon_hgh=1"],
            "unknown setting 'grpo.epsilon_hgh'",
            "did you mean grpo.epsilon_high?",
        ),
        (["rl", "--set", "learning_rate=1"], "'learning_rate' is ambiguous", "optim.learning_rate"),
        (
            ["rl", "--preset", "tinny"],
            "unknown preset 'tinny'",
            "mean tiny? presets are 135m, 32b, 4b, 4b-grpo, 7b",
        ),
        (["rl", "--config", "no.toml"], "config file 'no.toml' does not exist", "TOML"),
        (["rl", "--set", "grpo.delta=1"], "delta=1.0 must exceed", ""),
        (["rl", "--seed", "-1"], "run.seed must be at least 0, got -1", "Seed"),
        (["rl", "--resume", "no-run", "--dry-run"], "no-run/config.json' does not exist", ""),
        (["eval", "generated", "--set", "steps=0"], "run.steps must be above 0", "RL steps"),
        (["eval", "verifier", "--preset", "tiny"], "eval verifier needs --data", "rows are"),
        (["presets", "show", "5b"], "unknown preset '5b'", "presets are"),
        (
            ["rl", "--set", "clip_ratio_high=0.3"],
            "unknown setting 'clip_ratio_high'",
            "did you mean grpo.epsilon_high?",
        ),
        (["rl", "--set", "lr=1"], "unknown setting 'lr'", "did you mean optim.learning_rate?"),
        (["presets", "explain", "stepz"], "unknown setting 'stepz'", "did you mean run.steps?"),
    ],
)
def test_user_errors_exit_2_with_message_and_hint(
    arguments: list[str], error: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake says what is wrong and how to fix it, on stderr, without a traceback."""
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert error in result.stderr
    assert hint in result.stderr.partition("\n\nhint: ")[2]
    assert "Traceback" not in result.stderr


def test_bad_toml_is_a_user_error(tmp_path: Path) -> None:
    """The place of the mistake is in the message."""
    file = tmp_path / "my.toml"
    file.write_text("[run]\nsteps = \n")
    result = invoke("sft", "--data", str(file), "--config", str(file))
    assert result.exit_code == 2
    assert "is not valid TOML" in result.stderr
    assert "line 2" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sft", "--data", "no.jsonl"], "'no.jsonl' does not exist"),
        (["filter", "no.jsonl"], "'no.jsonl' does not exist"),
        (["sft"], "Missing option '--data'"),
        (["rl", "--prest", "tiny"], "No such option: --prest"),
        (["train"], "No such command 'train'"),
    ],
)
def test_usage_errors_exit_2(arguments: list[str], words: str) -> None:
    """Missing files and misspelt options are refused while parsing."""
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr


def test_debug_shows_the_traceback_and_keeps_the_exit_code() -> None:
    """Only --debug shows where an error was raised."""
    result = invoke("rl", "--preset", "5b", "--debug")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "error: unknown preset '5b'" in result.stderr


def test_dry_run_prints_settings_and_sizes_and_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One JSON object with every setting and the batch arithmetic; no run folder appears."""
    monkeypatch.chdir(tmp_path)
    arguments = ["--preset", "tiny", "--set", "steps=3", "--seed", "5", "--data", "p.jsonl", "--dry-run"]
    result = invoke("rl", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)
    assert (plan["config"]["run"]["steps"], plan["config"]["run"]["seed"]) == (3, 5)
    assert plan["config"]["data"]["train"] == "p.jsonl"
    assert plan["batch"]["rl_trajectories_per_step"] == 128  # 16 problems x 8
    assert list(tmp_path.iterdir()) == []

    readable = invoke("rl", *arguments)
    assert re.search(r"^config\.run\.steps +3$", readable.stdout, re.MULTILINE)
    assert re.search(r"^batch\.rl_trajectories_per_step +128$", readable.stdout, re.MULTILINE)


def test_options_stand_over_set() -> None:
    """--seed and --data name one setting each and win over --set."""
    result = invoke("rl", "--set", "seed=1", "--seed", "2", "--dry-run", "--json")
    assert json.loads(result.stdout)["config"]["run"]["seed"] == 2


def test_no_tools_empties_the_list_of_tools() -> None:
    """eval --no-tools measures the bare model."""
    result = invoke("eval", "generated", "--preset", "tiny", "--no-tools", "--dry-run", "--json")
    assert json.loads(result.stdout)["config"]["tools"]["names"] == []


def test_a_run_is_resumed_and_evaluated_under_its_own_settings(tmp_path: Path) -> None:
    """Without --preset and --config, the settings come from the run folder, and --set goes over them."""
    config = json.loads(invoke("rl", "--preset", "4b", "--dry-run", "--json").stdout)["config"]
    (tmp_path / "config.json").write_text(json.dumps({"config": config}))
    (tmp_path / "metrics.jsonl").touch()
    for command in (["rl", "--resume", str(tmp_path)], ["eval", "generated", "--model", str(tmp_path)]):
        result = invoke(*command, "--set", "steps=9", "--dry-run", "--json")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["config"] == {**config, "run": {**config["run"], "steps": 9}}


def test_presets_are_listed_shown_and_explained() -> None:
    """`presets show` prints TOML that --config takes back."""
    listed = dict(line.split(maxsplit=1) for line in invoke("presets", "list").stdout.splitlines())
    assert list(listed) == ["135m", "32b", "4b", "4b-grpo", "7b", "tiny"]
    assert listed["4b"] == "Qwen3-4B-Instruct-2507 with GRPO-TCR"
    assert "epsilon_high = 0.315" in invoke("presets", "show", "4b").stdout
    explained = invoke("presets", "explain", "epsilon_high").stdout.splitlines()
    assert explained[0] == "grpo.epsilon_high"
    assert explained[-1] == "  presets: 135m 0.315, 32b 0.28, 4b 0.315, 4b-grpo 0.2, 7b 0.28, tiny 0.315"


def test_a_shown_preset_is_a_config_file(tmp_path: Path) -> None:
    """A file of one's own can start from a preset."""
    file = tmp_path / "mine.toml"
    file.write_text(invoke("presets", "show", "135m").stdout)
    mine = invoke("rl", "--preset", "135m", "--config", str(file), "--dry-run", "--json")
    assert mine.stdout == invoke("rl", "--preset", "135m", "--dry-run", "--json").stdout
