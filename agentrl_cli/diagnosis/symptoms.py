"""What is looked for in a run: one pure test over its metrics for each symptom.

A threshold without a source beside it is unsourced: it is ours, and set so that healthy runs stay silent.
A test raises `NoDataError` where it can't be judged.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentrl_cli.diagnosis.report import Severity
from agentrl_cli.diagnosis.series import MetricLog
from agentrl_cli.diagnosis.windows import (
    NUM_BROKEN,
    WINDOW_STEPS,
    Broken,
    NoDataError,
    Window,
    baseline,
    count_broken,
    latest_accuracy,
    rise,
    success_rise,
    windows,
    windows_of,
)

CEILING = 0.9
"""Accuracy from which falling entropy and missing signal mean that the problems are solved."""
HIGH_EVAL = 0.8
FLAT_RISE = 0.05
"""A measure of success that rose by less over the windows is flat."""
_EVAL_SCORE = re.compile(r"^eval/.*(?:avg@k|accuracy)$")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a rule found; without a severity all is well."""

    text: str
    severity: Severity | None = None
    values: Mapping[str, float] = field(default_factory=dict)
    is_certain: bool = False
    """All that was judged shows it."""
    cause: str = ""
    """A cause that the evidence narrows down, instead of the rule's own."""
    remedy: str = ""
    """Likewise."""


SOLVED = {"cause": "the problems are solved", "remedy": "raise the difficulty"}


def entropy_collapse(log: MetricLog) -> Answer:
    """Below half of the baseline, or a fifth, while problems are left to solve."""
    level = baseline(log, "entropy")
    found = windows(log, "entropy", after_baseline=True)
    accuracy = latest_accuracy(log)
    if level <= 0:
        raise NoDataError(f"the entropy of the baseline is {level:.3g}")
    critical = count_broken(found, lambda value: value < 0.2 * level)
    warn = count_broken(found, lambda value: value < 0.5 * level)
    text = f"entropy {_span(found)}, baseline {level:.3g}, accuracy {accuracy:.2f}"
    values = {"baseline": level, "latest": found[-1].value, "accuracy": accuracy}
    if not warn.fires:
        return Answer(text)
    if accuracy >= CEILING:
        return Answer(f"{text}: it fell as accuracy rose", Severity.INFO, values, warn.is_all, **SOLVED)
    if critical.fires:
        return Answer(f"{text}: {_share(critical)} below 0.2x", Severity.CRITICAL, values, critical.is_all)
    return Answer(f"{text}: {_share(warn)} below 0.5x", Severity.WARN, values, warn.is_all)


def entropy_explosion(log: MetricLog) -> Answer:
    """Above 1.5 times the baseline, or above 1 nat and rising while success is flat."""
    level = baseline(log, "entropy")
    found = windows(log, "entropy", after_baseline=True)
    # the 0.05 nats keep models with almost no entropy quiet
    relative = count_broken(found, lambda value: value > max(1.5 * level, level + 0.05))
    absolute = count_broken(found, lambda value: value > 1.0)
    climb = rise(log, "entropy")
    text = f"entropy {_span(found)}, baseline {level:.3g}"
    values = {"baseline": level, "latest": found[-1].value, "rise": climb}
    if relative.fires:
        return Answer(f"{text}: {_share(relative)} above 1.5x", Severity.WARN, values, relative.is_all)
    if absolute.fires and climb > 0.1 * found[0].value and success_rise(log) < FLAT_RISE:
        text = f"{text}: {_share(absolute)} above 1 nat and rising by {climb:.2g} with flat success"
        return Answer(text, Severity.WARN, values, absolute.is_all)
    return Answer(text)


def one_sided_groups(log: MetricLog) -> Answer:
    """Most groups all wrong; or most all right with a high score, which is good news."""
    bad = windows(log, "by_group/frac_all_bad", after_baseline=False)
    good = windows(log, "by_group/frac_all_good", after_baseline=False)
    critical = count_broken(bad, lambda value: value > 0.8)
    warn = count_broken(bad, lambda value: value > 0.5)
    solved = count_broken(good, lambda value: value > 0.5)
    values = {"frac_all_bad": bad[-1].value, "frac_all_good": good[-1].value}
    text = f"all-wrong groups {_span(bad)}"
    if critical.fires:
        return Answer(f"{text}: {_share(critical)} above 0.8", Severity.CRITICAL, values, critical.is_all)
    if warn.fires:
        return Answer(f"{text}: {_share(warn)} above 0.5", Severity.WARN, values, warn.is_all)
    if solved.fires:
        name, score = _eval_score(log)
        if score >= HIGH_EVAL:
            text = f"all-right groups {_span(good)}, {name} {score:.2f}"
            return Answer(text, Severity.INFO, {**values, "score": score}, solved.is_all, **SOLVED)
    return Answer(text)


def no_signal(log: MetricLog) -> Answer:
    """Steps whose advantages are all 0, or whose loss and gradient are."""
    dead = _dead_steps(log)
    count = int(sum(dead.values()))
    is_dead_throughout = count == len(dead) and count >= WINDOW_STEPS
    found = windows_of(dead, last=log.steps[-1], first=log.steps[0])
    if len(found) < NUM_BROKEN and not is_dead_throughout:
        raise NoDataError(f"too short: {count} of {len(dead)} steps gave no signal")
    all_dead = [all(dead[step] for step in dead if w.first <= step <= w.last) for w in found]
    broken = Broken(sum(all_dead), len(found))
    text = f"{count} of {len(dead)} steps gave no signal"
    if not broken.fires and not is_dead_throughout:
        return Answer(text)
    values = {"dead_steps": float(count), "steps": float(len(dead))}
    is_certain = is_dead_throughout or broken.is_all
    if _is_solved(log):
        return Answer(text, Severity.INFO, values, is_certain, **SOLVED)
    no_answer = [value for step, value in log.series.get("verdict/no_answer", {}).items() if dead.get(step)]
    if no_answer:
        values["no_answer"] = statistics.median(no_answer)
        text = f"{text}; in them {values['no_answer']:.0%} of the trajectories gave no answer that could be found"
    return Answer(text, Severity.CRITICAL, values, is_certain)


def not_finite(log: MetricLog) -> Answer:
    """NaN or infinity in any metric at any step."""
    if not log.non_finite:
        return Answer(f"{len(log.series)} metrics, all finite")
    first = min(item.step for item in log.non_finite)
    names = sorted({item.name for item in log.non_finite if item.step == first})
    more = sorted({item.name for item in log.non_finite})
    text = f"first at step {first}: {', '.join(names[:5])}; {len(more)} metrics in all"
    return Answer(text, Severity.CRITICAL, {"first_step": float(first), "metrics": float(len(more))}, is_certain=True)


def truncation(log: MetricLog) -> Answer:
    """Trajectories that meet the token limit."""
    found = windows(log, "completions/clipped_ratio", after_baseline=False)
    critical = count_broken(found, lambda value: value >= 0.999)
    warn = count_broken(found, lambda value: value > 0.2)
    text = f"share that ended by the token limit {_span(found)}"
    values = {"latest": found[-1].value}
    if critical.fires:
        return Answer(f"{text}: {_share(critical)} at 100 %", Severity.CRITICAL, values, critical.is_all)
    if warn.fires:
        return Answer(f"{text}: {_share(warn)} above 20 %", Severity.WARN, values, warn.is_all)
    return Answer(text)


def calls_vanish(log: MetricLog) -> Answer:
    """Calls per trajectory below half of the baseline over the last 20 steps."""
    level = baseline(log, "tools/call_frequency")
    if level <= 0:
        raise NoDataError("no tool was called in steps 3-12, so calls can't vanish")
    found = windows(log, "tools/call_frequency", after_baseline=True)
    last_two = found[-2:]
    text = f"calls per trajectory {_span(last_two)}, baseline {level:.2f}"
    values = {"baseline": level, "latest": found[-1].value}
    if all(window.value < 0.5 * level for window in last_two):
        return Answer(f"{text}: below 0.5x over 20 steps", Severity.WARN, values, is_certain=True)
    return Answer(text)


def tool_errors(log: MetricLog) -> Answer:
    """Share of failed calls above 30 %, or doubled."""
    name = "tools/failure_frequency"
    found = windows(log, name, after_baseline=False)
    broken = count_broken(found, lambda value: value > 0.3)
    text = f"failed calls {_span(found)}"
    values = {"latest": found[-1].value}
    said = f"{_share(broken)} above 30 %"
    if not broken.fires:
        try:
            level = baseline(log, name)
            later = windows(log, name, after_baseline=True)
        except NoDataError as error:
            return Answer(f"{text}; can't be compared with the baseline: {error}")
        # below a tenth of the calls, twice the baseline is noise
        broken = count_broken(later, lambda value: value > max(2 * level, 0.1))
        said = f"{_share(broken)} above twice the baseline {level:.2g}"
        values["baseline"] = level
    if not broken.fires:
        return Answer(text)
    same = log.series.get("tools/top_error_frac", {})
    recent = [value for step, value in same.items() if step >= found[-1].first]
    cause = ""
    if recent and statistics.median(recent) >= 0.9:
        values["top_error_frac"] = statistics.median(recent)
        said = f"{said}; {values['top_error_frac']:.0%} of them with the same error"
        cause = "the environment: one exception everywhere, such as a module that is not installed"
    return Answer(f"{text}: {said}", Severity.WARN, values, broken.is_all, cause=cause)


def _dead_steps(log: MetricLog) -> dict[int, float]:
    """Map every step that can be judged to 1.0 if it gave no signal, else 0.0."""
    advantage, updates = log.series.get("advantage/abs_mean", {}), log.series.get("num_updates", {})
    loss, norm = log.series.get("loss", {}), log.series.get("grad_norm", {})
    dead: dict[int, float] = {}
    for step in log.steps:
        signs = [source[step] == 0.0 for source in (advantage, updates) if step in source]
        if step in loss and step in norm:
            signs.append(loss[step] == 0.0 and norm[step] == 0.0)
        if signs:
            dead[step] = float(any(signs))
    if not dead:
        raise NoDataError("metric 'advantage/abs_mean' is missing, and so are 'loss' with 'grad_norm'")
    return dead


def _is_solved(log: MetricLog) -> bool:
    """Whether accuracy is known and near its ceiling."""
    try:
        return latest_accuracy(log) >= CEILING
    except NoDataError:
        return False


def _eval_score(log: MetricLog) -> tuple[str, float]:
    """Return the newest held-out score, or else the accuracy of training, with its name."""
    scores = {name: series for name, series in log.series.items() if _EVAL_SCORE.match(name)}
    if scores:
        name = max(scores, key=lambda n: (max(scores[n]), n))
        return name, scores[name][max(scores[name])]
    return "accuracy in training", latest_accuracy(log)


def _span(found: Sequence[Window]) -> str:
    values = ", ".join(f"{window.value:.3g}" for window in found)
    return f"{values} (medians of {WINDOW_STEPS} steps, {found[0].first}-{found[-1].last})"


def _share(broken: Broken) -> str:
    return f"{broken.count} of {broken.of} windows"
