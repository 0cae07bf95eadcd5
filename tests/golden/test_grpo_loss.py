"""The policy loss against numbers worked out by hand.

Log-probabilities are written as logs of the ratio over an old policy of log-probability 0, so that the
arithmetic is that of the ratios.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from agentrl_cli.grpo.loss import Denominator, LossSettings, LossStats, policy_loss
from agentrl_cli.grpo.stats import finalise_stats

SETTINGS = LossSettings(
    loss_agg_mode="token-mean",
    epsilon_low=0.2,
    epsilon_high=0.28,
    delta=None,
    kl_estimator="k3",
    rollout_is="none",
    rollout_is_threshold=2.0,
    max_length=10,
)
# A = 1:  1.5 -> min(1.5, 1.28) = 1.28;  1.1 -> 1.1;  0.5 -> min(0.5, 0.8) = 0.5;  sum 2.88
# A = -2: 2.0 -> min(-4, -2.56) = -4;    0.5 -> min(-1, -1.6) = -1.6;  third token masked;  sum -5.6
RATIOS = [[1.5, 1.1, 0.5], [2.0, 0.5, 7.0]]
MASK = [[1, 1, 1], [1, 1, 0]]
ADVANTAGES = [1.0, -2.0]


def matrix(rows: list[list[float]]) -> torch.Tensor:
    """Return a float64 matrix."""
    return torch.tensor(rows, dtype=torch.float64)


def logs(rows: list[list[float]]) -> torch.Tensor:
    """Return the logs of a matrix."""
    return torch.log(matrix(rows))


def run(
    ratios: list[list[float]] = RATIOS,
    advantages: list[float] = ADVANTAGES,
    mask: list[list[int]] = MASK,
    *,
    settings: dict[str, Any] | None = None,
    **inputs: Any,
) -> tuple[float, dict[str, float]]:
    """Return the loss of a whole update batch and its metrics."""
    output = policy_loss(
        logs(ratios),
        torch.zeros(len(ratios), len(ratios[0]), dtype=torch.float64),
        torch.tensor(advantages, dtype=torch.float64),
        torch.tensor(mask).bool(),
        settings=dataclasses.replace(SETTINGS, **(settings or {})),
        denominator=Denominator(sum(map(sum, mask)), sum(any(row) for row in mask)),
        **inputs,
    )
    return float(output.loss), finalise_stats(output.stats)


def test_token_mean() -> None:
    """`token-mean` divides the sum of all terms by all generated tokens."""
    # -(2.88 - 5.6) / 5 = 0.544
    assert run()[0] == pytest.approx(0.544)


def test_seq_mean_token_mean() -> None:
    """`seq-mean-token-mean` averages each trajectory's own mean."""
    # -(2.88 / 3 - 5.6 / 2) / 2 = -(0.96 - 2.8) / 2 = 0.92
    assert run(settings={"loss_agg_mode": "seq-mean-token-mean"})[0] == pytest.approx(0.92)


def test_seq_mean_token_sum_norm() -> None:
    """`seq-mean-token-sum-norm` divides each trajectory's sum by L_max, whatever its length."""
    # -(2.88 / 10 - 5.6 / 10) / 2 = -(0.288 - 0.56) / 2 = 0.136
    assert run(settings={"loss_agg_mode": "seq-mean-token-sum-norm"})[0] == pytest.approx(0.136)


def test_sequence() -> None:
    """`sequence` clips the geometric mean of each trajectory's ratios."""
    log_ratios = [[0.001, 0.0005, 0.0006], [-0.001, -0.0005, 9.0], [0.0002, 0.0, 0.0]]
    settings = {"loss_agg_mode": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4}
    loss, metrics = run(
        [[math.exp(x) for x in row] for row in log_ratios],
        [1.0, -2.0, 3.0],
        [[1, 1, 1], [1, 1, 0], [1, 0, 0]],
        settings=settings,
    )
    # s0 = exp(0.0007) = 1.000700 -> clipped to 1.0004, min -> 1.0004
    # s1 = exp(-0.00075) = 0.999250 -> clipped to 0.9997; min(-1.9985, -1.9994) = -1.9994
    # s2 = exp(0.0002) = 1.00020002 inside; 3.00060006
    # -(1.0004 - 1.9994 + 3.00060006) / 3 = -0.66720002
    assert loss == pytest.approx(-0.66720002, abs=1e-8)
    # tokens of clipped sequences: 3 of 6 high, 2 of 6 low
    assert metrics["clip_ratio/high_mean"] == pytest.approx(0.5)
    assert metrics["clip_ratio/low_mean"] == pytest.approx(1 / 3)


def test_dual_clip_bounds_negative_advantages_only() -> None:
    """`delta` stops the term of a negative advantage at delta A and touches nothing else."""
    # A = -2: r = 4 -> max(min(-8, -2.56), -6) = -6; r = 2 -> max(-4, -6) = -4. A = 1, r = 4 -> 1.28 twice
    # -(-6 - 4 + 2.56) / 4 = 1.86; without delta -(-8 - 4 + 2.56) / 4 = 2.36
    ratios, advantages, mask = [[4.0, 2.0], [4.0, 4.0]], [-2.0, 1.0], [[1, 1], [1, 1]]
    loss, metrics = run(ratios, advantages, mask, settings={"delta": 3.0})
    assert loss == pytest.approx(1.86)
    assert metrics["clip_ratio/dual_mean"] == 0.25  # one token of four
    plain, metrics = run(ratios, advantages, mask)
    assert plain == pytest.approx(2.36)
    assert "clip_ratio/dual_mean" not in metrics


def test_ratio_is_bounded_before_the_exponential() -> None:
    """A log-ratio of 50 counts as 20, so that the loss stays finite."""
    output = policy_loss(
        matrix([[50.0]]),
        matrix([[0.0]]),
        torch.tensor([-1.0], dtype=torch.float64),
        torch.tensor([[True]]),
        settings=SETTINGS,
        denominator=Denominator(1, 1),
    )
    assert float(output.loss) == pytest.approx(math.exp(20))  # A = -1: min(-e^20, -1.28), negated


def test_k3_penalty() -> None:
    """beta times the token mean of k3 is added."""
    # A = 0 leaves the penalty alone. d = 0.5, -0.5: k3 = 0.1065306597 + 0.1487212707 = 0.2552519304
    # 0.1 * 0.2552519304 / 2 = 0.0127625965
    loss, metrics = run([[1.0, 1.0]], [0.0], [[1, 1]], ref_logp_BT=matrix([[-0.5, 0.5]]), beta=0.1)
    assert loss == pytest.approx(0.0127625965, abs=1e-10)
    assert metrics["kl"] == pytest.approx(0.1276259652, abs=1e-10)
    assert metrics["kl_k1"] == pytest.approx(0.0)  # (0.5 - 0.5) / 2
    assert metrics["kl_k2"] == pytest.approx(0.125)


def test_k2_penalty_is_a_token_mean_in_every_mode() -> None:
    """The KL's denominator is the generated tokens, whatever the loss divides by."""
    # d = 0.5 on all three tokens: 0.2 * 3 * 0.125 / 3 = 0.025
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "sequence"):
        loss, _ = run(
            [[1.0, 1.0], [1.0, 1.0]],
            [0.0, 0.0],
            [[1, 1], [1, 0]],
            settings={"loss_agg_mode": mode, "kl_estimator": "k2"},
            ref_logp_BT=torch.full((2, 2), -0.5, dtype=torch.float64),
            beta=0.2,
        )
        assert loss == pytest.approx(0.025), mode


def test_a_reference_without_beta_is_only_measured() -> None:
    """With beta 0 the reference changes no loss."""
    loss, metrics = run(ref_logp_BT=logs([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]))
    assert loss == pytest.approx(0.544)
    assert "kl" in metrics


def test_token_weights_are_truncated() -> None:
    """`rollout_is=token` multiplies each term by min(old / sampler, threshold)."""
    # old / sampler = 0.5, 3 -> 2, 1: -(0.5 + 2 + 1) / 3 = -1.1666667
    loss, metrics = run(
        [[1.0] * 3], [1.0], [[1] * 3], settings={"rollout_is": "token"}, sampler_logp_BT=-logs([[0.5, 3.0, 1.0]])
    )
    assert loss == pytest.approx(-3.5 / 3)
    assert metrics["rollout_is/mean"] == pytest.approx(3.5 / 3)
    # (sum w)^2 / (N sum w^2) = 12.25 / (3 * (0.25 + 4 + 1)) = 12.25 / 15.75
    assert metrics["rollout_is/ess"] == pytest.approx(0.7777778, abs=1e-7)


def test_sequence_weights_are_products_over_the_trajectory() -> None:
    """`rollout_is=sequence` weighs a whole trajectory by min(product of old / sampler, threshold)."""
    # 0.5 * 3 * 1 = 1.5; 0.5 * 1 = 0.5 (third token masked); 2 * 2 * 1 = 4 -> 2
    # A = 1, r = 1: -(3 * 1.5 + 2 * 0.5 + 3 * 2) / 8 = -11.5 / 8
    loss, metrics = run(
        [[1.0] * 3] * 3,
        [1.0] * 3,
        [[1, 1, 1], [1, 1, 0], [1, 1, 1]],
        settings={"rollout_is": "sequence"},
        sampler_logp_BT=-logs([[0.5, 3.0, 1.0], [0.5, 1.0, 9.0], [2.0, 2.0, 1.0]]),
    )
    assert loss == pytest.approx(-1.4375)
    assert metrics["rollout_is/mean"] == pytest.approx(4 / 3)
    # 16 / (3 * (2.25 + 0.25 + 4)) = 16 / 19.5
    assert metrics["rollout_is/ess"] == pytest.approx(0.8205128, abs=1e-7)


def test_no_weights_no_weight_metrics() -> None:
    """`rollout_is=none` measures the mismatch if it can, and reports no weights."""
    # sampler - old = 0.5 on every token: k3 = 0.1065306597
    loss, metrics = run(sampler_logp_BT=torch.full((2, 3), 0.5, dtype=torch.float64))
    assert loss == pytest.approx(0.544)
    assert metrics["mismatch_kl"] == pytest.approx(0.1065306597, abs=1e-10)
    assert not [name for name in metrics if name.startswith("rollout_is")]


def test_token_weights_in_a_sequence_loss_are_refused() -> None:
    """One ratio per trajectory can't take one weight per token."""
    with pytest.raises(AssertionError, match="token-level"):
        run(settings={"loss_agg_mode": "sequence", "rollout_is": "token"}, sampler_logp_BT=torch.zeros(2, 3))


def test_metrics_of_the_clip() -> None:
    """Clip shares count only the side on which the gradient is cut, over all generated tokens."""
    # cut: 1.5 (A > 0, high) and 0.5 of row 1 (A < 0, low). 0.5 with A > 0 and 2.0 with A < 0 are not
    _, metrics = run(entropy_BT=matrix([[1.0, 2.0, 3.0], [4.0, 5.0, 99.0]]))
    assert metrics["clip_ratio/high_mean"] == pytest.approx(0.2)
    assert metrics["clip_ratio/low_mean"] == pytest.approx(0.2)
    assert metrics["ratio/mean"] == pytest.approx((1.5 + 1.1 + 0.5 + 2.0 + 0.5) / 5)
    assert metrics["ratio/max"] == pytest.approx(2.0)  # the masked 7.0 is not seen
    assert metrics["entropy"] == pytest.approx(3.0)  # 15 / 5


def test_what_was_not_measured_is_left_out() -> None:
    """Metrics without inputs do not appear, and sums over nothing define none."""
    _, metrics = run()
    assert set(metrics) == {
        "clip_ratio/low_mean", "clip_ratio/high_mean", "ratio/mean", "ratio/max", "empty_sequences"
    }  # fmt: skip
    assert finalise_stats(LossStats.zero()) == {}


def test_kl_step_is_of_the_last_update_alone() -> None:
    """`kl_step` is k3 of old against policy over the last update, and absent where a step had one."""
    stats = policy_loss(
        matrix([[-1.0, -1.0]]),
        matrix([[-0.5, -0.75]]),
        torch.tensor([1.0], dtype=torch.float64),
        torch.tensor([[True, True]]),
        settings=SETTINGS,
        denominator=Denominator(2, 1),
    ).stats
    # d = old - policy = 0.5, 0.25; exp(-0.25) + 0.25 - 1 = 0.0288007831; (0.1065306597 + 0.0288007831) / 2
    assert finalise_stats(stats, last_update=stats)["kl_step"] == pytest.approx(0.0676657214, abs=1e-10)
    assert "kl_step" not in finalise_stats(stats)


def test_trajectories_without_tokens_are_left_out_and_counted() -> None:
    """A trajectory that generated nothing is in no mean of any mode."""
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "sequence"):
        one, _ = run([[1.1]], [1.0], [[1]], settings={"loss_agg_mode": mode})
        two, metrics = run([[1.1], [5.0]], [1.0, -3.0], [[1], [0]], settings={"loss_agg_mode": mode})
        assert two == pytest.approx(one), mode
        assert metrics["empty_sequences"] == 1.0


def test_skipped_tokens_count_in_the_clip_shares_alone() -> None:
    """Tokens of zero-signal groups that were not computed lower the clip shares, and no other mean."""
    stats = LossStats(num_tokens=5, clip_high=2, ratio=6, ratio_max=2) + LossStats(skipped_tokens=5)
    metrics = finalise_stats(stats)
    assert metrics["clip_ratio/high_mean"] == pytest.approx(0.2)  # 2 / (5 + 5)
    assert metrics["ratio/mean"] == pytest.approx(1.2)  # 6 / 5


def test_a_denominator_of_part_of_the_batch_is_refused() -> None:
    """Counting only some of the tokens is noticed, with both numbers."""
    with pytest.raises(AssertionError, match=r"5\.0, 4"):
        policy_loss(
            logs(RATIOS),
            torch.zeros(2, 3, dtype=torch.float64),
            torch.tensor(ADVANTAGES),
            torch.tensor(MASK),
            settings=SETTINGS,
            denominator=Denominator(4, 2),
        )
