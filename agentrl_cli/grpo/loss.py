"""The policy loss of GRPO-TCR: pure tensors in, (loss, sums) out.

Per generated token t of trajectory i with advantage A:

    r = exp(clamp(policy_logp - old_logp, -20, 20))
    term = min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A)

What makes it TCR (arXiv 2510.11701, eq. 4-7; released code Gen-Verse/Open-AgentRL `recipe/demystify`):

- T: the mean runs over all tokens of the update batch (`token-mean`; DAPO, arXiv 2503.14476, eq. 8);
- C: epsilon_high > epsilon_low (clip-higher, the same paper, section 3.1);
- R: overlong reward shaping, in `agentrl_cli.rewards`.

Departures, with reasons. The clip stands only in the second argument of the min: clipping r before the
min makes both arguments equal and kills the gradient that corrects a ratio on the wrong side (A > 0
with r < 1 - epsilon_low; A < 0 with r > 1 + epsilon_high). The ratio's denominator is the old policy,
as in the released code, not the reference that the paper prints.

Every mean's denominator is passed in, counted over the whole update batch by the caller (all
micro-batches, all ranks), so that how a batch is cut up changes neither loss nor gradient. Statistics
are sums and counts for the same reason.

Shapes: B trajectories, T tokens after the prompt; mask 1 marks tokens that the policy generated.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import torch

from agentrl_cli.grpo.kl import LOG_RATIO_BOUND, k1, k2, k3

LossAggMode = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "sequence"]
RolloutIs = Literal["none", "token", "sequence"]


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The settings of the loss at one step; see `GrpoConfig` for their meaning."""

    loss_agg_mode: LossAggMode
    epsilon_low: float
    epsilon_high: float
    delta: float | None
    kl_estimator: Literal["k2", "k3"]
    rollout_is: RolloutIs
    rollout_is_threshold: float
    max_length: int
    """L_max of `seq-mean-token-sum-norm`, in tokens."""


@dataclass(frozen=True, slots=True)
class Denominator:
    """Counts over the whole update batch: every micro-batch, every rank, zero-signal groups included."""

    num_tokens: int
    """Generated tokens."""
    num_sequences: int
    """Trajectories with at least one generated token."""


@dataclass(frozen=True, slots=True)
class LossStats:
    """Sums over generated tokens; they add up over micro-batches, updates and ranks."""

    num_tokens: float = 0.0
    clip_low: float = 0.0
    clip_high: float = 0.0
    ratio: float = 0.0
    entropy: float = 0.0
    kl_step: float = 0.0
    kl_tokens: float = 0.0
    k1: float = 0.0
    k2: float = 0.0
    k3: float = 0.0
    mismatch_tokens: float = 0.0
    mismatch_k3: float = 0.0
    weight: float = 0.0
    weight_squared: float = 0.0

    @classmethod
    def zero(cls) -> LossStats:
        """Return sums over nothing."""
        return cls()

    def __add__(self, other: LossStats) -> LossStats:
        return LossStats(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    def means(self) -> dict[str, float]:
        """Return the metrics that these sums define; one that nothing was counted for is left out."""
        metrics: dict[str, float] = {}
        if self.num_tokens:
            metrics["clip_ratio/low_mean"] = self.clip_low / self.num_tokens
            metrics["clip_ratio/high_mean"] = self.clip_high / self.num_tokens
            metrics["ratio/mean"] = self.ratio / self.num_tokens
            metrics["entropy"] = self.entropy / self.num_tokens
        if self.kl_tokens:
            metrics["kl"] = self.k3 / self.kl_tokens
            metrics["kl_k1"] = self.k1 / self.kl_tokens
            metrics["kl_k2"] = self.k2 / self.kl_tokens
        if self.mismatch_tokens:
            metrics["mismatch_kl"] = self.mismatch_k3 / self.mismatch_tokens
        if self.weight:
            metrics["rollout_is/mean"] = self.weight / self.num_tokens
            metrics["rollout_is/ess"] = self.weight**2 / (self.num_tokens * self.weight_squared)
        return metrics


@dataclass(frozen=True, slots=True)
class LossOutput:
    """The micro-batch's share of the loss (a scalar to call backward on) and its sums."""

    loss: torch.Tensor
    stats: LossStats


def policy_loss(
    policy_logp_BT: torch.Tensor,
    old_logp_BT: torch.Tensor,
    advantage_B: torch.Tensor,
    mask_BT: torch.Tensor,
    *,
    settings: LossSettings,
    denominator: Denominator,
    sampler_logp_BT: torch.Tensor | None = None,
    ref_logp_BT: torch.Tensor | None = None,
    entropy_BT: torch.Tensor | None = None,
    beta: float = 0.0,
) -> LossOutput:
    """Return a micro-batch's share of the loss to minimise; the shares of an update batch add up to its loss.

    Args:
        policy_logp_BT: log p of each token now, [B, T]; the only input that carries a gradient.
        old_logp_BT: log p before the step's first update, [B, T].
        advantage_B: [B].
        mask_BT: bool, [B, T].
        settings: Loss mode, clip range and corrections.
        denominator: Counts of the whole update batch.
        sampler_logp_BT: log p that the sampler reported, [B, T]; needed by `rollout_is`, else only measured.
        ref_logp_BT: log p under the frozen reference, [B, T]; needed for beta > 0, else only measured.
        entropy_BT: entropy of each token's distribution in nats, [B, T]; only measured.
        beta: Weight of the KL penalty, a token mean of `settings.kl_estimator`.
    """
    mask = mask_BT.to(policy_logp_BT.dtype)
    advantage_B1 = advantage_B.to(policy_logp_BT.dtype).unsqueeze(1)
    weight = _rollout_weight(old_logp_BT, sampler_logp_BT, mask_BT, settings=settings)
    if settings.loss_agg_mode == "sequence":
        log_ratio = masked_mean_per_row(policy_logp_BT - old_logp_BT, mask).unsqueeze(1)
    else:
        log_ratio = torch.where(mask_BT, policy_logp_BT - old_logp_BT, 0.0)
    ratio = torch.exp(log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))
    term = clipped_term(ratio, advantage_B1, settings=settings) * weight
    loss = -_aggregate(term, mask, settings=settings, denominator=denominator)
    if beta > 0:
        assert ref_logp_BT is not None, f"beta={beta} needs reference log-probabilities"
        estimator = k3 if settings.kl_estimator == "k3" else k2
        penalty = torch.where(mask_BT, estimator(policy_logp_BT, ref_logp_BT), 0.0)
        loss = loss + beta * penalty.sum() / denominator.num_tokens
    with torch.no_grad():
        stats = _measure(
            policy_logp_BT,
            old_logp_BT,
            ratio.expand_as(mask),
            advantage_B1,
            weight.expand_as(mask),
            mask_BT,
            settings=settings,
            sampler_logp_BT=sampler_logp_BT,
            ref_logp_BT=ref_logp_BT,
            entropy_BT=entropy_BT,
        )
    return LossOutput(loss, stats)


def clipped_term(ratio: torch.Tensor, advantage: torch.Tensor, *, settings: LossSettings) -> torch.Tensor:
    """Return min(r A, clip(r) A), for A < 0 bounded below by delta A (dual clip, arXiv 1912.09729, eq. 5)."""
    clipped = ratio.clamp(1.0 - settings.epsilon_low, 1.0 + settings.epsilon_high)
    term = torch.minimum(ratio * advantage, clipped * advantage)
    if settings.delta is None:
        return term
    return torch.where(advantage < 0, torch.maximum(term, settings.delta * advantage), term)


def masked_mean_per_row(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Return each row's mean over its masked-in tokens, [B]; 0 for a row that has none."""
    kept = torch.where(mask_BT.bool(), values_BT, torch.zeros_like(values_BT))
    return kept.sum(1) / mask_BT.sum(1).clamp(min=1.0)


def _aggregate(
    term: torch.Tensor, mask: torch.Tensor, *, settings: LossSettings, denominator: Denominator
) -> torch.Tensor:
    """Average term over the update batch as `loss_agg_mode` says; [B, T] (or [B, 1] for `sequence`) to a scalar."""
    mode = settings.loss_agg_mode
    has_tokens = (mask.sum(1) > 0).to(term.dtype)
    if mode == "token-mean":
        return (term * mask).sum() / denominator.num_tokens
    if mode == "seq-mean-token-mean":
        return masked_mean_per_row(term, mask).sum() / denominator.num_sequences
    if mode == "seq-mean-token-sum-norm":
        return ((term * mask).sum(1) / settings.max_length).sum() / denominator.num_sequences
    return (term.squeeze(1) * has_tokens).sum() / denominator.num_sequences


def _rollout_weight(
    old: torch.Tensor, sampler: torch.Tensor | None, mask_BT: torch.Tensor, *, settings: LossSettings
) -> torch.Tensor:
    """Return detached weights min(exp(old - sampler), threshold): [B, T] per token, [B, 1] per sequence."""
    if settings.rollout_is == "none":
        return torch.ones((old.shape[0], 1), dtype=old.dtype, device=old.device)
    assert sampler is not None, f"rollout_is={settings.rollout_is!r} needs the sampler's log-probabilities"
    log_weight = torch.where(mask_BT, old - sampler, torch.zeros_like(old)).detach()
    if settings.rollout_is == "sequence":
        log_weight = log_weight.sum(1, keepdim=True)
    bounded = log_weight.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.exp(bounded).clamp(max=settings.rollout_is_threshold)


def _measure(
    policy: torch.Tensor,
    old: torch.Tensor,
    ratio: torch.Tensor,
    advantage_B1: torch.Tensor,
    weight: torch.Tensor,
    mask: torch.Tensor,
    *,
    settings: LossSettings,
    sampler_logp_BT: torch.Tensor | None,
    ref_logp_BT: torch.Tensor | None,
    entropy_BT: torch.Tensor | None,
) -> LossStats:
    """Count what the loss met, over generated tokens."""

    def total(values: torch.Tensor) -> float:
        return float(torch.where(mask, values, torch.zeros_like(values)).double().sum())

    count = float(mask.sum())
    low = (advantage_B1 < 0) & (ratio < 1.0 - settings.epsilon_low)
    high = (advantage_B1 > 0) & (ratio > 1.0 + settings.epsilon_high)
    is_weighted = settings.rollout_is != "none"
    return LossStats(
        num_tokens=count,
        clip_low=total(low.double()),
        clip_high=total(high.double()),
        ratio=total(ratio),
        entropy=0.0 if entropy_BT is None else total(entropy_BT),
        kl_step=total(k3(old, policy)),
        kl_tokens=0.0 if ref_logp_BT is None else count,
        k1=0.0 if ref_logp_BT is None else total(k1(policy, ref_logp_BT)),
        k2=0.0 if ref_logp_BT is None else total(k2(policy, ref_logp_BT)),
        k3=0.0 if ref_logp_BT is None else total(k3(policy, ref_logp_BT)),
        mismatch_tokens=0.0 if sampler_logp_BT is None else count,
        mismatch_k3=0.0 if sampler_logp_BT is None else total(k3(sampler_logp_BT, old)),
        weight=total(weight) if is_weighted else 0.0,
        weight_squared=total(weight**2) if is_weighted else 0.0,
    )

