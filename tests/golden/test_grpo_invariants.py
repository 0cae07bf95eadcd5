"""What must hold of the loss for any input: cuts, order, padding, masks, and where a gradient may be."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from agentrl_cli.grpo.loss import Denominator, LossSettings, LossStats, policy_loss
from agentrl_cli.grpo.stats import finalise_stats

MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "sequence")
WEIGHTS = ("none", "token", "sequence")
COMBINATIONS = [
    (mode, weight) for mode, weight in itertools.product(MODES, WEIGHTS) if (mode, weight) != ("sequence", "token")
]
SETTINGS = LossSettings(
    loss_agg_mode="token-mean",
    epsilon_low=0.2,
    epsilon_high=0.28,
    delta=3.0,
    kl_estimator="k3",
    rollout_is="none",
    rollout_is_threshold=1.2,
    max_length=7,
)


@dataclasses.dataclass(frozen=True)
class Batch:
    """Inputs of the loss, [B, T] in float64."""

    policy: torch.Tensor
    old: torch.Tensor
    sampler: torch.Tensor
    ref: torch.Tensor
    entropy: torch.Tensor
    advantage: torch.Tensor
    mask: torch.Tensor

    def map(self, change: Any) -> Batch:
        """Apply a function to every tensor."""
        return Batch(**{f.name: change(getattr(self, f.name)) for f in dataclasses.fields(self)})


def draw(seed: int, *, rows: int = 6, width: int = 7) -> Batch:
    """Draw a batch with ratios on both sides of the clip, tool tokens in the middle and one empty row."""
    generator = torch.Generator().manual_seed(seed)

    def normal(scale: float) -> torch.Tensor:
        return scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)

    old = normal(1.0) - 2
    mask = torch.rand(rows, width, generator=generator) < 0.7
    mask[0], mask[1] = True, False
    advantage = torch.randn(rows, generator=generator, dtype=torch.float64)
    return Batch(old + normal(0.4), old, old + normal(0.3), old + normal(0.5), normal(1.0).abs(), advantage, mask)


def compute(
    batch: Batch, settings: LossSettings, *, denominator: Denominator | None = None, beta: float = 0.05
) -> tuple[torch.Tensor, torch.Tensor, LossStats]:
    """Return loss, gradient [B, T] of the policy's log-probabilities, and sums."""
    policy = batch.policy.clone().requires_grad_()
    output = policy_loss(
        policy,
        batch.old,
        batch.advantage,
        batch.mask,
        settings=settings,
        denominator=denominator or count(batch),
        sampler_logp_BT=batch.sampler,
        ref_logp_BT=batch.ref,
        entropy_BT=batch.entropy,
        beta=beta,
    )
    (gradient,) = torch.autograd.grad(output.loss, policy)
    return output.loss.detach(), gradient, output.stats


def count(batch: Batch) -> Denominator:
    """Count a whole batch."""
    return Denominator(int(batch.mask.sum()), int(batch.mask.any(1).sum()))


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    """Require equality to 1e-12."""
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("mode", "weight"), COMBINATIONS)
def test_micro_batches_add_up_to_the_whole(mode: str, weight: str) -> None:
    """Loss, gradient and metrics of a batch cut anywhere are those of the whole, to 1e-12 in float64."""
    settings = dataclasses.replace(SETTINGS, loss_agg_mode=mode, rollout_is=weight)
    for seed in range(3):
        batch = draw(seed)
        loss, gradient, stats = compute(batch, settings)
        for cuts in ([1] * 6, [2, 4], [5, 1]):
            ends = list(itertools.accumulate(cuts))
            parts = [batch.map(lambda x, a=a, b=b: x[a:b]) for a, b in zip([0, *ends], ends, strict=False)]
            results = [compute(part, settings, denominator=count(batch)) for part in parts]
            close(torch.stack([r[0] for r in results]).sum(), loss)
            close(torch.cat([r[1] for r in results]), gradient)
            summed = sum((r[2] for r in results), LossStats.zero())
            assert finalise_stats(summed, last_update=summed) == pytest.approx(
                finalise_stats(stats, last_update=stats), abs=1e-12
            )


@pytest.mark.parametrize(("mode", "weight"), COMBINATIONS)
def test_order_and_padding_change_nothing(mode: str, weight: str) -> None:
    """Shuffled trajectories keep their gradients, and padding of any width and content adds nothing."""
    settings = dataclasses.replace(SETTINGS, loss_agg_mode=mode, rollout_is=weight)
    batch = draw(3)
    loss, gradient, _ = compute(batch, settings)
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    shuffled_loss, shuffled, _ = compute(batch.map(lambda x: x[order]), settings)
    close(shuffled_loss, loss)
    close(shuffled, gradient[order])
    padded_loss, padded, _ = compute(batch.map(pad_right), settings)
    close(padded_loss, loss)
    close(padded[:, :7], gradient)
    assert not padded[:, 7:].any()


def pad_right(x: torch.Tensor) -> torch.Tensor:
    """Append three columns: masked out, or full of a number that must not be read."""
    if x.ndim == 1:
        return x
    fill = torch.zeros if x.dtype is torch.bool else torch.ones
    return torch.cat([x, fill(len(x), 3, dtype=x.dtype) * 13], dim=1).to(x.dtype)


@pytest.mark.parametrize(("mode", "weight"), COMBINATIONS)
@pytest.mark.parametrize("junk", [5.0, float("nan"), float("-inf")])
def test_tool_tokens_never_enter(mode: str, weight: str, junk: float) -> None:
    """Whatever stands where the mask is 0, loss, metrics and gradient are the same, and the gradient there is 0."""
    settings = dataclasses.replace(SETTINGS, loss_agg_mode=mode, rollout_is=weight)
    batch = draw(4)
    loss, gradient, stats = compute(batch, settings)
    assert not gradient[~batch.mask].any()

    def spoil(x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(~batch.mask, junk) if x.ndim == 2 and x.dtype is not torch.bool else x

    spoilt_loss, spoilt, spoilt_stats = compute(batch.map(spoil), settings)
    close(spoilt_loss, loss)
    close(spoilt, gradient)
    assert spoilt_stats == stats


@pytest.mark.parametrize("mode", MODES)
def test_zero_advantages_give_zero_gradient(mode: str) -> None:
    """An all-equal group (advantage 0) moves nothing at beta 0, wherever its ratios are."""
    batch = dataclasses.replace(draw(5), advantage=torch.zeros(6, dtype=torch.float64))
    loss, gradient, _ = compute(batch, dataclasses.replace(SETTINGS, loss_agg_mode=mode), beta=0.0)
    assert float(loss) == 0.0
    assert not gradient.any()


def gradient_of(advantage: float, ratio: float, *, mode: str = "token-mean", delta: float | None = None) -> float:
    """Return d loss / d policy_logp of a single token."""
    one = torch.zeros(1, 1, dtype=torch.float64)
    batch = Batch(torch.full_like(one, ratio).log(), one, one, one, one, torch.tensor([advantage]).double(), one == 0)
    settings = dataclasses.replace(SETTINGS, loss_agg_mode=mode, delta=delta)
    return float(compute(batch, settings, beta=0.0)[1])


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "sequence"])
def test_the_clip_cuts_only_where_the_move_is_already_made(mode: str) -> None:
    """Gradients are exactly 0 beyond the clip on the side moved to, and -r A everywhere else."""
    # d(-r A) / d log p = -r A; a token alone is its own mean
    assert gradient_of(1.0, 1.5, mode=mode) == 0.0
    assert gradient_of(-1.0, 0.5, mode=mode) == 0.0
    assert gradient_of(1.0, 0.5, mode=mode) == pytest.approx(-0.5)  # corrects a ratio on the wrong side
    assert gradient_of(-1.0, 1.5, mode=mode) == pytest.approx(1.5)  # likewise
    assert gradient_of(1.0, 1.1, mode=mode) == pytest.approx(-1.1)
    assert gradient_of(-1.0, 0.9, mode=mode) == pytest.approx(0.9)


def test_dual_clip_cuts_the_gradient_beyond_delta() -> None:
    """With a negative advantage and a ratio above delta the gradient is exactly 0, below it is not."""
    assert gradient_of(-1.0, 3.5, delta=3.0) == 0.0
    assert gradient_of(-1.0, 2.5, delta=3.0) == pytest.approx(2.5)
    assert gradient_of(-1.0, 3.5) == pytest.approx(3.5)


def test_only_the_policy_carries_a_gradient() -> None:
    """Old, sampler and reference log-probabilities are constants even if they were computed with a graph."""
    batch = draw(6)
    others = [x.clone().requires_grad_() for x in (batch.old, batch.sampler, batch.ref)]
    policy = batch.policy.clone().requires_grad_()
    output = policy_loss(
        policy,
        others[0],
        batch.advantage,
        batch.mask,
        settings=dataclasses.replace(SETTINGS, rollout_is="token"),
        denominator=count(batch),
        sampler_logp_BT=others[1],
        ref_logp_BT=others[2],
        beta=0.1,
    )
    output.loss.backward()
    assert policy.grad is not None
    assert [x.grad for x in others] == [None, None, None]
