"""Settings of GRPO-TCR and its variants: the [grpo] section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agentrl_cli.config.base import (
    Fraction,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
    Unsettable,
)

PROGRESSIVE_START = 0.35
"""Where the progressive schedule begins; it falls by 0.15 over the run, to 0.25 at the lowest."""
SEQUENCE_EPSILON_MAX = 0.05
"""GSPO clips the mean log-ratio of a sequence; its ranges are 3e-4 / 4e-4 (arXiv 2507.18071, section 5.1)."""


class FilterGroupsConfig(Section):
    """Dynamic sampling: keep only groups whose accuracy is mixed, refill the batch (arXiv 2503.14476, 3.2)."""

    enabled: bool = False
    """Keep only mixed groups."""
    max_extra_rounds: Positive = 2
    """Refill rounds of at most one batch each before the step goes on with what it has."""


class OverlongConfig(Section):
    """Soft penalty near the length limit (arXiv 2503.14476, eq. 13)."""

    enabled: bool = True
    """Add the length term."""
    max_tokens: NonNegative = 0
    """L_max; 0 takes `agent.max_completion_length`."""
    cache_tokens: Positive = 4096
    """L_cache: width of the ramp below L_max on which the penalty falls from 0 to -1."""
    count: Literal["generated", "all"] = "generated"
    """What the ramp counts: generated tokens, or tool output too."""


class EpsilonHighSchedule(Section):
    """How `epsilon_high` moves over the run."""

    kind: Literal["constant", "linear", "progressive"] = "constant"
    """constant: `grpo.epsilon_high`. linear: from `start` to `end`. progressive: max(0.35 - 0.15 step/total, 0.25)."""
    start: Annotated[float | None, Unsettable] = None
    """First value of `linear`."""
    end: Annotated[float | None, Unsettable] = None
    """Last value of `linear`."""

    @model_validator(mode="after")
    def _ends_belong_to_linear(self) -> EpsilonHighSchedule:
        if self.kind == "linear" and (self.start is None or self.end is None):
            raise ValueError("kind='linear' needs start and end")
        if self.kind != "linear" and (self.start is not None or self.end is not None):
            raise ValueError(f"start and end have no effect with kind={self.kind!r}: remove them or set kind='linear'")
        return self


class EntropyControlConfig(Section):
    """Moves beta so that the policy's entropy stays between two targets. Needs a reference model."""

    enabled: bool = False
    """Adjust beta once a step at most."""
    relative: bool = True
    """Targets are multiples of the run's own baseline (median of steps 3-12; inactive before step 12)."""
    target_low: PositiveFloat = 0.7
    """Below it, beta shrinks by a tenth."""
    target_high: PositiveFloat = 1.3
    """Above it, beta grows by a tenth."""
    beta_min: PositiveFloat = 1e-4
    """Lower bound of beta."""
    beta_max: PositiveFloat = 0.05
    """Upper bound of beta."""
    ema_decay: Fraction = 0.9
    """Weight of the past in the moving average of entropy."""

    @model_validator(mode="after")
    def _targets_in_order(self) -> EntropyControlConfig:
        if self.target_low >= self.target_high:
            raise ValueError(f"target_low={self.target_low} must lie below target_high={self.target_high}")
        if self.beta_min > self.beta_max:
            raise ValueError(f"beta_min={self.beta_min} must not exceed beta_max={self.beta_max}")
        return self


class GrpoConfig(Section):
    """GRPO-TCR: token-level loss, clip-higher, overlong reward shaping (arXiv 2510.11701)."""

    num_generations: Annotated[int, Field(ge=2)] = 16
    """G: trajectories of one problem."""
    problems_per_step: Positive = 64
    """Groups of one step."""
    num_minibatches: Positive = 4
    """Optimizer updates per pass over a step's trajectories."""
    num_epochs: Positive = 1
    """Passes over a step's trajectories."""
    micro_batch_tokens: Positive = 16384
    """Most tokens (padding included) in one forward and backward pass; changes memory and speed, not the result."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature; log-probabilities in every ratio are of logits / temperature."""
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "sequence"] = "token-mean"
    """token-mean: DAPO, the T of TCR. seq-mean-token-mean: GRPO. seq-mean-token-sum-norm: Dr.GRPO. sequence: GSPO."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """What the advantage is divided by."""
    epsilon_low: PositiveFloat = 0.2
    """Lower clip range: below a ratio of 1 - epsilon_low a token of a bad trajectory is not pushed down further."""
    epsilon_high: PositiveFloat = 0.28
    """Upper clip range (clip-higher): above a ratio of 1 + epsilon_high a token of a good trajectory is not pushed
    up further. Wider leaves rare tokens room to grow and keeps entropy up; too wide is unstable. See
    `epsilon_high_schedule` and docs/method.md."""
    epsilon_high_schedule: EpsilonHighSchedule = EpsilonHighSchedule()
    """How `epsilon_high` moves over the run."""
    delta: Annotated[float | None, Unsettable] = None
    """Dual clip of negative advantages: bound of the ratio, above 1 + epsilon_high (authors' code: 10); unset: off."""
    beta: NonNegativeFloat = 0.0
    """Weight of the KL penalty; 0 loads no reference model."""
    kl_estimator: Literal["k2", "k3"] = "k3"
    """Estimator in the loss. k1 has a gradient of mean zero, so it is logged but can't be trained on."""
    kl_monitor_every: NonNegative = 0
    """With beta 0, measure the KL to the starting weights every so many steps; 0 never loads a reference."""
    rollout_is: Literal["auto", "none", "token", "sequence"] = "auto"
    """Importance weights between sampler and trainer; auto: none when they share one module, else as the loss mode."""
    rollout_is_threshold: PositiveFloat = 2.0
    """Upper bound of those weights."""
    filter_groups: FilterGroupsConfig = FilterGroupsConfig()
    """Keep only groups whose accuracy is mixed."""
    mask_truncated: bool = False
    """Leave trajectories that ended by max_tokens out of group and loss instead of scoring them wrong."""
    overlong: OverlongConfig = OverlongConfig()
    """Soft length penalty."""
    entropy_control: EntropyControlConfig = EntropyControlConfig()
    """Controller of beta."""

    @property
    def widest_epsilon_high(self) -> float:
        """The largest `epsilon_high` that the run will train with."""
        schedule = self.epsilon_high_schedule
        if schedule.kind == "linear" and schedule.start is not None and schedule.end is not None:
            return max(schedule.start, schedule.end)
        return PROGRESSIVE_START if schedule.kind == "progressive" else self.epsilon_high

    @model_validator(mode="before")
    @classmethod
    def _sequence_has_its_own_ranges(cls, data: Any) -> Any:
        """GSPO's own defaults apply when the mode is chosen and no range is given."""
        if isinstance(data, dict) and data.get("loss_agg_mode") == "sequence":
            return {"epsilon_low": 3e-4, "epsilon_high": 4e-4, **data}
        return data

    @model_validator(mode="after")
    def _no_contradictions(self) -> GrpoConfig:
        if self.loss_agg_mode == "sequence":
            for name, value in (("epsilon_low", self.epsilon_low), ("epsilon_high", self.widest_epsilon_high)):
                if value > SEQUENCE_EPSILON_MAX:
                    raise ValueError(
                        f"{name}={value} is a token-level range; loss_agg_mode='sequence' needs at most "
                        f"{SEQUENCE_EPSILON_MAX} (default 3e-4 / 4e-4)"
                    )
            if self.rollout_is == "token":
                raise ValueError("rollout_is='token' contradicts loss_agg_mode='sequence': use 'sequence' or 'none'")
        if self.epsilon_low >= 1.0:
            raise ValueError(f"epsilon_low={self.epsilon_low} must be below 1: the ratio is never negative")
        if self.delta is not None and self.delta <= 1.0 + self.widest_epsilon_high:
            raise ValueError(f"delta={self.delta} must exceed 1 + epsilon_high = {1 + self.widest_epsilon_high}")
        if self.problems_per_step % self.num_minibatches:
            raise ValueError(
                f"problems_per_step={self.problems_per_step} must be a multiple of "
                f"num_minibatches={self.num_minibatches}"
            )
        if self.beta > 0 and self.kl_monitor_every:
            raise ValueError("kl_monitor_every has no effect with beta > 0 (KL is logged each step): set it to 0")
        control = self.entropy_control
        if control.enabled and not control.beta_min <= self.beta <= control.beta_max:
            raise ValueError(
                f"entropy_control needs beta_min <= beta <= beta_max, got {control.beta_min} <= {self.beta} <= "
                f"{control.beta_max}"
            )
        return self
