"""AdamW with weight decay on matrices only, and the learning rate of each update."""

from __future__ import annotations

import torch

from agentrl_cli.config.schema import OptimConfig
from agentrl_cli.errors import TrainingError
from agentrl_cli.grpo.schedules import learning_rate_factor


def build_optimizer(model: torch.nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Return AdamW over the trainable parameters; vectors (norms, biases) are not decayed."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.learning_rate, betas=(config.beta1, config.beta2)
    )


def step_optimizer(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, config: OptimConfig, *, update: int, total: int
) -> tuple[float, float]:
    """Apply one update at its scheduled learning rate and clear the gradients.

    Args:
        update: Number of the update in the whole run, from 0.
        total: Updates of the whole run.

    Returns:
        The gradient norm before clipping, and the learning rate used.

    Raises:
        TrainingError: the gradient is not finite; the weights are as they were.
    """
    factor = learning_rate_factor(config.schedule, update=update, total=total, warmup_frac=config.warmup_frac)
    rate = config.learning_rate * factor
    for group in optimizer.param_groups:
        group["lr"] = rate
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm))
    if not torch.isfinite(torch.tensor(norm)):
        optimizer.zero_grad(set_to_none=True)
        raise TrainingError(
            f"the gradient of update {update} is not finite (norm {norm})",
            hint="lower optim.learning_rate and begin a new run, from the last checkpoint if there is one: "
            "--set model.path=RUN/checkpoints/step-N",
        )
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm, rate
