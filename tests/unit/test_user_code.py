"""Rewards and tools from a user's own Python file."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl_cli.agent.tools import build_toolbox
from agentrl_cli.config.digest import config_digest
from agentrl_cli.config.load import load_config
from agentrl_cli.config.schema import SandboxConfig, ToolsConfig
from agentrl_cli.errors import ConfigError
from agentrl_cli.rewards.compose import make_scorer
from agentrl_cli.rewards.user import load_reward, sample
from agentrl_cli.sandbox.base import Sandbox
from agentrl_cli.sandbox.local import LocalSandbox
from agentrl_cli.types import Ending, ToolCall, ToolResult, ToolStatus

TOOLS = '''
import asyncio, time

def add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b

async def wait(seconds: float) -> str:
    """
    Wait.

    Args:
        seconds: how long
    """
    await asyncio.sleep(seconds)
    return "done" * 100

def fail() -> str:
    """Fail."""
    raise KeyError("nothing here")

TOOLS = [add, wait, fail]
SAMPLES = {"add": {"a": 1, "b": 2}}
'''


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def settings(*overrides: str) -> Any:
    return load_config("tiny", None, list(overrides))


def test_a_reward_module_becomes_a_part_of_the_reward(tmp_path: Path) -> None:
    """Its value stands under `module`, and its weight counts."""
    file = write(tmp_path, "def reward(trajectory):\n    return 0.5 if trajectory.verdict.correct else -0.25\n")
    config = settings(
        f"rewards.module={file}",
        'rewards.components=[{name="outcome"}, {name="length"}, {name="module", weight=2.0}]',
    )
    right, wrong = sample(is_right=True), sample(is_right=False)
    score = make_scorer(config.rewards, overlong=config.grpo.overlong, max_completion_length=192)
    score([right, wrong])
    assert right.reward_parts == {"outcome": 1.0, "length": 0.0, "module": 0.5}
    assert (right.reward, wrong.reward) == (1.0 + 2 * 0.5, -1.0 + 2 * -0.25)


def test_a_reward_module_is_added_with_weight_one_unless_it_is_listed(tmp_path: Path) -> None:
    """Naming the file is enough."""
    components = settings(f"rewards.module={tmp_path / 'any.py'}").rewards.components
    assert [(c.name, c.weight) for c in components][-1] == ("module", 1.0)


def test_a_part_without_a_file_is_refused() -> None:
    """A listed part that nothing computes is a contradiction."""
    with pytest.raises(ConfigError, match="names no file"):
        settings('rewards.components=[{name="outcome"}, {name="length"}, {name="module"}]')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def reward(trajectory) return 1", r"can't be loaded: SyntaxError.*line 1"),
        ("x = 1\nraise ValueError('no')", r"can't be loaded: ValueError: no \(line 2\)"),
        ("def rewards(t): return 1", "no function `reward`"),
        ("def reward(t):\n    return t.nothing", r"right answer: AttributeError.*line 2"),
        ("def reward(t):\n    return 1 / t.verdict.correct", r"wrong answer: ZeroDivisionError.*line 2"),
        ("def reward(t): return float('nan')", "it returned nan, no finite number"),
        ("def reward(t): return True", "it returned True"),
    ],
)
def test_a_broken_reward_is_refused_before_anything_starts(text: str, message: str, tmp_path: Path) -> None:
    """The message names the file's own line."""
    config = settings(f"rewards.module={write(tmp_path, text)}")
    with pytest.raises(ConfigError, match=message):
        make_scorer(config.rewards, overlong=config.grpo.overlong, max_completion_length=192)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The setting and the path are in the message."""
    with pytest.raises(ConfigError, match=r"rewards.module='.*gone.py': there is no such file"):
        load_reward(str(tmp_path / "gone.py"))


def test_a_reward_that_fails_on_one_trajectory_leaves_the_others(tmp_path: Path) -> None:
    """What can't be paid belongs to no group, as any infrastructure failure, and says why."""
    file = write(tmp_path, "def reward(t):\n    assert t.id != 'bad', 'seen bad'\n    return 0.0\n")
    config = settings(f"rewards.module={file}")
    good, bad = sample(is_right=True), sample(is_right=True)
    bad.id = "bad"
    make_scorer(config.rewards, overlong=config.grpo.overlong, max_completion_length=192)([good, bad])
    assert (good.ending, bad.ending) == (Ending.ANSWERED, Ending.INFRA_ERROR)
    assert bad.error == "rewards.module: AssertionError: seen bad (line 2)"


def test_a_changed_file_is_another_digest(tmp_path: Path) -> None:
    """A run can't go on under a reward that is not the one it began with."""
    file = write(tmp_path, "def reward(t): return 0.0\n")
    config = settings(f"rewards.module={file}")
    before = config_digest(config)
    write(tmp_path, "def reward(t): return 1.0\n")
    assert config_digest(config) != before


def call_all(file: str, calls: list[ToolCall], **tools: Any) -> list[ToolResult]:
    """Make calls in one session over a real sandbox."""

    async def play() -> list[ToolResult]:
        sandbox: Sandbox = LocalSandbox(SandboxConfig(pool_size=1))
        toolbox = await asyncio.to_thread(
            build_toolbox, ToolsConfig(module=file, **tools), sandbox, SandboxConfig(max_output_chars=50)
        )
        session = toolbox.open()
        results = [await session.call(call) for call in calls]
        await session.close()
        await sandbox.close()
        return results

    return asyncio.run(play())


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("1", name, json.dumps(arguments))


def test_own_tools_stand_beside_python(tmp_path: Path) -> None:
    """Values, failures and wrong arguments each come back as what they are."""
    file = write(tmp_path, TOOLS)
    results = call_all(
        file,
        [
            call("add", a=20, b=22),
            call("python", code="6 * 7"),
            call("fail"),
            call("add", a=1),
            call("multiply", a=1),
            ToolCall("1", "add", "[1, 2]"),
            call("wait", seconds=0.0),
        ],
    )
    assert [(r.status, r.content) for r in results[:2]] == [(ToolStatus.OK, "42"), (ToolStatus.OK, "42")]
    assert (results[2].status, results[2].content) == (ToolStatus.ERROR, "KeyError: 'nothing here' (line 26)")
    assert (results[3].status, results[3].content) == (
        ToolStatus.INVALID,
        "Error: add: missing a required argument: 'b'",
    )
    assert (
        results[4].content == "Error: unknown tool 'multiply'; the tools on offer are 'python', 'add', 'wait', 'fail'"
    )
    assert results[5].content == "Error: the arguments must be a JSON object"
    # 400 characters against a limit of 50
    assert (len(results[6].content), results[6].content[-5:]) == (50, "(cut)")


def test_a_tool_that_hangs_is_timed_out(tmp_path: Path) -> None:
    """tools.timeout_s is the limit of one call."""
    without_samples = TOOLS.partition("SAMPLES")[0]
    (result,) = call_all(write(tmp_path, without_samples), [call("wait", seconds=30.0)], timeout_s=0.05)
    assert (result.status, result.content) == (ToolStatus.TIMEOUT, "Error: timed out")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(): pass", "has no list of functions `TOOLS`"),
        ("def f(x):\n    'Do.'\nTOOLS = [f]", "f has no schema"),
        (TOOLS.replace('"b": 2', '"b": "x"'), r"add\(.*\) fails on its sample: add: 'b' must be an integer"),
        (TOOLS.replace('"add":', '"sum":'), "SAMPLES names 'sum'"),
        (TOOLS.replace("add", "python"), "two tools have one name"),
    ],
)
def test_broken_tools_are_refused_before_anything_starts(text: str, message: str, tmp_path: Path) -> None:
    """A tool without a schema, or that fails on its own sample, would only fail later."""
    with pytest.raises(ConfigError, match=message):
        call_all(write(tmp_path, text), [])


def test_tools_that_hang_hold_up_no_other(tmp_path: Path) -> None:
    """However many calls hang in their threads, the next one is answered, and the program can end."""
    text = '''
import time

def stuck() -> str:
    """Hang."""
    time.sleep(60)

def quick() -> str:
    """Answer."""
    return "here"

TOOLS = [stuck, quick]
'''
    start = time.monotonic()
    results = call_all(write(tmp_path, text), [*[call("stuck")] * 40, call("quick")], timeout_s=0.1)
    assert [result.status for result in results] == [ToolStatus.TIMEOUT] * 40 + [ToolStatus.OK]
    assert time.monotonic() - start < 30
