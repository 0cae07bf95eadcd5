"""What makes a trajectory unfit to learn from: pure functions of one sample, each returning a reason or None.

| reason | means |
|---|---|
| `infra_error`, `cancelled`, `max_tokens`, `max_turns`, `tool_limit` | the record's ending |
| `orphan_call` | calls and tool results of a turn do not match |
| `bad_arguments` | the arguments of a call are no JSON object, or it names no tool |
| `no_final_message` | the assistant does not have the last word |
| `empty_final_message` | it has, and says nothing |
| `no_answer` | no box in the final message (no fenced block where code is asked for) |
| `wrong`, `unverified` | the answer is wrong, or could not be verified |
| `too_few_calls`, `too_many_failed_calls` | by the settings |
| `ungrounded` | the last call failed, and an answer was given nevertheless |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from agentrl_cli.config.schema import FilterConfig
from agentrl_cli.filtering.samples import Sample, call_results
from agentrl_cli.rewards.answers import has_answer
from agentrl_cli.types import Ending

Detector = Callable[[Sample], str | None]


def find_reason(sample: Sample, detectors: Sequence[Detector]) -> str | None:
    """Return the first reason against a sample, or None if it is fit."""
    return next((reason for detector in detectors if (reason := detector(sample))), None)


def build_detectors(config: FilterConfig) -> list[Detector]:
    """Return the detectors that the settings ask for, those that doubt the row itself first."""
    detectors: list[Detector] = [broken_ending, orphan_call, bad_arguments, unfinished]
    if config.require_correct:
        detectors.append(wrong)
    detectors.append(lambda sample: too_few_calls(sample, at_least=config.min_calls))
    detectors.append(lambda sample: too_many_failed_calls(sample, at_most=config.max_failed_calls))
    if config.require_recovery:
        detectors.append(ungrounded)
    return detectors


def broken_ending(sample: Sample) -> str | None:
    """The record says that it was cut short."""
    is_whole = sample.ending in (None, Ending.ANSWERED, Ending.NO_ANSWER)
    return None if is_whole else str(sample.ending)


def orphan_call(sample: Sample) -> str | None:
    """A call has no result, or a result has no call."""
    pairs = call_results(sample.messages)
    num_results = sum(message["role"] == "tool" for message in sample.messages)
    is_complete = all(result is not None for _, result in pairs) and len(pairs) == num_results
    return None if is_complete else "orphan_call"


def bad_arguments(sample: Sample) -> str | None:
    """A call could not be read: training on it teaches to write such calls."""
    return None if all(call.name and _is_object(call.arguments) for call in sample.calls) else "bad_arguments"


def unfinished(sample: Sample) -> str | None:
    """The trajectory does not end with an answer."""
    if sample.messages[-1]["role"] != "assistant":
        return "no_final_message"
    if not sample.final_text.strip():
        return "empty_final_message"
    return None if has_answer(sample.final_text, sample.problem.kind) else "no_answer"


def wrong(sample: Sample) -> str | None:
    """The answer is not right."""
    if sample.is_correct is None:
        return "unverified"
    return None if sample.is_correct else "wrong"


def too_few_calls(sample: Sample, *, at_least: int) -> str | None:
    """Too few calls were executed."""
    return "too_few_calls" if sum(call.is_executed for call in sample.calls) < at_least else None


def too_many_failed_calls(sample: Sample, *, at_most: int) -> str | None:
    """Too many calls failed."""
    return "too_many_failed_calls" if sum(call.is_failed for call in sample.calls) > at_most else None


def ungrounded(sample: Sample) -> str | None:
    """The answer follows a failed call."""
    return "ungrounded" if sample.calls and sample.calls[-1].is_failed else None


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False
