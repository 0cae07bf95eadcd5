"""How a trajectory uses its tools: counts per trajectory, and three classes of behaviour.

Classes (arXiv 2510.11701 sets deliberative against reactive agents; the two centroids are unsourced):
`none` makes no call; otherwise the nearer of two centroids in

    (log(calls + 0.5), log(generated tokens per turn))

deliberative (2.1 calls, 620 tokens a turn) and reactive (5.2 calls, 380 tokens a turn). Absolute
lengths differ between models, so both centroids are moved by one vector that puts their midpoint on
the median of a baseline. The baseline is fixed once per run and stored: a moving one would hide drift.

Everything is read off messages and events; a call that failed by infrastructure is no call. The cues of
reflection are English.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agentrl_cli.types import Message, ToolEvent, ToolStatus, Trajectory

RECOVERY_CALLS = 3
"""A failed call is recovered if a changed call succeeds within so many calls after it."""

_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
"""Numbers without their sign, which in code can't be told from a minus."""
_MAX_QUOTED = 200
_CALIBRATION = re.compile(
    r"\b(?:we (?:need|want|have) to|the (?:goal|task|question|problem) (?:is|asks)|asked (?:to|for)|my plan|the plan"
    r"|plan:|step 1|first,? (?:i|we|let)|to (?:verify|check|confirm)|let me (?:verify|check|confirm))",
    re.IGNORECASE,
)
_REVISION = re.compile(
    r"\b(?:wait|actually|mistake|incorrect|wrong|instead|try (?:again|another|a different)|let me (?:fix|correct|redo)"
    r"|that (?:failed|did ?n[o']t work))\b",
    re.IGNORECASE,
)


class BehaviourClass(StrEnum):
    """How a trajectory goes about its calls."""

    NONE = "none"
    DELIBERATIVE = "deliberative"
    REACTIVE = "reactive"


_CENTROIDS = {BehaviourClass.DELIBERATIVE: (2.1, 620.0), BehaviourClass.REACTIVE: (5.2, 380.0)}
"""Unsourced: (calls, generated tokens per turn)."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What one trajectory did with its tools."""

    num_calls: int
    """Calls asked for, those that could not be read included."""
    num_failed: int
    """Calls that did not run without error."""
    num_recovered: int
    """Failed calls followed, within `RECOVERY_CALLS` calls, by a changed call that succeeded."""
    num_used: int
    """Calls whose result turns up in a later call or in the final message."""
    num_calibrations: int
    """Turns that restate the goal or check the plan before they call."""
    num_revisions: int
    """Turns with a cue of revision whose calls differ from those before; a cue alone counts nothing."""
    tokens_per_turn: float
    """Generated tokens per turn; 0 without a turn."""


@dataclass(frozen=True, slots=True)
class BehaviourBaseline:
    """The level that classes are measured against."""

    log_calls: float
    """Median of log(calls + 0.5)."""
    log_tokens_per_turn: float
    """Median of log(generated tokens per turn)."""

    @classmethod
    def fit(cls, trajectories: Sequence[Trajectory]) -> BehaviourBaseline | None:
        """Return the medians over trajectories that call tools, or None if none does."""
        points = [point for t in trajectories if (point := _point(analyse(t))) is not None]
        if not points:
            return None
        return cls(statistics.median(x for x, _ in points), statistics.median(y for _, y in points))

    def to_json(self) -> dict[str, float]:
        """Return the baseline for storage."""
        return {"log_calls": self.log_calls, "log_tokens_per_turn": self.log_tokens_per_turn}

    @classmethod
    def from_json(cls, value: Mapping[str, float]) -> BehaviourBaseline:
        """Read a stored baseline."""
        return cls(float(value["log_calls"]), float(value["log_tokens_per_turn"]))


def analyse(trajectory: Trajectory) -> Behaviour:
    """Return the statistics of one trajectory."""
    events = calls_of(trajectory)
    calibrations, revisions = _count_reflections(trajectory.messages)
    return Behaviour(
        num_calls=len(events),
        num_failed=sum(_is_failed(event) for event in events),
        num_recovered=sum(_is_recovered(events, i) for i in range(len(events))),
        num_used=sum(_is_used(trajectory, events, i) for i in range(len(events))),
        num_calibrations=calibrations,
        num_revisions=revisions,
        tokens_per_turn=trajectory.num_generated / trajectory.num_turns if trajectory.num_turns else 0.0,
    )


def calls_of(trajectory: Trajectory) -> list[ToolEvent]:
    """Return the calls that the model answers for: all but those that the sandbox failed."""
    return [event for event in trajectory.events if event.result.status is not ToolStatus.SANDBOX_ERROR]


def classify(behaviour: Behaviour, baseline: BehaviourBaseline) -> BehaviourClass:
    """Return the class of a trajectory, whose token counts must be known; at equal distances it is deliberative."""
    if not behaviour.num_calls:
        return BehaviourClass.NONE
    point = _point(behaviour)
    assert point is not None, "a trajectory with calls but without token counts has no class"
    centroids = {name: (math.log(calls + 0.5), math.log(tokens)) for name, (calls, tokens) in _CENTROIDS.items()}
    shift_x = baseline.log_calls - statistics.fmean(x for x, _ in centroids.values())
    shift_y = baseline.log_tokens_per_turn - statistics.fmean(y for _, y in centroids.values())
    distances = {name: math.hypot(point[0] - x - shift_x, point[1] - y - shift_y) for name, (x, y) in centroids.items()}
    return min(distances, key=distances.__getitem__)


def _point(behaviour: Behaviour) -> tuple[float, float] | None:
    """Return where a trajectory stands, or None if it makes no call or its tokens are unknown."""
    if not behaviour.num_calls or not behaviour.tokens_per_turn:
        return None
    return math.log(behaviour.num_calls + 0.5), math.log(behaviour.tokens_per_turn)


def _is_failed(event: ToolEvent) -> bool:
    return event.result.status is not ToolStatus.OK


def _is_recovered(events: Sequence[ToolEvent], index: int) -> bool:
    failed = events[index]
    if not _is_failed(failed):
        return False
    later = events[index + 1 : index + 1 + RECOVERY_CALLS]
    return any(not _is_failed(event) and _action(event) != _action(failed) for event in later)


def _action(event: ToolEvent) -> tuple[str, str]:
    return event.call.name, event.call.arguments


def _is_used(trajectory: Trajectory, events: Sequence[ToolEvent], index: int) -> bool:
    """Whether a successful result, or a number in it, stands in a later call or in the final message."""
    event = events[index]
    result = event.result.content.strip()
    if _is_failed(event) or not result:
        return False
    later = [_plain_arguments(other) for other in events[index + 1 :] if other.turn > event.turn]
    num_assistant = sum(message["role"] == "assistant" for message in trajectory.messages)
    if event.turn < num_assistant - 1:
        later.append(trajectory.final_text)
    text = "\n".join(later)
    numbers = _numbers(result)
    return bool(numbers & _numbers(text)) if numbers else len(result) <= _MAX_QUOTED and result in text


def _plain_arguments(event: ToolEvent) -> str:
    """Return the values of a call's arguments as text, unescaped; what is not JSON stays as it is."""
    try:
        arguments = json.loads(event.call.arguments)
    except ValueError:
        return event.call.arguments
    return "\n".join(map(str, arguments.values())) if isinstance(arguments, dict) else str(arguments)


def _numbers(text: str) -> set[float]:
    return {float(number.replace(",", "")) for number in _NUMBER.findall(text)}


def _count_reflections(messages: Sequence[Message]) -> tuple[int, int]:
    """Return (calibrations, revisions) over the assistant's turns."""
    calibrations = revisions = 0
    before: list[str] = []
    is_cued = False
    for message in messages:
        if message["role"] != "assistant":
            continue
        text, calls = message.get("content") or "", _calls_text(message)
        is_cued = is_cued or bool(_REVISION.search(text))
        if not calls:
            continue
        calibrations += bool(_CALIBRATION.search(text))
        revisions += bool(is_cued and before and calls != before)
        before, is_cued = calls, False
    return calibrations, revisions


def _calls_text(message: Message) -> list[str]:
    calls = message.get("tool_calls") or []
    return [json.dumps(call["function"], sort_keys=True, ensure_ascii=False) for call in calls]
