"""Estimators of KL(p || q) from tokens drawn from p (joschu.net/blog/kl-approx).

With d = log p - log q of the drawn token, bounded to +-20 so that one outlier can't overflow:

    k1 = d                    unbiased, can be negative; its gradient has mean zero
    k2 = d^2 / 2              biased, low variance; the right reverse-KL gradient on policy
    k3 = exp(-d) + d - 1      unbiased, never negative; bounded to 10 (as verl does)

All work elementwise on log-probabilities of any one shape, in nats.
"""

from __future__ import annotations

import torch

LOG_RATIO_BOUND = 20.0
K3_BOUND = 10.0


def bounded_log_ratio(logp: torch.Tensor, other_logp: torch.Tensor) -> torch.Tensor:
    """Return log p - log q within +-20."""
    return (logp - other_logp).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def k1(logp: torch.Tensor, other_logp: torch.Tensor) -> torch.Tensor:
    """Return d."""
    return bounded_log_ratio(logp, other_logp)


def k2(logp: torch.Tensor, other_logp: torch.Tensor) -> torch.Tensor:
    """Return d^2 / 2."""
    return bounded_log_ratio(logp, other_logp) ** 2 / 2


def k3(logp: torch.Tensor, other_logp: torch.Tensor) -> torch.Tensor:
    """Return exp(-d) + d - 1, at most 10."""
    d = bounded_log_ratio(logp, other_logp)
    # expm1 keeps the digits of small d, where exp(-d) - 1 would lose them
    return (torch.expm1(-d) + d).clamp(max=K3_BOUND)
