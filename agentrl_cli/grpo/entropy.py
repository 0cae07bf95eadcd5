"""A controller that moves beta so that the policy's entropy stays between two targets.

Once a step: with the moving average of entropy below `target_low`, beta shrinks by a tenth (the pull
towards the reference loosens), above `target_high` it grows by a tenth, within [beta_min, beta_max].
With relative targets the run's own level, the median of steps 3 to 12, is the unit, and nothing moves
before step 12. All state is explicit, so that a resumed run goes on exactly.

Unsourced: that a smaller beta raises entropy. Against a reference of higher entropy it does the
opposite, so watch `entropy` and `kl` together.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

from agentrl_cli.config.schema import EntropyControlConfig

BASELINE_STEPS = range(3, 13)
"""Steps whose median is the baseline."""
_SHRINK, _GROW = 0.9, 1.1


class EntropyController:
    """Holds beta, the moving average of entropy and the baseline.

    With relative targets and no entropy observed in steps 3 to 12, there is no unit and beta never moves.
    """

    def __init__(self, config: EntropyControlConfig, *, beta: float) -> None:
        self._config = config
        self.beta = beta
        self._average: float | None = None
        self._baseline: list[float] = []
        self._last_step = 0

    def observe(self, step: int, entropy: float) -> None:
        """Take in the entropy of a step (from 1, in nats per token) and adjust beta for the next one.

        Steps come in order, each at most once; steps that trained on nothing are left out.
        """
        assert step > self._last_step, f"step {step} after step {self._last_step}: one change a step"
        assert math.isfinite(entropy), f"entropy of step {step} is {entropy}"
        self._last_step = step
        if not self._config.enabled:
            return
        decay = self._config.ema_decay
        self._average = entropy if self._average is None else decay * self._average + (1 - decay) * entropy
        if step in BASELINE_STEPS:
            self._baseline.append(entropy)
        unit = 1.0
        if self._config.relative:
            if step < BASELINE_STEPS[-1] or not self._baseline:
                return
            unit = statistics.median(self._baseline)
        if self._average < self._config.target_low * unit:
            self.beta = max(self.beta * _SHRINK, self._config.beta_min)
        elif self._average > self._config.target_high * unit:
            self.beta = min(self.beta * _GROW, self._config.beta_max)

    def state(self) -> dict[str, Any]:
        """Return the state, JSON-able."""
        return {
            "beta": self.beta,
            "average": self._average,
            "baseline": list(self._baseline),
            "last_step": self._last_step,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a stored state."""
        self.beta, self._average = state["beta"], state["average"]
        self._baseline, self._last_step = list(state["baseline"]), state["last_step"]
