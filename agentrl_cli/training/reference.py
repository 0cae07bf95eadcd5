"""The frozen reference policy: the weights that the run started from."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from agentrl_cli.config.schema import Config
from agentrl_cli.sampler.loading import Policy, is_adapter_checkpoint, load_policy
from agentrl_cli.training.sampling import Group
from agentrl_cli.training.update import reference_logps


class Reference:
    """Log-probabilities under the starting weights.

    With fresh adapters the reference is the model with its adapters switched off; otherwise it is a
    second copy of the weights, loaded from where the run started.
    """

    def __init__(self, config: Config, policy: Policy, *, is_resumed: bool) -> None:
        self._config = config.grpo
        starts_fresh = config.model.lora is not None and not is_adapter_checkpoint(config.model.path)
        self._adapters: Any = policy.model if starts_fresh else None
        if self._adapters is not None:
            self._model: torch.nn.Module = policy.model
        elif is_resumed:
            self._model = load_policy(config.model).model
        else:
            self._model = copy.deepcopy(policy.model)
        if self._adapters is None:
            self._model.requires_grad_(False)

    @classmethod
    def if_needed(cls, config: Config, policy: Policy, *, is_resumed: bool) -> Reference | None:
        """Return a reference if any setting reads it; beta = 0 without monitoring loads none."""
        grpo = config.grpo
        needed = grpo.beta > 0 or grpo.kl_monitor_every > 0 or grpo.entropy_control.enabled
        return cls(config, policy, is_resumed=is_resumed) if needed else None

    def logps(self, groups: Sequence[Group], *, pad_id: int) -> dict[str, torch.Tensor]:
        """Return log-probabilities [T] of each trajectory's tokens after the prompt, by trajectory id."""
        context = self._adapters.disable_adapter() if self._adapters is not None else nullcontext()
        with context:
            return reference_logps(self._model, groups, config=self._config, pad_id=pad_id)
