"""The training phase of a step: mini-batches of whole groups, one optimizer update each.

Denominators are counted over the whole mini-batch before its first micro-batch, so that how it is cut
up never changes the loss. Groups whose advantages are all zero give no gradient at beta = 0: they are
not computed, but their tokens stay in the denominator.

Old log-probabilities: the sampler is the trainer's own module in the same precision, so what it
reported stands for the policy before the step's first update; the first update itself uses its own
detached log-probabilities and never leaves ratio 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from agentrl_cli.config.schema import GrpoConfig, OptimConfig
from agentrl_cli.errors import TrainingError
from agentrl_cli.grpo.loss import Denominator, LossSettings, LossStats, policy_loss
from agentrl_cli.training.forward import GroupBatch, build_group_batch, score_tokens
from agentrl_cli.training.optimizer import step_optimizer
from agentrl_cli.training.sampling import Group
from agentrl_cli.types import Trajectory

LogpById = Mapping[str, torch.Tensor]
"""Per trajectory id: log-probabilities [T] of its tokens after the prompt."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What is fixed for all updates of one step."""

    loss: LossSettings
    beta: float
    first_update: int
    """Number of the step's first update in the whole run."""
    total_updates: int
    """Updates of the whole run, for the learning-rate schedule."""
    pad_id: int


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What the updates of a step came to."""

    stats: LossStats
    """Sums over all updates of the step."""
    last_stats: LossStats
    """Sums over the last update alone."""
    losses: list[float]
    grad_norms: list[float]
    learning_rate: float
    num_updates: int


def train_on_groups(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    groups: Sequence[Group],
    *,
    plan: StepPlan,
    config: GrpoConfig,
    optim: OptimConfig,
    ref_logp: LogpById | None = None,
) -> UpdateResult:
    """Run the updates of a step over its groups.

    Raises:
        TrainingError: loss or gradient is not finite; that update was not applied.
    """
    minibatches = split_groups(groups, config.num_minibatches)
    model.train()
    total, last = LossStats.zero(), LossStats.zero()
    losses: list[float] = []
    norms: list[float] = []
    rate = 0.0
    for epoch in range(config.num_epochs):
        for number, minibatch in enumerate(minibatches):
            is_first = epoch == 0 and number == 0
            loss, stats = _accumulate(model, minibatch, plan=plan, config=config, is_first=is_first, ref_logp=ref_logp)
            if stats is None:
                continue
            norm, rate = step_optimizer(
                model, optimizer, optim, update=plan.first_update + len(losses), total=plan.total_updates
            )
            total, last = total + stats, stats
            losses.append(loss)
            norms.append(norm)
    model.eval()
    return UpdateResult(total, last, losses, norms, rate, len(losses))


def split_groups(groups: Sequence[Group], num_minibatches: int) -> list[list[Group]]:
    """Cut the groups into at most `num_minibatches` parts whose sizes differ by one at most."""
    parts = min(num_minibatches, len(groups))
    bounds = [len(groups) * i // parts for i in range(parts + 1)] if parts else []
    return [list(groups[a:b]) for a, b in pairwise(bounds)]


def cut_micro_batches(groups: Sequence[Group], max_tokens: int) -> list[list[Group]]:
    """Cut groups into micro-batches of at most `max_tokens` padded tokens (a single larger group stands alone).

    Groups are sorted by their longest continuation, so that little is padded.
    """
    batches: list[list[Group]] = []
    widest, rows, prompts, longest_prompt = 0, 0, 0, 0
    for group in sorted(groups, key=lambda g: (max(len(t.ids) for t in g), g[0].id)):
        widest = max(widest, *(len(t.ids) for t in group))
        longest_prompt = max(longest_prompt, len(group[0].prompt_ids))
        cost = widest * (rows + len(group)) + longest_prompt * (prompts + 1)
        if batches and cost <= max_tokens:
            batches[-1].append(group)
            rows, prompts = rows + len(group), prompts + 1
        else:
            batches.append([group])
            widest, rows, prompts = max(len(t.ids) for t in group), len(group), 1
            longest_prompt = len(group[0].prompt_ids)
    return batches


def _accumulate(
    model: torch.nn.Module,
    minibatch: Sequence[Group],
    *,
    plan: StepPlan,
    config: GrpoConfig,
    is_first: bool,
    ref_logp: LogpById | None,
) -> tuple[float, LossStats | None]:
    """Run forward and backward over one mini-batch; returns its loss and sums, None if nothing can teach."""
    members = [t for group in minibatch for t in group]
    denominator = Denominator(
        num_tokens=sum(t.num_generated for t in members),
        num_sequences=sum(t.num_generated > 0 for t in members),
    )
    active = [g for g in minibatch if plan.beta > 0 or any(t.advantage != 0.0 for t in g)]
    if not active or not denominator.num_tokens:
        return 0.0, None
    num_computed = sum(t.num_generated for group in active for t in group)
    # tokens without a signal can't be clipped, but they count in every share
    loss_sum, stats = 0.0, LossStats(skipped_tokens=float(denominator.num_tokens - num_computed))
    for groups in cut_micro_batches(active, config.micro_batch_tokens):
        rows = [t for group in groups for t in group]
        batch = build_group_batch(rows, plan.pad_id)
        scores = score_tokens(model, batch, temperature=config.temperature)
        sampler_logp = _pad([torch.tensor(t.sampler_logp) for t in rows], like=batch)
        output = policy_loss(
            scores.logp,
            scores.logp.detach() if is_first else sampler_logp,
            torch.tensor([t.advantage for t in rows], device=batch.ids.device),
            batch.mask,
            settings=plan.loss,
            denominator=denominator,
            sampler_logp_BT=sampler_logp if is_first or plan.loss.rollout_is != "none" else None,
            ref_logp_BT=None if ref_logp is None else _pad([ref_logp[t.id] for t in rows], like=batch),
            entropy_BT=scores.entropy,
            beta=plan.beta,
        )
        if not torch.isfinite(output.loss):
            raise TrainingError(
                f"the loss is {float(output.loss.detach())}",
                hint="lower optim.learning_rate; `agentrl diagnose` names the step",
            )
        output.loss.backward()  # type: ignore[no-untyped-call]
        loss_sum += float(output.loss.detach())
        stats = stats + output.stats
    return loss_sum, stats


def loss_settings(config: GrpoConfig, *, epsilon_high: float, longest: int) -> LossSettings:
    """Return the settings of the loss at a step.

    Args:
        epsilon_high: Of this step.
        longest: `agent.max_completion_length`, the L_max of Dr.GRPO's mean.
    """
    # the sampler is the trainer's own module, so `auto` needs no correction
    rollout_is = "none" if config.rollout_is == "auto" else config.rollout_is
    return LossSettings(
        loss_agg_mode=config.loss_agg_mode,
        epsilon_low=config.epsilon_low,
        epsilon_high=epsilon_high,
        delta=config.delta,
        kl_estimator=config.kl_estimator,
        rollout_is=rollout_is,
        rollout_is_threshold=config.rollout_is_threshold,
        max_length=longest,
    )


@torch.no_grad()
def reference_logps(
    model: torch.nn.Module, groups: Sequence[Group], *, config: GrpoConfig, pad_id: int
) -> dict[str, torch.Tensor]:
    """Return the reference's log-probabilities of every trajectory, by its id."""
    result: dict[str, torch.Tensor] = {}
    for micro_batch in cut_micro_batches(groups, config.micro_batch_tokens):
        rows: list[Trajectory] = [t for group in micro_batch for t in group]
        batch = build_group_batch(rows, pad_id)
        logp = score_tokens(model, batch, temperature=config.temperature, with_entropy=False).logp
        for row, trajectory in zip(logp, rows, strict=True):
            result[trajectory.id] = row[: len(trajectory.ids)].cpu()
    return result


def _pad(rows: Sequence[torch.Tensor], *, like: GroupBatch) -> torch.Tensor:
    """Right-pad rows of log-probabilities with 0 to the batch's shape [B, T]."""
    padded = torch.zeros(like.ids.shape, dtype=torch.float32)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded.to(like.ids.device)
