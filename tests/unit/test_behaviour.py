"""Statistics of one trajectory's tool use, and its class."""

from __future__ import annotations

import json
import math

import pytest

from agentrl_cli.agent.behaviour import Behaviour, BehaviourBaseline, BehaviourClass, analyse, classify
from agentrl_cli.types import Message, Problem, ToolCall, ToolEvent, ToolResult, ToolStatus, Trajectory

OK, ERROR, INVALID, SANDBOX = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.INVALID, ToolStatus.SANDBOX_ERROR


def played(
    *turns: tuple[str, list[tuple[str, ToolStatus, str]]], final: str | None = None, tokens: int = 10
) -> Trajectory:
    """Build a trajectory from (text, [(code, status, result)]) turns and a final message."""
    messages: list[Message] = [{"role": "user", "content": "How many?"}]
    events = []
    for number, (text, calls) in enumerate(turns):
        asked = []
        for code, status, result in calls:
            call = ToolCall(f"call_{number}_{len(asked)}", "python", json.dumps({"code": code}))
            asked.append({"id": call.id, "function": {"name": call.name, "arguments": call.arguments}})
            events.append(ToolEvent(number, call, ToolResult(status, result)))
        messages.append({"role": "assistant", "content": text, "tool_calls": asked})
        messages += [{"role": "tool", "content": result} for _, _, result in calls]
    if final is not None:
        messages.append({"role": "assistant", "content": final})
    trajectory = Trajectory("t", Problem("p", "How many?", "1"), "g", 0, messages, [])
    trajectory.events = events
    trajectory.turn_tokens = [tokens] * (len(turns) + (final is not None))
    return trajectory


def test_no_call() -> None:
    """A trajectory without calls has zeros, and its tokens per turn."""
    assert analyse(played(final="42", tokens=30)) == Behaviour(0, 0, 0, 0, 0, 0, 30.0)


def test_calls_and_failures_are_counted_but_not_those_of_the_sandbox() -> None:
    """Unreadable calls are failed calls; a call that the sandbox lost is none."""
    found = analyse(
        played(("", [("a", OK, ""), ("b", ERROR, "")]), ("", [("c", INVALID, "")]), ("", [("d", SANDBOX, "")]))
    )
    assert (found.num_calls, found.num_failed) == (3, 2)


@pytest.mark.parametrize(
    ("calls", "recovered"),
    [
        ([("a", ERROR), ("b", OK)], 1),
        ([("a", ERROR), ("a", OK)], 0),  # the same call again is luck
        ([("a", ERROR), ("b", ERROR), ("c", OK)], 2),  # both are within three calls of c
        ([("a", ERROR), ("b", ERROR), ("b", ERROR), ("b", ERROR), ("c", OK)], 3),  # a's success comes fourth
        ([("a", ERROR)], 0),
        ([("a", OK), ("b", OK)], 0),
    ],
)
def test_recoveries(calls: list[tuple[str, ToolStatus]], recovered: int) -> None:
    """A failed call is recovered by a changed call that succeeds within three calls."""
    found = analyse(played(*[("", [(code, status, "x")]) for code, status in calls]))
    assert found.num_recovered == recovered


@pytest.mark.parametrize(
    ("result", "next_code", "final", "used"),
    [
        ("12", "print(1)", "So it is 12.", 1),
        ("12", "x = 12\nprint(x)", "No idea", 1),  # the JSON text of the call holds a backslash before that 12
        ("12", "print(1)", "So it is 120.", 0),
        ("1,234.50", "print(1)", "It costs 1234.5 dollars", 1),
        ("[3, 17]", "print(17 - 4)", "?", 1),
        ("prime", "print(1)", "The number is prime.", 1),
        ("prime", "print(1)", "It is composite.", 0),
        ("", "print(1)", "12", 0),
    ],
)
def test_used_results(result: str, next_code: str, final: str, used: int) -> None:
    """A result counts as used if a number of it, or a text without numbers, stands in a later call or the answer."""
    found = analyse(played(("", [("first", OK, result)]), ("", [(next_code, ERROR, "")]), final=final))
    assert found.num_used == used


def test_text_before_the_result_does_not_use_it() -> None:
    """What the model wrote in the calling turn, or called beside it, can't have used its result."""
    assert analyse(played(("I guess 12", [("a", OK, "12"), ("print(12)", ERROR, "")]))).num_used == 0


def test_a_failed_result_is_not_used() -> None:
    """Numbers in an error message are no result."""
    assert analyse(played(("", [("a", ERROR, "line 12")]), final="12")).num_used == 0


def test_calibration_counts_before_a_call_only() -> None:
    """Restating the goal counts in a turn that calls, and not in one that only talks."""
    assert analyse(played(("We need to find x. Plan: solve.", [("a", OK, "1")]), final="1")).num_calibrations == 1
    assert analyse(played(("", [("a", OK, "1")]), final="The goal is reached")).num_calibrations == 0


def test_a_revision_needs_a_changed_action() -> None:
    """A cue counts only if the next calls differ from those before; a cue alone counts nothing."""
    first = ("", [("a", OK, "1")])
    assert analyse(played(first, ("Wait, that is wrong.", [("b", OK, "2")]), final="2")).num_revisions == 1
    assert analyse(played(first, ("Wait, that is wrong.", [("a", OK, "1")]), final="1")).num_revisions == 0
    assert analyse(played(first, ("More.", [("b", OK, "2")]), final="2")).num_revisions == 0
    assert analyse(played(first, final="Wait, actually 2")).num_revisions == 0
    assert analyse(played(("Wait.", [("b", OK, "2")]), final="2")).num_revisions == 0  # nothing before it


# midpoint of the centroids: ((log 2.6 + log 5.7) / 2, (log 620 + log 380) / 2)
AT_MIDPOINT = BehaviourBaseline(math.log(2.6 * 5.7) / 2, math.log(620 * 380) / 2)


def behaviour(calls: int, tokens: float) -> Behaviour:
    """Return a behaviour with these calls and tokens per turn."""
    return Behaviour(calls, 0, 0, 0, 0, 0, tokens)


@pytest.mark.parametrize(
    ("calls", "tokens", "expected"),
    [
        (0, 620.0, BehaviourClass.NONE),
        (2, 620.0, BehaviourClass.DELIBERATIVE),
        (5, 380.0, BehaviourClass.REACTIVE),
        # in units of the axes from the midpoint (1.348, 6.184): 3 calls -0.095, 620 tokens +0.245 -> deliberative
        (3, 620.0, BehaviourClass.DELIBERATIVE),
        (4, 380.0, BehaviourClass.REACTIVE),
    ],
)
def test_classes_at_the_published_level(calls: int, tokens: float, expected: BehaviourClass) -> None:
    """With the baseline on the centroids' midpoint, the nearer centroid decides."""
    assert classify(behaviour(calls, tokens), AT_MIDPOINT) is expected


def test_the_baseline_moves_both_centroids() -> None:
    """A model that writes a tenth has its classes at a tenth: only what differs from its baseline counts."""
    small = BehaviourBaseline(AT_MIDPOINT.log_calls, AT_MIDPOINT.log_tokens_per_turn - math.log(10))
    assert classify(behaviour(3, 62.0), small) is BehaviourClass.DELIBERATIVE
    assert classify(behaviour(3, 38.0), small) is BehaviourClass.REACTIVE
    assert classify(behaviour(3, 62.0), AT_MIDPOINT) is BehaviourClass.REACTIVE


def test_baseline_is_the_median_of_those_that_call() -> None:
    """Trajectories without calls are left out; stored and read back it is the same."""
    one = played(("", [("a", OK, "1")]), tokens=100)
    three = played(("", [("a", OK, "1"), ("b", OK, "2"), ("c", OK, "3")]), tokens=400)
    baseline = BehaviourBaseline.fit([one, three, played(final="1", tokens=9)])
    assert baseline is not None
    # calls 1 and 3: (log 1.5 + log 3.5) / 2; tokens 100 and 400: (log 100 + log 400) / 2 = log 200
    assert baseline.log_calls == pytest.approx(math.log(1.5 * 3.5) / 2)
    assert baseline.log_tokens_per_turn == pytest.approx(math.log(200))
    assert BehaviourBaseline.from_json(json.loads(json.dumps(baseline.to_json()))) == baseline
    assert BehaviourBaseline.fit([played(final="1")]) is None
