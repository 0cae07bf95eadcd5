"""The metrics of a step, counted by hand over small groups."""

from __future__ import annotations

import json
import math

import pytest

from agentrl_cli.agent.behaviour import BehaviourBaseline
from agentrl_cli.grpo.stats import LossStats
from agentrl_cli.training.metrics import rl_metrics, step_metrics
from agentrl_cli.training.sampling import SampledStep
from agentrl_cli.training.update import UpdateResult
from agentrl_cli.types import (
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

Event = tuple[str, ToolStatus, str]


def make(
    group: str,
    correct: bool,
    *,
    ending: Ending = Ending.ANSWERED,
    answer: str = "",
    calls: tuple[Event, ...] = (),
    turn_tokens: tuple[int, ...] = (10,),
    glue: int = 0,
    parts: dict[str, float] | None = None,
) -> Trajectory:
    """Build a scored trajectory; each call is its own turn."""
    trajectory = Trajectory("t", Problem("p", "?", "1"), group, 0, [{"role": "user", "content": "?"}], [])
    for turn, (code, status, result) in enumerate(calls):
        call = ToolCall(f"c{turn}", "python", json.dumps({"code": code}))
        trajectory.events.append(ToolEvent(turn, call, ToolResult(status, result)))
        trajectory.messages.append({"role": "assistant", "content": "", "tool_calls": []})
    trajectory.messages.append({"role": "assistant", "content": answer})
    trajectory.turn_tokens = list(turn_tokens)
    trajectory.ids = [0] * (sum(turn_tokens) + glue)
    trajectory.ending = ending
    status = VerdictStatus.OK if answer else VerdictStatus.NO_ANSWER
    trajectory.verdict = Verdict(correct, status, answer)
    trajectory.reward_parts = parts or {"outcome": 1.0 if correct else -1.0, "tool": 0.0}
    trajectory.reward = sum(trajectory.reward_parts.values())
    return trajectory


OK, ERROR, INVALID = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.INVALID


def test_rewards_and_accuracy() -> None:
    """Means over trajectories, the deviation with ddof 1, each part on its own."""
    metrics = step_metrics(
        [
            make("a", True, parts={"outcome": 1.0, "length": 0.0}),
            make("a", False, parts={"outcome": -1.0, "length": -1.0}),
            make("b", True, parts={"outcome": 1.0, "length": -0.5}),
            make("b", True, parts={"outcome": 1.0, "length": -0.5}),
        ]
    )
    # rewards 1, -2, 0.5, 0.5: mean 0; squares 1 + 4 + 0.25 + 0.25 = 5.5, / 3, root 1.3540064
    assert metrics["reward/mean"] == 0.0
    assert metrics["reward/std"] == pytest.approx(1.3540064)
    assert metrics["reward/outcome"] == 0.5  # (1 - 1 + 1 + 1) / 4
    assert metrics["reward/length"] == -0.5  # (0 - 1 - 0.5 - 0.5) / 4
    assert metrics["accuracy"] == 0.75


def test_groups() -> None:
    """All right, all wrong and mixed are told apart by accuracy; equal rewards by reward."""
    even = {"outcome": -1.0, "tool": 0.0}
    metrics = step_metrics(
        [
            make("good", True, answer="1"),
            make("good", True, answer="1"),
            make("bad", False, answer="7", parts=even),
            make("bad", False, answer="8", parts={"outcome": -1.0, "tool": 0.1}),
            make("mixed", True, answer="1"),
            make("mixed", False),
            make("even", False),
            make("even", False),
        ]
    )
    assert metrics["by_group/frac_all_good"] == 0.25
    assert metrics["by_group/frac_all_bad"] == 0.5
    assert metrics["by_group/frac_mixed"] == 0.25
    assert metrics["frac_reward_zero_std"] == 0.5  # good and even; bad differs by its tool term
    assert metrics["by_group/pass_minus_avg"] == pytest.approx(0.125)  # 0 + 0 + (1 - 0.5) + 0, / 4
    assert metrics["by_group/distinct_answers"] == 1.0  # 1 + 2 + 1 + 0, / 4


def test_failures_of_infrastructure_count_in_endings_alone() -> None:
    """Invalid trajectories are in no mean, and a group that they leave with one member has no say."""
    lost = make("a", False, ending=Ending.INFRA_ERROR)
    lost.verdict = None
    metrics = step_metrics([make("a", True), lost, make("b", True), make("b", False)])
    assert metrics["ending/infra_error"] == 0.25
    assert metrics["ending/answered"] == 0.75
    assert metrics["accuracy"] == pytest.approx(2 / 3)
    assert metrics["by_group/frac_mixed"] == 1.0


def test_nothing_valid_defines_endings_alone() -> None:
    """A step of failures reports its endings, and one without trajectories nothing."""
    lost = make("a", False, ending=Ending.CANCELLED)
    metrics = step_metrics([lost])
    assert metrics.pop("ending/cancelled") == 1.0
    assert set(metrics.values()) == {0.0}
    assert all(name.startswith("ending/") for name in metrics)
    assert step_metrics([]) == {}


def test_lengths_and_truncation() -> None:
    """Lengths count generated tokens; clipped is by tokens alone, truncated by any limit."""
    metrics = step_metrics(
        [
            make("a", False, ending=Ending.MAX_TOKENS, turn_tokens=(30, 30), glue=4),
            make("a", False, ending=Ending.MAX_TURNS, turn_tokens=(10, 10, 10)),
            make("b", False, ending=Ending.TOOL_LIMIT, turn_tokens=(6,)),
            make("b", True, turn_tokens=(4,)),
        ]
    )
    assert metrics["completions/mean_length"] == 25.0  # (60 + 30 + 6 + 4) / 4
    assert metrics["completions/max_length"] == 60.0
    assert metrics["completions/mean_total_length"] == 26.0  # 4 more tokens of tool output in one of four
    assert metrics["completions/clipped_ratio"] == 0.25
    assert metrics["truncated_frac"] == 0.75
    assert metrics["num_turns/mean"] == 1.75  # (2 + 3 + 1 + 1) / 4
    assert sum(value for name, value in metrics.items() if name.startswith("ending/")) == 1.0


def test_tools() -> None:
    """Calls per trajectory count unreadable ones; failures, recoveries and the commonest error are shares."""
    metrics = step_metrics(
        [
            make(
                "a",
                True,
                answer="5",
                calls=(
                    ("x1", ERROR, "Traceback\nNameError: name 'x1' is not defined\nNo further calls"),
                    ("x2", OK, "5"),
                ),
            ),
            make(
                "a", False, calls=(("y1", ERROR, "NameError: name 'x2' is not defined"), ("y", INVALID, "Error: bad"))
            ),
            make("b", True),
            make("b", True),
        ]
    )
    assert metrics["tools/call_frequency"] == 1.0  # 4 calls / 4
    assert metrics["tools/executed_frequency"] == 0.75  # 3 / 4
    assert metrics["tools/failure_frequency"] == 0.75  # 3 of 4
    assert metrics["tools/failed"] == 3.0
    assert metrics["tools/recovery_rate"] == pytest.approx(1 / 3)
    assert metrics["tools/used_frac"] == 0.25  # x2's 5 is the answer
    assert metrics["tools/top_error_frac"] == pytest.approx(2 / 3)  # both NameErrors, their numbers masked
    # patterns in a: python(x0), python(x0) against python(y0), python(y); in b: no call twice
    assert metrics["by_group/distinct_call_patterns"] == 1.5


def test_shares_of_nothing_are_left_out() -> None:
    """Without calls there is no failure share, without failures no recovery rate."""
    metrics = step_metrics([make("a", True), make("a", False)])
    assert metrics["tools/call_frequency"] == 0.0
    assert not {"tools/failure_frequency", "tools/used_frac", "tools/recovery_rate"} & set(metrics)
    metrics = step_metrics([make("a", True, calls=(("x", OK, "1"),)), make("a", False)])
    assert metrics["tools/failure_frequency"] == 0.0
    assert "tools/recovery_rate" not in metrics


def test_verdict_statuses_are_shares() -> None:
    """Each status of verification has its share."""
    metrics = step_metrics([make("a", True, answer="1"), make("a", False)])
    assert metrics["verdict/ok"] == 0.5
    assert metrics["verdict/no_answer"] == 0.5
    assert metrics["verdict/timeout"] == 0.0


def test_classes_need_a_baseline() -> None:
    """With a baseline each class has size, accuracy and tool success; without one there are no classes."""
    long = make("a", True, calls=(("x", OK, "1"),), turn_tokens=(900, 900))
    short = make("a", False, calls=(("x", OK, "1"), ("y", ERROR, "")) * 4, turn_tokens=(90,) * 9)
    none = make("b", True)
    level = BehaviourBaseline(math.log(3.5), math.log(300))
    metrics = step_metrics([long, short, none, make("b", False)], baseline=level)
    assert metrics["behaviour/deliberative_frac"] == 0.25
    assert metrics["behaviour/reactive_frac"] == 0.25
    assert metrics["behaviour/none_frac"] == 0.5
    assert metrics["behaviour/none_accuracy"] == 0.5
    assert metrics["behaviour/deliberative_accuracy"] == 1.0
    assert metrics["behaviour/reactive_tool_success"] == 0.5  # 4 of 8 calls
    assert "behaviour/none_tool_success" not in metrics
    assert not [name for name in step_metrics([long, short]) if name.startswith("behaviour/")]


def test_updates() -> None:
    """Loss and norm are means over updates, kl_step is of the last of several, time adds up."""
    group = [make("a", True, turn_tokens=(20,)), make("a", False, turn_tokens=(10,))]
    group[0].advantage, group[1].advantage = 0.5, -0.7
    dropped = [make("b", True), make("b", True)]
    sampled = SampledStep([group], [*group, *dropped], 2, 1)
    total = LossStats(num_tokens=8, clip_high=2, entropy=4, entropy_tokens=8, k3_old_policy=8)
    last = LossStats(num_tokens=4, k3_old_policy=1)
    times = {"beta": 0.0, "epsilon_high": 0.3, "sample_s": 5.0, "train_s": 3.0}
    metrics = rl_metrics(sampled, UpdateResult(total, last, [0.2, 0.4], [1.0, 3.0], 1e-4, 2), **times)
    assert metrics["loss"] == pytest.approx(0.3)
    assert metrics["grad_norm"] == 2.0
    assert metrics["grad_norm/max"] == 3.0
    assert metrics["clip_ratio/high_mean"] == 0.25
    assert metrics["entropy"] == 0.5
    assert metrics["kl_step"] == 0.25  # 1 / 4, of the last update
    assert metrics["advantage/abs_mean"] == pytest.approx(0.6)
    assert metrics["accuracy"] == 0.75  # all that was rolled out
    assert (metrics["num_groups"], metrics["num_groups_filtered"]) == (1.0, 1.0)
    assert metrics["time/step_s"] == 8.0
    assert metrics["perf/sample_tokens_per_s"] == 10.0  # 20 + 10 + 10 + 10 tokens in 5 s
    single = rl_metrics(sampled, UpdateResult(total, total, [0.2], [1.0], 1e-4, 1), **times)
    assert "kl_step" not in single


def test_a_step_without_updates() -> None:
    """Where nothing could be trained on, loss and norm are left out and the advantage is 0."""
    nothing = UpdateResult(LossStats.zero(), LossStats.zero(), [], [], 0.0, 0)
    rows = [make("a", False), make("a", False)]
    metrics = rl_metrics(SampledStep([], rows, 1, 1), nothing, beta=0.0, epsilon_high=0.3, sample_s=1.0, train_s=0.0)
    assert metrics["advantage/abs_mean"] == 0.0
    assert metrics["num_updates"] == 0.0
    assert not {"loss", "grad_norm", "entropy", "learning_rate"} & set(metrics)
