"""What the loss met, as sums and counts that add up over micro-batches, updates and ranks.

Means are taken once, at the end, by `finalise_stats`:

    clip_ratio/low_mean    share of generated tokens with A < 0 and r < 1 - epsilon_low
    clip_ratio/high_mean   share of generated tokens with A > 0 and r > 1 + epsilon_high
    clip_ratio/dual_mean   share of generated tokens with A < 0 and r > delta; only with `delta`
    ratio/mean, ratio/max  of policy / old over generated tokens
    entropy                of the policy, nats per token
    kl, kl_k1, kl_k2       estimates of KL(policy || reference): k3, k1, k2; nats per token
    kl_step                k3 of KL(old || policy) over the step's last update; nats per token
    mismatch_kl            k3 of KL(sampler || old); nats per token
    rollout_is/mean        of the importance weights, per token or per trajectory as they are
    rollout_is/ess         effective sample share of the weights, (sum w)^2 / (N sum w^2), 1 is best
    empty_sequences        trajectories without a generated token, which no loss reads

Tokens of zero-signal groups that were never computed can't be clipped: they count in the clip shares,
and in nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class LossStats:
    """Sums over generated tokens. Counts that end in `_tokens` are 0 where the sum was not measured."""

    num_tokens: float = 0.0
    skipped_tokens: float = 0.0
    """Tokens of zero-signal groups that the caller did not compute; it adds them."""
    num_sequences: float = 0.0
    empty_sequences: float = 0.0
    clip_low: float = 0.0
    clip_high: float = 0.0
    clip_dual: float = 0.0
    dual_tokens: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0
    """The one that is a maximum, not a sum."""
    entropy: float = 0.0
    entropy_tokens: float = 0.0
    k3_old_policy: float = 0.0
    kl_tokens: float = 0.0
    k1: float = 0.0
    k2: float = 0.0
    k3: float = 0.0
    mismatch_tokens: float = 0.0
    k3_sampler_old: float = 0.0
    num_weights: float = 0.0
    weight: float = 0.0
    weight_squared: float = 0.0

    @classmethod
    def zero(cls) -> LossStats:
        """Return sums over nothing."""
        return cls()

    def __add__(self, other: LossStats) -> LossStats:
        values = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return LossStats(**{**values, "ratio_max": max(self.ratio_max, other.ratio_max)})


def finalise_stats(stats: LossStats, *, last_update: LossStats | None = None) -> dict[str, float]:
    """Return the metrics that sums define; one that nothing was counted for is left out.

    Args:
        stats: Sums over all updates of a step.
        last_update: Sums over the last of several updates, for `kl_step`; None where a step has one, whose
            policy is the old one.
    """
    metrics: dict[str, float] = {}
    if stats.num_tokens:
        all_tokens = stats.num_tokens + stats.skipped_tokens
        metrics["clip_ratio/low_mean"] = stats.clip_low / all_tokens
        metrics["clip_ratio/high_mean"] = stats.clip_high / all_tokens
        metrics["ratio/mean"] = stats.ratio / stats.num_tokens
        metrics["ratio/max"] = stats.ratio_max
        metrics["empty_sequences"] = stats.empty_sequences
    if stats.dual_tokens:
        metrics["clip_ratio/dual_mean"] = stats.clip_dual / (stats.dual_tokens + stats.skipped_tokens)
    if stats.entropy_tokens:
        metrics["entropy"] = stats.entropy / stats.entropy_tokens
    if stats.kl_tokens:
        metrics["kl"] = stats.k3 / stats.kl_tokens
        metrics["kl_k1"] = stats.k1 / stats.kl_tokens
        metrics["kl_k2"] = stats.k2 / stats.kl_tokens
    if stats.mismatch_tokens:
        metrics["mismatch_kl"] = stats.k3_sampler_old / stats.mismatch_tokens
    if stats.num_weights:
        metrics["rollout_is/mean"] = stats.weight / stats.num_weights
    if stats.weight_squared:
        metrics["rollout_is/ess"] = stats.weight**2 / (stats.num_weights * stats.weight_squared)
    if last_update is not None and last_update.num_tokens:
        metrics["kl_step"] = last_update.k3_old_policy / last_update.num_tokens
    return metrics
