"""A controller that moves beta so that the policy's entropy stays between two targets.

Once a step: with the moving average of entropy below `target_low`, beta shrinks by a tenth (the pull
towards the reference loosens), above `target_high` it grows by a tenth, within [beta_min, beta_max].
With relative targets the run's own level, the median of steps 3 to 12, is the unit, and nothing moves
before step 12. All state is explicit, so that a resumed run goes on exactly.
"""

from __future__ import annotations

import statistics
from typing import Any

from agentrl_cli.config.schema import EntropyControlConfig

BASELINE_STEPS = range(3, 13)
"""Steps whose median is the baseline."""
_SHRINK, _GROW = 0.9, 1.1


class EntropyController:
    """Holds beta, the moving average of entropy and the baseline."""

    def __init__(self, config: EntropyControlConfig, *, beta: float) -> None:
        self._config = config
        self.beta = beta
        self._average: float | None = None
        self._baseline: list[float] = []

    def observe(self, step: int, entropy: float) -> None:
        """Take in the entropy of a step (from 1, in nats per token) and adjust beta for the next one."""
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
        return {"beta": self.beta, "average": self._average, "baseline": list(self._baseline)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a stored state."""
        self.beta, self._average = state["beta"], state["average"]
        self._baseline = list(state["baseline"])
