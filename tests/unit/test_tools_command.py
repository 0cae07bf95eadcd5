"""`agentrl tools`: listed, shown and called by hand, as the shell would."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agentrl_cli.agent.tools.registry import CARDS
from agentrl_cli.config.catalog import catalog
from agentrl_cli.main import app

OWN = '''
def shout(text: str) -> str:
    """
    Say it loudly.

    Args:
        text: what to say
    """
    return text.upper()

def fail() -> str:
    """Fail."""
    raise ValueError("no")

TOOLS = [shout, fail]
'''


def invoke(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, ["tools", *arguments], prog_name="agentrl")


@pytest.fixture
def own(tmp_path: Path) -> str:
    """The option that brings two tools of one's own."""
    pytest.importorskip("transformers")
    (tmp_path / "own_tools.py").write_text(OWN)
    return f"--set=tools.module={tmp_path / 'own_tools.py'}"


def test_list_marks_what_is_offered(own: str) -> None:
    """All tools of the package and the user's, those of the settings with a star."""
    result = invoke("list", own, "--set", 'tools.names=["calculator"]')
    assert result.exit_code == 0
    assert [line.split()[:2] for line in result.stdout.splitlines()[:3]] == [
        ["python", "Run"], ["*", "calculator"], ["symbolic", "Do"]
    ]  # fmt: skip
    listed = json.loads(invoke("list", own, "--json").stdout)["tools"]
    assert {tool["name"]: tool["is_offered"] for tool in listed} == {
        "python": True, "calculator": False, "symbolic": False, "search": False, "shout": True, "fail": True
    }  # fmt: skip


@pytest.mark.parametrize("name", list(CARDS))
def test_show_says_what_a_tool_does_and_what_bounds_it(name: str) -> None:
    """Doc, cost, limits with their present values, and the schema; --json holds the same."""
    result = invoke("show", name, "--set", "sandbox.timeout_s=7", "--json")
    tool = json.loads(result.stdout)
    assert tool["schema"]["function"]["name"] == tool["name"] == name
    assert tool["doc"]
    assert tool["cost"]
    assert tool["limits"].get("sandbox.timeout_s", 7.0) == 7.0
    text = invoke("show", name).stdout
    for part in (tool["doc"], f"cost: {tool['cost']}", '"type": "function"'):
        assert part in text


def test_the_limits_that_tools_name_are_settings() -> None:
    """A renamed setting takes its mention along."""
    assert {key for card in CARDS.values() for key in card.limits} <= set(catalog())


def test_show_knows_own_tools(own: str) -> None:
    """What the docstring says, and that it runs in this process."""
    text = invoke("show", "shout", own).stdout
    assert "Say it loudly." in text
    assert "cost: in this process" in text


def test_call_prints_status_time_and_result() -> None:
    """For people and as one JSON object."""
    result = invoke("call", "calculator", '{"expression": "0.1 + 0.2"}')
    assert result.exit_code == 0
    assert re.fullmatch(r"status  ok\nwall_s  [\d.e-]+\n\n0\.3\n", result.stdout)
    values = json.loads(invoke("call", "calculator", '{"expression": "0.1 + 0.2"}', "--json").stdout)
    assert 0 < values.pop("wall_s") < 5
    assert values == {"tool": "calculator", "status": "ok", "result": "0.3"}


def test_call_runs_in_the_sandbox() -> None:
    """Python and symbolic need no settings of their own."""
    assert invoke("call", "python", '{"code": "6 * 7"}').stdout.endswith("\n42\n")
    arguments = json.dumps({"operation": "factor", "expression": "x^2 - 1"})
    assert "(x - 1)*(x + 1)" in invoke("call", "symbolic", arguments).stdout


@pytest.mark.parametrize(
    ("name", "arguments", "status", "content"),
    [
        ("calculator", '{"expression": "1/0"}', "error", "Error: division by zero"),
        ("calculator", "{", "invalid", "Error: the arguments are not valid JSON"),
        ("calculator", "{}", "invalid", "Error: calculator: missing a required argument: 'expression'"),
        ("python", '{"code": "1/0"}', "error", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_failed_call_ends_with_exit_code_1(name: str, arguments: str, status: str, content: str) -> None:
    """The model's view of the failure is the result."""
    result = invoke("call", name, arguments, "--json")
    assert result.exit_code == 1
    values = json.loads(result.stdout)
    assert (values["status"], values["result"]) == (status, content)


def test_call_knows_own_tools(own: str) -> None:
    """Right, failing and misused."""
    assert invoke("call", "shout", '{"text": "hi"}', own).stdout.endswith("\nHI\n")
    assert invoke("call", "fail", "{}", own).exit_code == 1
    misused = invoke("call", "shout", '{"text": 5}', own)
    assert misused.exit_code == 1
    assert "Error: shout: 'text' must be a string, got 5" in misused.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "calc"], "no tool is called 'calc'"),
        (["call", "calc", "{}"], "no tool is called 'calc'"),
        (["call", "calculator", "{}", "--set", "tools.nmes=[]"], "tools.nmes"),
    ],
)
def test_mistakes_end_with_exit_code_2(arguments: list[str], message: str) -> None:
    """A tool or a setting that there is not; the hint names what there is."""
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "hint: " in result.stderr


def test_search_is_tried_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a folder it answers; without one it says what is missing."""
    pytest.importorskip("bm25s")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("zebra")
    folder = ["--set", 'tools.names=["search"]', "--set", f"tools.search.corpus={tmp_path / 'corpus'}"]
    assert invoke("call", "search", '{"query": "zebra"}', *folder).stdout.endswith("\n[a.txt] a\nzebra\n")
    result = invoke("call", "search", '{"query": "zebra"}')
    assert result.exit_code == 2
    assert "tools.search.corpus='' is no folder" in result.stderr
