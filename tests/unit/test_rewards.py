"""What each ending and each form of the tool term is paid.

Locked: a trajectory cut at the token limit is wrong even with a complete box; a failure of the infrastructure is
never scored; the number of calls is never assumed.
"""

from __future__ import annotations

import sys

import pytest

from agentrl_cli.config.schema import OverlongConfig, RewardComponent, RewardsConfig
from agentrl_cli.errors import ConfigError
from agentrl_cli.rewards.components import ToolReward, length_term, outcome, tool_term
from agentrl_cli.rewards.compose import score_trajectories, score_trajectory
from agentrl_cli.rewards.math_pool import MathPool
from agentrl_cli.types import (
    AnswerKind,
    Ending,
    Problem,
    ToolCall,
    ToolEvent,
    ToolResult,
    ToolStatus,
    Trajectory,
    Verdict,
    VerdictStatus,
)

RAMP = OverlongConfig(max_tokens=1000, cache_tokens=200)


def trajectory(
    text: str = r"\boxed{7}",
    *,
    gold: str = "7",
    kind: AnswerKind = AnswerKind.INTEGER,
    ending: Ending = Ending.ANSWERED,
    calls: tuple[ToolStatus, ...] = (),
    num_generated: int = 100,
    num_tool_tokens: int = 0,
) -> Trajectory:
    """One trajectory of two turns with the given final text and tool results."""
    events = [
        ToolEvent(0, ToolCall(f"call_{i}", "python", "{}"), ToolResult(status, "")) for i, status in enumerate(calls)
    ]
    return Trajectory(
        id="t",
        problem=Problem("p", "", gold, kind),
        group_id="g",
        seed=0,
        messages=[{"role": "user", "content": "?"}, {"role": "assistant", "content": text}],
        tools=[],
        ids=[0] * (num_generated + num_tool_tokens),
        turn_tokens=[num_generated // 2, num_generated - num_generated // 2],
        events=events,
        ending=ending,
    )


def paid(one: Trajectory, *, rewards: RewardsConfig | None = None, overlong: OverlongConfig = RAMP) -> Trajectory:
    """The trajectory after scoring."""
    score_trajectories([one], rewards=rewards or RewardsConfig(), overlong=overlong, max_completion_length=2000)
    return one


@pytest.mark.parametrize(
    ("form", "is_correct", "totals"),
    [
        # outcome + tool term for n = 0, 1, 3, 4, 5, 6 calls
        ("release", True, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        # min(-0.6, -1 + 0.1 n): -1 + 0.1 = -0.9, -0.7, -0.6, then min(-0.6, -0.5) = -0.6
        ("release", False, [-1.0, -0.9, -0.7, -0.6, -0.6, -0.6]),
        # 1 + 0.1 min(n, 5)
        ("call_bonus", True, [1.0, 1.1, 1.3, 1.4, 1.5, 1.5]),
        ("call_bonus", False, [-1.0, -0.9, -0.7, -0.6, -0.5, -0.5]),
        ("paper", True, [1.0, 1.1, 1.3, 1.4, 1.5, 1.5]),
        ("paper", False, [-1.0, -0.9, -0.7, -0.6, -0.6, -0.6]),
        ("none", True, [1.0] * 6),
        ("none", False, [-1.0] * 6),
    ],
)
def test_table_of_the_tool_term(form: ToolReward, is_correct: bool, totals: list[float]) -> None:
    """Outcome plus tool term is the table for every form, at and around its bounds."""
    counts = [0, 1, 3, 4, 5, 6]
    got = [outcome(is_correct=is_correct) + tool_term(form, is_correct=is_correct, num_calls=n) for n in counts]
    assert got == pytest.approx(totals, abs=1e-12)


@pytest.mark.parametrize("num_calls", [-1, None, 2.0])
def test_a_missing_count_of_calls_is_an_error(num_calls: int) -> None:
    """No count of calls is ever assumed."""
    with pytest.raises(ValueError, match="num_calls"):
        tool_term("release", is_correct=True, num_calls=num_calls)


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [
        # L_max 1000, L_cache 200: 0 up to 800, (800 - len) / 200 up to 1000, then -1
        (0, 0.0),
        (799, 0.0),
        (800, 0.0),
        (801, -0.005),
        (900, -0.5),
        (999, -0.995),
        (1000, -1.0),
        (1001, -1.0),
    ],
)
def test_length_ramp(num_tokens: int, expected: float) -> None:
    """The penalty falls from 0 to -1 over the last cache_tokens before the limit."""
    got = length_term(num_tokens, max_tokens=1000, cache_tokens=200, is_cut=False)
    assert got == pytest.approx(expected, abs=1e-12)


def test_length_ramp_over_the_whole_length() -> None:
    """A cache as wide as the limit starts the ramp at the first token."""
    # (100 - 100 - 25) / 100
    assert length_term(25, max_tokens=100, cache_tokens=100, is_cut=False) == -0.25


THREE = (ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT, ToolStatus.INVALID)
"""Three executed calls, one of them successful, and one that was never executed."""


@pytest.mark.parametrize(
    ("ending", "text", "status", "total"),
    [
        # 900 tokens: ramp -0.5; three calls: +0.3 when wrong
        (Ending.ANSWERED, r"\boxed{7}", VerdictStatus.OK, 1 + 0 - 0.5),
        (Ending.ANSWERED, r"\boxed{8}", VerdictStatus.OK, -1 + 0.3 - 0.5),
        (Ending.NO_ANSWER, "seven", VerdictStatus.NO_ANSWER, -1 + 0.3 - 0.5),
        (Ending.MAX_TURNS, r"\boxed{7}", VerdictStatus.NO_ANSWER, -1 + 0.3 - 0.5),
        (Ending.TOOL_LIMIT, r"\boxed{7}", VerdictStatus.NO_ANSWER, -1 + 0.3 - 0.5),
        (Ending.MAX_TOKENS, r"\boxed{7}", VerdictStatus.TRUNCATED, -1 + 0.3 - 1),
    ],
)
def test_what_each_ending_is_paid(ending: Ending, text: str, status: VerdictStatus, total: float) -> None:
    """Only `answered` can be right; `max_tokens` has the full length penalty."""
    got = paid(trajectory(text, ending=ending, calls=THREE, num_generated=900))
    assert got.verdict is not None
    assert got.verdict.status is status
    assert got.reward == pytest.approx(total, abs=1e-12)
    assert sum(got.reward_parts.values()) == pytest.approx(got.reward, abs=1e-12)


def test_cut_early_by_tool_output_still_costs_the_full_penalty() -> None:
    """A trajectory that ended by `max_tokens` gets -1 even if few of its tokens were generated."""
    got = paid(trajectory(ending=Ending.MAX_TOKENS, num_generated=10, num_tool_tokens=1990))
    assert got.reward_parts == {"outcome": -1.0, "tool": 0.0, "length": -1.0}


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        # 700 generated: no penalty. 700 + 200 tool output = 900: (800 - 900) / 200
        ("generated", 0.0),
        ("all", -0.5),
    ],
)
def test_what_the_ramp_counts(count: str, expected: float) -> None:
    """`generated` leaves tool output out of the length, `all` counts it."""
    overlong = RAMP.model_copy(update={"count": count})
    got = paid(trajectory(num_generated=700, num_tool_tokens=200), overlong=overlong)
    assert got.reward_parts["length"] == expected


def test_limit_falls_back_to_max_completion_length() -> None:
    """Without its own limit the ramp ends at max_completion_length."""
    # L_max 2000, L_cache 200: (1800 - 1900) / 200
    got = paid(trajectory(num_generated=1900), overlong=OverlongConfig(cache_tokens=200))
    assert got.reward_parts["length"] == -0.5


def test_counting_all_needs_token_ids() -> None:
    """A chat endpoint has no token ids, so its trajectories can't be charged for all tokens."""
    one = trajectory(num_generated=700)
    one.ids = []
    with pytest.raises(ConfigError, match="overlong"):
        paid(one, overlong=RAMP.model_copy(update={"count": "all"}))


def test_which_calls_count() -> None:
    """`executed` leaves out calls that were never run, `successful` those that failed as well."""
    wrong = {"text": r"\boxed{8}", "calls": THREE}
    executed = paid(trajectory(**wrong), rewards=RewardsConfig(tool_count="executed"))
    successful = paid(trajectory(**wrong), rewards=RewardsConfig(tool_count="successful"))
    assert executed.reward_parts["tool"] == pytest.approx(0.3)
    assert successful.reward_parts["tool"] == pytest.approx(0.1)


def test_weights_and_a_missing_component() -> None:
    """The reward is the weighted sum of the components that are named; parts are logged unweighted."""
    rewards = RewardsConfig(
        tool_reward="paper",
        components=[RewardComponent(name="outcome", weight=2.0), RewardComponent(name="tool", weight=0.5)],
    )
    got = paid(trajectory(calls=(ToolStatus.OK,) * 2, num_generated=900), rewards=rewards)
    # 2 x 1 + 0.5 x 0.2
    assert got.reward == pytest.approx(2.1)
    assert got.reward_parts == {"outcome": 1.0, "tool": 0.2}


def test_disabled_ramp_costs_nothing() -> None:
    """With overlong shaping off, even a cut trajectory has no length penalty."""
    got = paid(trajectory(ending=Ending.MAX_TOKENS), overlong=OverlongConfig(enabled=False))
    assert got.reward_parts == {"outcome": -1.0, "tool": 0.0, "length": 0.0}


@pytest.mark.parametrize("ending", [Ending.INFRA_ERROR, Ending.CANCELLED])
def test_failures_are_never_scored(ending: Ending) -> None:
    """A trajectory lost to the infrastructure or cancelled has no reward, not a bad one."""
    one = trajectory(ending=ending)
    one.verdict = Verdict(True, VerdictStatus.OK, "7")
    with pytest.raises(AssertionError):
        score_trajectory(one, rewards=RewardsConfig(), overlong=RAMP, max_completion_length=2000)
    with pytest.raises(AssertionError):
        paid(one)


def test_only_answered_is_right() -> None:
    """A verdict from elsewhere does not make a trajectory right that never came to its answer."""
    one = trajectory(ending=Ending.TOOL_LIMIT)
    one.verdict = Verdict(True, VerdictStatus.OK, "7")
    score = score_trajectory(one, rewards=RewardsConfig(), overlong=RAMP, max_completion_length=2000)
    assert score.parts["outcome"] == -1.0


def test_a_broken_verifier_takes_the_trajectory_out() -> None:
    """If the verifier fails on known-good input too, the ending becomes infra_error and there is no reward."""
    broken = MathPool(size=1, command=[sys.executable, "-c", "raise SystemExit(3)"])
    one = trajectory(r"\boxed{\sqrt{2}}", gold=r"\sqrt{3}", kind=AnswerKind.MATH)
    score_trajectories([one], rewards=RewardsConfig(), overlong=RAMP, max_completion_length=2000, pool=broken)
    assert one.ending is Ending.INFRA_ERROR
    assert one.error
    assert (one.reward, one.reward_parts) == (0.0, {})
