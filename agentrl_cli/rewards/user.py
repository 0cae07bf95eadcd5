"""A user's own part of the reward: a Python file with `def reward(trajectory) -> float`.

The part is called `module`; its weight stands in `rewards.components`. See docs/extending.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path

from agentrl_cli.errors import ConfigError
from agentrl_cli.types import Ending, Problem, Trajectory, Verdict, VerdictStatus
from agentrl_cli.user_code import describe, load_user_module

SETTING = "rewards.module"
_CONTRACT = "write `def reward(trajectory) -> float`; it has problem, messages, final_text, num_calls, verdict"


class UserRewardError(Exception):
    """A user's reward raised, or returned no finite number; the text says which and where."""


@functools.cache
def infra_hint(error: str) -> str:
    """Return what to do about a trajectory that was lost with this error: a failing reward is the user's own."""
    if error.startswith(f"{SETTING}:"):
        return f"mend the file that {SETTING} names"
    return "check the sandbox and the engine (agentrl doctor)"


def load_reward(file: str) -> Callable[[Trajectory], float]:
    """Return the reward of a file after trying it on a right and on a wrong sample.

    The returned function raises `UserRewardError`.

    Raises:
        ConfigError: the file can't be loaded, has no `reward`, or that fails on a sample.
    """
    function = getattr(load_user_module(file, setting=SETTING), "reward", None)
    if not callable(function):
        raise ConfigError(f"{SETTING}={file!r} defines no function `reward`", hint=_CONTRACT)

    def checked(trajectory: Trajectory) -> float:
        try:
            value = function(trajectory)
        except Exception as error:
            raise UserRewardError(describe(error, Path(file))) from error
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UserRewardError(f"it returned {value!r}, no finite number")
        return float(value)

    for is_right in (True, False):
        try:
            checked(sample(is_right=is_right))
        except UserRewardError as error:
            answer = "right" if is_right else "wrong"
            raise ConfigError(
                f"{SETTING}={file!r} fails on a sample with a {answer} answer: {error}", hint=_CONTRACT
            ) from error
    return checked


def sample(*, is_right: bool) -> Trajectory:
    """Return a small trajectory as a reward gets it: one problem, one answer, no call."""
    text = "The answer is \\boxed{4}." if is_right else "I don't know."
    status = VerdictStatus.OK if is_right else VerdictStatus.NO_ANSWER
    return Trajectory(
        id="sample#0",
        problem=Problem(id="sample", prompt="What is 2 + 2?", answer="4"),
        group_id="sample",
        seed=0,
        messages=[{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": text}],
        tools=[],
        turn_tokens=[8],
        ending=Ending.ANSWERED if is_right else Ending.NO_ANSWER,
        verdict=Verdict(is_right, status, "4" if is_right else ""),
    )
