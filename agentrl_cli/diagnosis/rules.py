"""The rules: symptom, likely cause, and the setting to change. docs/diagnosis.md describes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl_cli.diagnosis import patches, symptoms
from agentrl_cli.diagnosis.report import Severity
from agentrl_cli.diagnosis.series import MetricLog
from agentrl_cli.diagnosis.symptoms import Answer


@dataclass(frozen=True, slots=True)
class Rule:
    """One symptom; `test` raises `NoDataError` where it can't be judged."""

    number: int
    name: str
    test: Callable[[MetricLog], Answer]
    cause: str
    remedy: str
    patch: Callable[[MetricLog, Severity], Sequence[str]]
    """Settings to change as `key=value`, given the log and how bad it is."""
    sources: Sequence[str]


DAPO = "arXiv 2503.14476"
TCR = "arXiv 2510.11701"

RULES: tuple[Rule, ...] = (
    Rule(
        2,
        "entropy collapse",
        symptoms.entropy_collapse,
        "a narrow upper clip range, or uniform data: the policy has stopped exploring",
        "raise epsilon_high stepwise, hold entropy with its controller (which needs a reference), diversify the data",
        patches.raise_entropy,
        (f"{DAPO} section 3.1", TCR),
    ),
    Rule(
        3,
        "entropy explosion",
        symptoms.entropy_explosion,
        "a clip range that is too wide, a bonus that pays for noise, or off-policy samples",
        "lower epsilon_high, raise beta; check that no part of the reward pays for randomness",
        patches.lower_entropy,
        (TCR,),
    ),
    Rule(
        6,
        "groups all wrong",
        symptoms.one_sided_groups,
        "the problems are too hard for this model",
        "estimate the difficulty again with this model, draw problems that it solves sometimes, keep mixed groups only",
        patches.change_difficulty,
        (f"{DAPO} section 3.2",),
    ),
    Rule(
        8,
        "no learning signal",
        symptoms.no_signal,
        "a broken reward or parser: every answer of a group is paid the same",
        "look at a few trajectories (`agentrl view`): is the answer in \\boxed{}, and does the verdict agree",
        patches.none,
        ("unsourced",),
    ),
    Rule(
        12,
        "not a number",
        symptoms.not_finite,
        "numerics: an overflow in a ratio or a softmax, or a learning rate that is too high",
        "keep ratio and softmax in FP32, go back to the checkpoint before the first such step with a lower rate",
        patches.calm_numerics,
        ("unsourced",),
    ),
    Rule(
        16,
        "truncation",
        symptoms.truncation,
        "the token limit is too short for how long the model writes",
        "raise the limit, or shape the length so that the model learns to keep it",
        patches.raise_token_limit,
        (f"{DAPO} section 3.4",),
    ),
    Rule(
        19,
        "tool calls vanish",
        symptoms.calls_vanish,
        "no incentive to call tools, or a habit of long chains of thought",
        "raise the tool term, add examples with calls to SFT, cap the tokens of a turn without a call",
        patches.encourage_calls,
        (TCR,),
    ),
    Rule(
        21,
        "tool errors",
        symptoms.tool_errors,
        "the model writes calls that fail, or the sandbox lacks what they need",
        "look at failing calls: repair the sandbox if the fault is its, else add examples with right arguments to SFT",
        patches.none,
        ("unsourced",),
    ),
)

OPPOSITES: tuple[tuple[int, int], ...] = ((2, 3),)
"""Rules of which at most one is reported."""
