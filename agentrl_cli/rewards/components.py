"""The parts of a reward: outcome, tool term and length term, each a pure function.

| `tool_reward` | right | wrong | |
|---|---|---|---|
| `release` | +1 | min(-0.6, -1 + 0.1 n) | what the released code of arXiv 2510.11701 means to do |
| `call_bonus` | +1 + 0.1 min(n, 5) | -1 + 0.1 min(n, 5) | pays calls whether right or wrong: can be farmed |
| `paper` | +1 + 0.1 min(n, 5) | min(-0.6, -1 + 0.1 n) | arXiv 2510.11701, eq. 8, with its missing bound |
| `none` | +1 | -1 | |

The table is outcome plus tool term for n calls; the tool term is the table minus the outcome.
"""

from __future__ import annotations

from typing import Literal, assert_never

ToolReward = Literal["release", "call_bonus", "paper", "none"]

_MOST_PAID_CALLS = 5
_MOST_PAID_WHEN_WRONG = 4
"""-1 + 0.1 x 4 is the bound of -0.6."""


def outcome(*, is_correct: bool) -> float:
    """Return +1 for a right answer and -1 for everything else."""
    return 1.0 if is_correct else -1.0


def tool_term(form: ToolReward, *, is_correct: bool, num_calls: int) -> float:
    """Return what the calls of one trajectory add to its outcome.

    Args:
        num_calls: n of the table, executed or successful calls; there is no default for a missing count.
    """
    if not isinstance(num_calls, int) or num_calls < 0:
        raise ValueError(f"num_calls must be a count of calls, got {num_calls!r}")
    bonus = min(num_calls, _MOST_PAID_CALLS) / 10
    consolation = min(num_calls, _MOST_PAID_WHEN_WRONG) / 10
    match form:
        case "release":
            return 0.0 if is_correct else consolation
        case "call_bonus":
            return bonus
        case "paper":
            return bonus if is_correct else consolation
        case "none":
            return 0.0
        case _:
            assert_never(form)


def length_term(num_tokens: int, *, max_tokens: int, cache_tokens: int, is_cut: bool) -> float:
    """Return the soft penalty near the length limit: 0 up to max - cache, then falling to -1 at max.

    Args:
        num_tokens: Length of the trajectory, in tokens after the prompt.
        max_tokens: L_max.
        cache_tokens: L_cache, the width of the ramp; 0 < cache_tokens <= max_tokens.
        is_cut: The trajectory ended by `max_tokens`: -1 whatever its counted length.

    Source: DAPO, arXiv 2503.14476, eq. 13.
    """
    assert 0 < cache_tokens <= max_tokens, (cache_tokens, max_tokens)
    if is_cut or num_tokens > max_tokens:
        return -1.0
    return min(0.0, (max_tokens - cache_tokens - num_tokens) / cache_tokens)
