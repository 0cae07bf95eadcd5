"""The metrics of one RL step, by name.

Shares lie in [0, 1]. A metric that is not defined (no call, no group, no update) is left out, never
set to 0. "Valid" trajectories are all but infrastructure failures and cancellations; where nothing else
is said, metrics are over the valid ones. A "call" is one that the model asked for, readable or not.
With `filter_groups` everything that was rolled out counts, kept for training or not.

    reward/mean, reward/std          total reward; the deviation (ddof 1) is over all trajectories
    reward/<part>                    mean of each part before its weight; reward/outcome is unshaped
    accuracy                         share of right answers
    frac_reward_zero_std             share of groups whose rewards are all equal
    by_group/frac_all_good, frac_all_bad, frac_mixed
                                     share of groups that are all right, all wrong, neither
    by_group/pass_minus_avg          pass@k - avg@k with k the group's size: room to exploit what is explored
    by_group/distinct_answers        different answers of a group (no answer is none), mean over groups
    by_group/distinct_call_patterns  different sequences of calls of a group, numbers masked, mean over groups
    completions/mean_length, max_length
                                     generated tokens (tool output not counted)
    completions/mean_total_length    tokens after the prompt, tool output included
    completions/clipped_ratio        share that ended by max_tokens
    truncated_frac                   share that ended by max_tokens, max_turns or tool_limit
    ending/<name>                    share of each ending, over all trajectories
    verdict/<status>                 share of each status of verification
    num_turns/mean                   calls of the model per trajectory
    tools/call_frequency             calls per trajectory (as TRL)
    tools/executed_frequency         executed calls per trajectory
    tools/failure_frequency          share of calls that did not run without error
    tools/failed                     such calls, a count
    tools/recovery_rate              share of them recovered by a changed call within 3 calls
    tools/used_frac                  share of calls whose result is used later
    tools/top_error_frac             share of them with the most frequent error (numbers masked)
    reflection/calibration, reflection/revision
                                     reflections per trajectory (`agentrl_cli.agent.behaviour`)
    behaviour/<class>_frac, _accuracy, _tool_success
                                     size, share of right answers, share of calls without error of each class

and, of the updates (`agentrl_cli.grpo.stats` has the metrics of the loss):

    loss, grad_norm                  mean over the step's updates; the norm is from before clipping
    grad_norm/max                    the largest
    learning_rate, beta, epsilon_high, num_updates
    advantage/abs_mean               mean |advantage| over the trajectories trained on; 0 without any
    num_groups, num_groups_filtered  groups trained on, and rolled out but left out
    time/sample_s, time/train_s, time/step_s     seconds
    perf/sample_tokens_per_s         generated tokens per second of sampling
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence

from agentrl_cli.agent.behaviour import Behaviour, BehaviourBaseline, BehaviourClass, analyse, calls_of, classify
from agentrl_cli.grpo.advantage import is_mixed
from agentrl_cli.grpo.stats import finalise_stats
from agentrl_cli.training.sampling import SampledStep
from agentrl_cli.training.update import UpdateResult
from agentrl_cli.types import Ending, ToolStatus, Trajectory, VerdictStatus

_DIGITS = re.compile(r"\d+")
_SPACE = re.compile(r"\s+")
_ERROR_LINE = re.compile(r"^\s*(\w*(?:Error|Exception|Interrupt|Exit|Warning)\b.*)$", re.MULTILINE)


def rl_metrics(
    sampled: SampledStep,
    result: UpdateResult,
    *,
    beta: float,
    epsilon_high: float,
    sample_s: float,
    train_s: float,
    baseline: BehaviourBaseline | None = None,
) -> dict[str, float]:
    """Return all metrics of a step.

    Args:
        sampled: What was rolled out, scored, with advantages.
        result: What the updates came to.
        beta: Weight of the KL penalty that the step trained with.
        epsilon_high: Upper clip range that the step trained with.
        sample_s: Seconds of sampling and scoring.
        train_s: Seconds of the updates.
        baseline: Of behaviour; without one, classes are left out.
    """
    trained_on = [t for group in sampled.groups for t in group]
    last_update = result.last_stats if result.num_updates > 1 else None
    generated = sum(t.num_generated for t in sampled.trajectories)
    metrics = {
        **step_metrics(sampled.trajectories, baseline=baseline),
        **finalise_stats(result.stats, last_update=last_update),
        "advantage/abs_mean": statistics.fmean(abs(t.advantage) for t in trained_on) if trained_on else 0.0,
        "num_groups": float(len(sampled.groups)),
        "num_groups_filtered": float(sampled.num_filtered),
        "num_updates": float(result.num_updates),
        "beta": beta,
        "epsilon_high": epsilon_high,
        "time/sample_s": sample_s,
        "time/train_s": train_s,
        "time/step_s": sample_s + train_s,
    }
    if sample_s > 0:
        metrics["perf/sample_tokens_per_s"] = generated / sample_s
    if result.num_updates:
        metrics["loss"] = statistics.fmean(result.losses)
        metrics["grad_norm"] = statistics.fmean(result.grad_norms)
        metrics["grad_norm/max"] = max(result.grad_norms)
        metrics["learning_rate"] = result.learning_rate
    return metrics


def step_metrics(trajectories: Sequence[Trajectory], *, baseline: BehaviourBaseline | None = None) -> dict[str, float]:
    """Return the metrics that scored trajectories define.

    Args:
        trajectories: All of a step, in any order; valid ones have a verdict.
        baseline: Of behaviour; without one, classes are left out.
    """
    valid = [t for t in trajectories if t.ending.is_valid]
    metrics = _shares("ending", Ending, [t.ending for t in trajectories])
    if not valid:
        return metrics
    behaviours = [analyse(t) for t in valid]
    return {
        **metrics,
        **_reward_metrics(valid),
        **_shares("verdict", VerdictStatus, [_verdict_status(t) for t in valid]),
        **_group_metrics(valid),
        **_length_metrics(valid),
        **_tool_metrics(valid, behaviours),
        **(_class_metrics(valid, behaviours, baseline) if baseline is not None else {}),
    }


def _shares(prefix: str, kinds: type[Ending] | type[VerdictStatus], values: Sequence[str]) -> dict[str, float]:
    """Return the share of each kind, zeros included."""
    if not values:
        return {}
    return {f"{prefix}/{kind.value}": values.count(kind) / len(values) for kind in kinds}


def _is_correct(trajectory: Trajectory) -> bool:
    assert trajectory.verdict is not None, f"{trajectory.id} has no verdict"
    return trajectory.verdict.correct


def _verdict_status(trajectory: Trajectory) -> VerdictStatus:
    assert trajectory.verdict is not None, f"{trajectory.id} has no verdict"
    return trajectory.verdict.status


def _reward_metrics(valid: Sequence[Trajectory]) -> dict[str, float]:
    rewards = [t.reward for t in valid]
    metrics = {"accuracy": statistics.fmean(map(_is_correct, valid)), "reward/mean": statistics.fmean(rewards)}
    if len(rewards) > 1:
        metrics["reward/std"] = statistics.stdev(rewards)
    for part in sorted({name for t in valid for name in t.reward_parts}):
        metrics[f"reward/{part}"] = statistics.fmean(t.reward_parts[part] for t in valid)
    return metrics


def _group_metrics(valid: Sequence[Trajectory]) -> dict[str, float]:
    """Return what is counted by group; groups with fewer than two valid members have no say."""
    by_id: dict[str, list[Trajectory]] = {}
    for trajectory in valid:
        by_id.setdefault(trajectory.group_id, []).append(trajectory)
    groups = [group for group in by_id.values() if len(group) >= 2]
    if not groups:
        return {}
    correct = [[_is_correct(t) for t in group] for group in groups]
    return {
        "frac_reward_zero_std": statistics.fmean(len({t.reward for t in group}) == 1 for group in groups),
        "by_group/frac_all_good": statistics.fmean(all(row) for row in correct),
        "by_group/frac_all_bad": statistics.fmean(not any(row) for row in correct),
        "by_group/frac_mixed": statistics.fmean(is_mixed(row) for row in correct),
        "by_group/pass_minus_avg": statistics.fmean(any(row) - statistics.fmean(row) for row in correct),
        "by_group/distinct_answers": statistics.fmean(len(_answers(group)) for group in groups),
        "by_group/distinct_call_patterns": statistics.fmean(len(set(map(_pattern, group))) for group in groups),
    }


def _answers(group: Sequence[Trajectory]) -> set[str]:
    return {t.verdict.extracted.strip() for t in group if t.verdict is not None and t.verdict.extracted.strip()}


def _pattern(trajectory: Trajectory) -> tuple[tuple[str, str], ...]:
    """Return a trajectory's calls with numbers and white space masked."""
    return tuple((event.call.name, _masked(event.call.arguments)) for event in calls_of(trajectory))


def _masked(text: str) -> str:
    return _SPACE.sub(" ", _DIGITS.sub("0", text)).strip()


def _length_metrics(valid: Sequence[Trajectory]) -> dict[str, float]:
    generated = [t.num_generated for t in valid]
    return {
        "completions/mean_length": statistics.fmean(generated),
        "completions/max_length": float(max(generated)),
        "completions/mean_total_length": statistics.fmean(len(t.ids) for t in valid),
        "completions/clipped_ratio": statistics.fmean(t.ending is Ending.MAX_TOKENS for t in valid),
        "truncated_frac": statistics.fmean(t.ending.is_truncated for t in valid),
        "num_turns/mean": statistics.fmean(t.num_turns for t in valid),
    }


def _tool_metrics(valid: Sequence[Trajectory], behaviours: Sequence[Behaviour]) -> dict[str, float]:
    num_calls = sum(b.num_calls for b in behaviours)
    num_failed = sum(b.num_failed for b in behaviours)
    metrics = {
        "tools/call_frequency": num_calls / len(valid),
        "tools/executed_frequency": statistics.fmean(t.num_calls for t in valid),
        "tools/failed": float(num_failed),
        "reflection/calibration": statistics.fmean(b.num_calibrations for b in behaviours),
        "reflection/revision": statistics.fmean(b.num_revisions for b in behaviours),
    }
    if num_calls:
        metrics["tools/failure_frequency"] = num_failed / num_calls
        metrics["tools/used_frac"] = sum(b.num_used for b in behaviours) / num_calls
    if num_failed:
        metrics["tools/recovery_rate"] = sum(b.num_recovered for b in behaviours) / num_failed
        errors = Counter(error for t in valid for error in _errors(t))
        metrics["tools/top_error_frac"] = max(errors.values()) / num_failed
    return metrics


def _errors(trajectory: Trajectory) -> list[str]:
    """Return one line for each failed call: the exception with its numbers masked, or the status."""
    lines = []
    for event in calls_of(trajectory):
        if event.result.status is not ToolStatus.OK:
            found = _ERROR_LINE.findall(event.result.content)
            lines.append(_masked(found[-1]) if found else event.result.status.value)
    return lines


def _class_metrics(
    valid: Sequence[Trajectory], behaviours: Sequence[Behaviour], baseline: BehaviourBaseline
) -> dict[str, float]:
    classes = [classify(b, baseline) for b in behaviours]
    metrics: dict[str, float] = {}
    for kind in BehaviourClass:
        members = [i for i, found in enumerate(classes) if found is kind]
        metrics[f"behaviour/{kind.value}_frac"] = len(members) / len(valid)
        if not members:
            continue
        metrics[f"behaviour/{kind.value}_accuracy"] = statistics.fmean(_is_correct(valid[i]) for i in members)
        num_calls = sum(behaviours[i].num_calls for i in members)
        if num_calls:
            num_failed = sum(behaviours[i].num_failed for i in members)
            metrics[f"behaviour/{kind.value}_tool_success"] = 1.0 - num_failed / num_calls
    return metrics
