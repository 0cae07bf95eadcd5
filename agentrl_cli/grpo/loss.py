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
micro-batches, all ranks), so that how a batch is cut up changes neither loss nor gradient. The KL
penalty is a mean over the generated tokens of the update batch in every mode. What was met on the way
comes back as sums and counts for the same reason (`agentrl_cli.grpo.stats`).

Shapes: B trajectories, T tokens after the prompt; mask 1 marks tokens that the policy generated. What
stands where the mask is 0 is never read, not even a NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from agentrl_cli.grpo.kl import LOG_RATIO_BOUND, k1, k2, k3
from agentrl_cli.grpo.stats import LossStats as LossStats

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
class LossOutput:
    """The micro-batch's share of the loss (a scalar to call backward on) and its sums."""

    loss: torch.Tensor
    stats: LossStats


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The inputs with everything outside the mask set to 0; only `policy` carries a gradient."""

    policy: torch.Tensor
    old: torch.Tensor
    mask: torch.Tensor
    sampler: torch.Tensor | None
    ref: torch.Tensor | None
    entropy: torch.Tensor | None


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
        mask_BT: bool or 0/1, [B, T].
        settings: Loss mode, clip range and corrections.
        denominator: Counts of the whole update batch.
        sampler_logp_BT: log p that the sampler reported, [B, T]; needed by `rollout_is`, else only measured.
        ref_logp_BT: log p under the frozen reference, [B, T]; needed for beta > 0, else only measured.
        entropy_BT: Entropy of each token's distribution in nats, [B, T]; only measured.
        beta: Weight of the KL penalty, a token mean of `settings.kl_estimator`.
    """
    tokens = _inside_mask(policy_logp_BT, old_logp_BT, mask_BT, sampler_logp_BT, ref_logp_BT, entropy_BT)
    advantage_B1 = advantage_B.to(policy_logp_BT.dtype).unsqueeze(1)
    weight = _rollout_weight(tokens, settings=settings)
    ratio = _ratio(tokens, settings=settings)
    term = clipped_term(ratio, advantage_B1, settings=settings) * weight
    loss = -_aggregate(term, tokens.mask, settings=settings, denominator=denominator)
    if beta > 0:
        assert tokens.ref is not None, f"beta={beta} needs reference log-probabilities"
        estimator = k3 if settings.kl_estimator == "k3" else k2
        loss = loss + beta * estimator(tokens.policy, tokens.ref).sum() / denominator.num_tokens
    with torch.no_grad():
        stats = _measure(tokens, ratio, advantage_B1, weight, settings=settings)
    assert stats.num_tokens <= denominator.num_tokens, (stats.num_tokens, denominator.num_tokens)
    assert stats.num_sequences <= denominator.num_sequences, (stats.num_sequences, denominator.num_sequences)
    return LossOutput(loss, stats)


def clipped_term(ratio: torch.Tensor, advantage: torch.Tensor, *, settings: LossSettings) -> torch.Tensor:
    """Return min(r A, clip(r) A), for A < 0 bounded below by delta A (dual clip, arXiv 1912.09729, eq. 5)."""
    clipped = ratio.clamp(1.0 - settings.epsilon_low, 1.0 + settings.epsilon_high)
    term = torch.minimum(ratio * advantage, clipped * advantage)
    if settings.delta is None:
        return term
    return torch.where(advantage < 0, torch.maximum(term, settings.delta * advantage), term)


def _inside_mask(
    policy: torch.Tensor,
    old: torch.Tensor,
    mask: torch.Tensor,
    sampler: torch.Tensor | None,
    ref: torch.Tensor | None,
    entropy: torch.Tensor | None,
) -> _Tokens:
    """Check the shapes and put 0 wherever the mask is 0."""
    inside = mask.bool()

    def keep(values: torch.Tensor) -> torch.Tensor:
        assert values.shape == inside.shape, (tuple(values.shape), tuple(inside.shape))
        return torch.where(inside, values, torch.zeros_like(values))

    def keep_fixed(values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else keep(values.detach())

    return _Tokens(
        policy=keep(policy),
        old=keep(old.detach()),
        mask=inside,
        sampler=keep_fixed(sampler),
        ref=keep_fixed(ref),
        entropy=keep_fixed(entropy),
    )


def _ratio(tokens: _Tokens, *, settings: LossSettings) -> torch.Tensor:
    """Return policy / old per token [B, T], or per trajectory [B, 1] (geometric mean) for `sequence`."""
    log_ratio = tokens.policy - tokens.old
    if settings.loss_agg_mode == "sequence":
        log_ratio = log_ratio.sum(1, keepdim=True) / _lengths(tokens.mask, log_ratio).unsqueeze(1)
    return torch.exp(log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND))


def _rollout_weight(tokens: _Tokens, *, settings: LossSettings) -> torch.Tensor:
    """Return min(exp(old - sampler), threshold), without a gradient: [B, T] per token, [B, 1] per sequence."""
    if settings.rollout_is == "none":
        return tokens.old.new_ones((len(tokens.old), 1))
    assert tokens.sampler is not None, f"rollout_is={settings.rollout_is!r} needs the sampler's log-probabilities"
    token_level = settings.rollout_is == "token"
    assert not (token_level and settings.loss_agg_mode == "sequence"), "token weights need a token-level loss"
    log_weight = tokens.old - tokens.sampler
    if not token_level:
        log_weight = log_weight.sum(1, keepdim=True)
    bounded = log_weight.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    return torch.exp(bounded).clamp(max=settings.rollout_is_threshold)


def _lengths(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the generated tokens of each row, at least 1, [B]: what a row's mean is divided by."""
    return mask.sum(1).clamp(min=1).to(like.dtype)


def _aggregate(
    term: torch.Tensor, mask: torch.Tensor, *, settings: LossSettings, denominator: Denominator
) -> torch.Tensor:
    """Average term over the update batch as `loss_agg_mode` says; [B, T] (or [B, 1] for `sequence`) to a scalar.

    Rows without generated tokens add nothing to any sum and are in no denominator.
    """
    mode = settings.loss_agg_mode
    if mode == "sequence":
        return (term.squeeze(1) * mask.any(1)).sum() / denominator.num_sequences
    inside = term * mask
    if mode == "token-mean":
        return inside.sum() / denominator.num_tokens
    if mode == "seq-mean-token-mean":
        return (inside.sum(1) / _lengths(mask, term)).sum() / denominator.num_sequences
    return (inside.sum(1) / settings.max_length).sum() / denominator.num_sequences


def _measure(
    tokens: _Tokens, ratio: torch.Tensor, advantage_B1: torch.Tensor, weight: torch.Tensor, *, settings: LossSettings
) -> LossStats:
    """Count what the loss met."""
    mask, policy, old = tokens.mask, tokens.policy, tokens.old
    num_tokens = mask.sum()
    sums = {
        "num_tokens": num_tokens,
        "num_sequences": mask.any(1).sum(),
        "empty_sequences": (~mask.any(1)).sum(),
        "clip_low": (mask & (advantage_B1 < 0) & (ratio < 1.0 - settings.epsilon_low)).sum(),
        "clip_high": (mask & (advantage_B1 > 0) & (ratio > 1.0 + settings.epsilon_high)).sum(),
        "ratio": (ratio * mask).double().sum(),
        "ratio_max": (ratio * mask).max() if mask.numel() else num_tokens,
        "k3_old_policy": k3(old, policy).double().sum(),
    }
    if settings.delta is not None:
        sums["clip_dual"] = (mask & (advantage_B1 < 0) & (ratio > settings.delta)).sum()
        sums["dual_tokens"] = num_tokens
    if tokens.entropy is not None:
        sums["entropy"], sums["entropy_tokens"] = tokens.entropy.double().sum(), num_tokens
    if tokens.ref is not None:
        sums["kl_tokens"] = num_tokens
        sums.update({k.__name__: k(policy, tokens.ref).double().sum() for k in (k1, k2, k3)})
    if tokens.sampler is not None:
        sums["mismatch_tokens"] = num_tokens
        sums["k3_sampler_old"] = k3(tokens.sampler, old).double().sum()
    if settings.rollout_is != "none":
        counted = mask if weight.shape[1] == mask.shape[1] else mask.any(1, keepdim=True)
        kept = torch.where(counted, weight, torch.zeros_like(weight)).double()
        sums["num_weights"] = counted.sum()
        sums["weight"], sums["weight_squared"] = kept.sum(), (kept**2).sum()
    # one transfer from the device instead of one per sum
    values = torch.stack([value.double() for value in sums.values()]).tolist()
    return LossStats(**dict(zip(sums, values, strict=True)))
