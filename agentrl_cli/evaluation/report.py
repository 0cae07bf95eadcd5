"""Sums up the scored trajectories of an evaluation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from agentrl_cli.errors import DataError, TrainingError
from agentrl_cli.evaluation.scores import avg_at_k, maj_at_k, pass_all_k, pass_at_k, standard_error
from agentrl_cli.rewards.plain import clean, read_number
from agentrl_cli.rewards.user import infra_hint
from agentrl_cli.rewards.verify import vote_keys
from agentrl_cli.types import ToolStatus, Trajectory, Verdict, VerdictStatus

_NUMBER = re.compile(r"-?\d+/\d+|(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w)")
_VOTING = (VerdictStatus.OK, VerdictStatus.UNPARSED, VerdictStatus.TIMEOUT)
_RIGHT = "right"
_KEY_TIMEOUT_S = 2.0


def summarise(samples: Sequence[Sequence[Trajectory]], *, k_list: Sequence[int] = ()) -> dict[str, Any]:
    """Return the scores and behaviour of an evaluation.

    Args:
        samples: Scored trajectories, one inner sequence of equal length per problem.
        k_list: Further k to give pass@k, pass^k and maj@k for, under `by_k`; all but `by_k` is at k = all samples.

    Returns:
        `n` problems, `k` samples of each, `avg_at_k`, its `stderr` clustered by problem (None for one problem),
        `pass_at_k`, `pass_all_k`, `maj_at_k`, shares of samples without answer and truncated, counts by status
        and ending, executed `tool_calls` a trajectory, `failed_call_frac` of all calls, `tool_success` of the
        executed ones, `answers_on_tool_frac` (of the right answers, those whose value a successful call had
        printed) and mean `generated_tokens`. Shares of nothing are None.

    Raises:
        DataError: there are no samples, problems have unequal numbers of them, or a k exceeds that number.
        TrainingError: samples were lost to failures of the infrastructure.
    """
    num_samples = _require_complete(samples)
    everything = [trajectory for group in samples for trajectory in group]
    correct = [[_verdict(t).correct for t in group] for group in samples]
    means = [avg_at_k(row) for row in correct]
    scores = {k: _scores_at(samples, correct, k=k) for k in sorted({num_samples, *k_list})}
    summary = {
        "n": len(samples),
        "k": num_samples,
        "avg_at_k": fmean(means),
        "stderr": standard_error(means),
        **scores[num_samples],
        "no_answer_frac": fmean(_verdict(t).status is VerdictStatus.NO_ANSWER for t in everything),
        "truncated_frac": fmean(t.ending.is_truncated for t in everything),
        "status": dict(sorted(Counter(_verdict(t).status.value for t in everything).items())),
        "endings": dict(sorted(Counter(t.ending.value for t in everything).items())),
        **_behaviour(everything),
    }
    if k_list:
        summary["by_k"] = {str(k): scores[k] for k in k_list}
    return summary


def is_on_tool(trajectory: Trajectory) -> bool:
    """Whether the value of the trajectory's answer stands in the output of one of its successful calls."""
    extracted = _verdict(trajectory).extracted
    outputs = [event.result.content for event in trajectory.events if event.result.status is ToolStatus.OK]
    number = read_number(extracted)
    if number is None:
        wanted = "".join(clean(extracted).split())
        return bool(wanted) and any(wanted in "".join(clean(output).split()) for output in outputs)
    printed = (read_number(found) for output in outputs for found in _NUMBER.findall(output))
    return any(value is not None and value.value == number.value for value in printed)


def _require_complete(samples: Sequence[Sequence[Trajectory]]) -> int:
    """Return the number of samples of each problem."""
    sizes = {len(group) for group in samples}
    if sizes in (set(), {0}):
        raise DataError("there are no samples to sum up")
    if len(sizes) > 1:
        smallest = min(samples, key=len)
        name = f" ({smallest[0].problem.id!r})" if smallest else ""
        raise DataError(
            f"problems have between {min(sizes)}{name} and {max(sizes)} samples, all need the same number",
            hint="samples are missing: evaluate again",
        )
    lost = [t for group in samples for t in group if not t.ending.is_valid]
    if lost:
        raise TrainingError(
            f"{len(lost)} of {sum(map(len, samples))} samples were lost, so there is no score; the first, "
            f"{lost[0].id!r}: {lost[0].error or lost[0].ending.value}",
            hint=infra_hint(lost[0].error),
        )
    return sizes.pop()


def _verdict(trajectory: Trajectory) -> Verdict:
    assert trajectory.verdict is not None, f"{trajectory.id} was not scored"
    return trajectory.verdict


def _scores_at(
    samples: Sequence[Sequence[Trajectory]], correct: Sequence[Sequence[bool]], *, k: int
) -> dict[str, float]:
    counts = [(len(row), sum(row)) for row in correct]
    return {
        "pass_at_k": fmean(pass_at_k(n, c, k=k) for n, c in counts),
        "pass_all_k": fmean(pass_all_k(n, c, k=k) for n, c in counts),
        "maj_at_k": fmean(maj_at_k(_votes(group), _RIGHT, k=k) for group in samples),
    }


def _votes(group: Sequence[Trajectory]) -> list[str | None]:
    """Return the class of each answer: all right ones are one, wrong ones by value; None does not vote."""
    verdicts = [_verdict(t) for t in group]
    wrong = [v.extracted for v in verdicts if not v.correct and v.status in _VOTING]
    keys = vote_keys(wrong, group[0].problem.kind, timeout_s=_KEY_TIMEOUT_S) if len(set(wrong)) > 1 else {}
    return [
        _RIGHT if v.correct else f"wrong:{keys.get(v.extracted, v.extracted)}" if v.status in _VOTING else None
        for v in verdicts
    ]


def _behaviour(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    statuses = [event.result.status for t in trajectories for event in t.events]
    calls = [status for status in statuses if status is not ToolStatus.SANDBOX_ERROR]
    executed = [status for status in calls if status is not ToolStatus.INVALID]
    right = [t for t in trajectories if _verdict(t).correct]
    return {
        "tool_calls": fmean(t.num_calls for t in trajectories),
        "failed_call_frac": _share(status is not ToolStatus.OK for status in calls),
        "tool_success": _share(status is ToolStatus.OK for status in executed),
        "answers_on_tool_frac": _share(is_on_tool(t) for t in right),
        "generated_tokens": fmean(t.num_generated for t in trajectories),
    }


def _share(values: Iterable[bool]) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None
