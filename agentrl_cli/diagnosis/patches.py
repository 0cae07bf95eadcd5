"""Settings that remedy a symptom, as `key=value` texts for --set.

A patch builds on the run's own settings and must load together with them; where they are not known, it
falls back on what was logged, or leaves the remedy in words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentrl_cli.diagnosis.report import Severity
from agentrl_cli.diagnosis.series import MetricLog
from agentrl_cli.diagnosis.windows import BASELINE_STEPS, NoDataError, baseline

_BETA_START = 0.01
"""Unsourced: the low end of the usual 0.01-0.05."""
_BETA_MIN = 0.001


def none(log: MetricLog, severity: Severity) -> Sequence[str]:
    """Change nothing: the remedy is no setting."""
    return []


def raise_entropy(log: MetricLog, severity: Severity) -> Sequence[str]:
    """Widen the upper clip range by one step and switch the entropy controller on."""
    if severity is Severity.INFO:
        return []
    return [*_epsilon(log, 0.02, floor=0.28, ceiling=0.36), *_entropy_control(log)]


def lower_entropy(log: MetricLog, severity: Severity) -> Sequence[str]:
    """Narrow the upper clip range by two steps and raise beta."""
    beta = _known(log, "grpo.beta", "beta")
    patch = _epsilon(log, -0.04, floor=0.2, ceiling=0.28)
    if beta is None:
        return patch
    limit = log.setting("grpo.entropy_control.beta_max") if log.setting("grpo.entropy_control.enabled") else 0.05
    raised = min(limit, 3 * beta) if beta else _BETA_START
    return [*patch, f"grpo.beta={raised:g}", *_no_monitor(log)] if raised > beta else patch


def change_difficulty(log: MetricLog, severity: Severity) -> Sequence[str]:
    """Keep mixed groups only, while some problems are too hard."""
    if severity is Severity.INFO or log.setting("grpo.filter_groups.enabled"):
        return []
    return ["grpo.filter_groups.enabled=true"]


def calm_numerics(log: MetricLog, severity: Severity) -> Sequence[str]:
    """Go to full precision, or else to a lower learning rate."""
    if log.setting("model.dtype") == "bfloat16":
        return ["model.dtype=float32"]
    rate = _known(log, "optim.learning_rate", "learning_rate")
    return [f"optim.learning_rate={rate / 10:g}"] if rate else []


def raise_token_limit(log: MetricLog, severity: Severity) -> Sequence[str]:
    """Double the token limit."""
    limit = log.setting("agent.max_completion_length")
    return [f"agent.max_completion_length={2 * limit}"] if limit else []


def encourage_calls(log: MetricLog, severity: Severity) -> Sequence[str]:
    """Cap turns without a call at twice the tokens of a baseline turn; pay calls if nothing does."""
    patch = ["rewards.tool_reward=release"] if log.setting("rewards.tool_reward") == "none" else []
    current = log.setting("agent.max_tokens_without_call")
    if current:
        return [*patch, f"agent.max_tokens_without_call={max(1, current // 2)}"]
    try:
        per_turn = baseline(log, "completions/mean_length") / baseline(log, "num_turns/mean")
    except NoDataError:
        return patch
    return [*patch, f"agent.max_tokens_without_call={max(1, math.ceil(2 * per_turn))}"]


def _known(log: MetricLog, setting: str, metric: str) -> float | None:
    """Return what the run is set to, or else what it logged during its baseline, or None."""
    value = log.setting(setting)
    if value is not None:
        return float(value)
    logged = [value for step, value in log.series.get(metric, {}).items() if step in BASELINE_STEPS]
    return logged[-1] if logged else None


def _epsilon(log: MetricLog, change: float, *, floor: float, ceiling: float) -> list[str]:
    """Move epsilon_high by a step, to `floor` at least or `ceiling` at most; GSPO's tiny ranges by a quarter."""
    current = _known(log, "grpo.epsilon_high", "epsilon_high")
    if current is None:
        return []
    if log.setting("grpo.loss_agg_mode") == "sequence":
        moved = current * (1.25 if change > 0 else 0.75)
    else:
        moved = min(max(current + change, floor), max(current, ceiling) if change > 0 else ceiling)
    delta = log.setting("grpo.delta")
    if moved == current or (delta is not None and delta <= 1 + moved):
        return []
    schedule = log.setting("grpo.epsilon_high_schedule.kind")
    fixed = []
    if schedule not in (None, "constant"):
        fixed = [f"grpo.epsilon_high_schedule.{item}" for item in ("kind=constant", "start=none", "end=none")]
    return [f"grpo.epsilon_high={moved:.4g}", *fixed]


def _entropy_control(log: MetricLog) -> list[str]:
    """Switch the controller on with a reference and a lower bound of beta; nothing if it is on, or beta unknown."""
    beta = _known(log, "grpo.beta", "beta")
    if beta is None or log.setting("grpo.entropy_control.enabled"):
        return []
    start = beta or _BETA_START
    patch = ["grpo.entropy_control.enabled=true", f"grpo.entropy_control.beta_min={min(_BETA_MIN, start):g}"]
    if start != beta:
        patch.append(f"grpo.beta={start:g}")
    top = log.setting("grpo.entropy_control.beta_max")
    if top is not None and top < start:
        patch.append(f"grpo.entropy_control.beta_max={start:g}")
    return [*patch, *_no_monitor(log)]


def _no_monitor(log: MetricLog) -> list[str]:
    """Switch KL monitoring off, which has no effect once beta > 0 and is refused beside it."""
    return ["grpo.kl_monitor_every=0"] if log.setting("grpo.kl_monitor_every") else []
