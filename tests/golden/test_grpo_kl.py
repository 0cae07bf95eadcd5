"""KL estimators against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl_cli.grpo.kl import k1, k2, k3


def t(*values: float) -> torch.Tensor:
    """Return a float64 vector."""
    return torch.tensor(values, dtype=torch.float64)


def test_estimators_on_small_differences() -> None:
    """k1 = d, k2 = d^2 / 2, k3 = exp(-d) + d - 1 with d = log p - log q."""
    p, q = t(-1.0, -2.0, -1.5), t(-1.5, -1.5, -1.5)  # d = 0.5, -0.5, 0
    assert k1(p, q).tolist() == [0.5, -0.5, 0.0]
    assert k2(p, q).tolist() == [0.125, 0.125, 0.0]
    # exp(-0.5) + 0.5 - 1 = 0.6065306597 - 0.5; exp(0.5) - 0.5 - 1 = 1.6487212707 - 1.5
    assert k3(p, q).tolist() == pytest.approx([0.1065306597, 0.1487212707, 0.0], abs=1e-10)


def test_outliers_are_bounded() -> None:
    """d stops at +-20, and k3 at 10."""
    p, q = t(0.0, -30.0, -5.0), t(-30.0, 0.0, 0.0)  # d = 30 -> 20, -30 -> -20, -5
    assert k1(p, q).tolist() == [20.0, -20.0, -5.0]
    assert k2(p, q).tolist() == [200.0, 200.0, 12.5]
    # exp(-20) + 20 - 1 = 19.0, exp(20) - 21 = 4.9e8 and exp(5) - 6 = 142.4: all above 10
    assert k3(p, q).tolist() == [10.0, 10.0, 10.0]


def test_k3_keeps_its_digits_near_zero() -> None:
    """For tiny d, k3 is d^2 / 2 and not rounding noise, in float32 too."""
    d = 1e-3
    value = float(k3(torch.tensor([d]), torch.tensor([0.0])))
    assert value == pytest.approx(d * d / 2, rel=1e-2)  # 5e-7, the next term is d^3 / 6 = 1.7e-10


def test_k2_has_the_gradient_of_the_kl_on_policy() -> None:
    """On a two-token vocabulary the expected gradient of k2 is that of KL(p || q), and that of k1 is zero."""
    # p = sigmoid(x) for token 0, q = 0.5 each. d KL / dx = p (1 - p) x, since log p0 - log p1 = x
    x = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    p = torch.sigmoid(x)
    log_p = torch.stack([torch.log(p), torch.log(1 - p)])
    log_q = t(math.log(0.5), math.log(0.5))
    weights = log_p.exp().detach()  # the expectation over tokens drawn from p
    (gradient_k2,) = torch.autograd.grad((weights * k2(log_p, log_q)).sum(), x, retain_graph=True)
    (gradient_k1,) = torch.autograd.grad((weights * k1(log_p, log_q)).sum(), x)
    # p = 0.6899744811, p (1 - p) = 0.2139096965, times 0.8 = 0.1711277572
    assert float(gradient_k2) == pytest.approx(0.1711277572, abs=1e-9)
    assert float(gradient_k1) == pytest.approx(0.0, abs=1e-12)
