"""Checkpoints: a Hugging Face folder plus what a resumed run needs, complete or not there at all.

Nothing random is stored: every seed is derived from the run's seed and the step (`agentrl_cli.seeding`),
so the step number, the position in the data and the optimizer are the whole state.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from agentrl_cli.errors import RunError, TrainingError
from agentrl_cli.files import atomic_dir
from agentrl_cli.sampler.loading import Policy

_OPTIMIZER = "optimizer.pt"
_STATE = "trainer_state.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class TrainerState:
    """Where a run stands after a step."""

    step: int
    update: int
    """Optimizer updates applied so far."""
    cursor: int
    """Position in the endless stream of problems or rows."""
    extra: dict[str, Any]
    """State of controllers, JSON-able."""


def save_checkpoint(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer, state: TrainerState) -> None:
    """Write a checkpoint folder; a kill at any moment leaves either all of it or nothing of that name.

    Raises:
        TrainingError: it can't be written, as on a full disk; the checkpoints before it stand.
    """
    try:
        with atomic_dir(folder) as partial:
            policy.model.save_pretrained(partial)
            policy.tokenizer.save_pretrained(partial)
            torch.save(optimizer.state_dict(), partial / _OPTIMIZER)
            (partial / _STATE).write_text(json.dumps({"schema": SCHEMA, **asdict(state)}, allow_nan=False))
    except (OSError, SafetensorError, RuntimeError) as error:  # torch's writer raises RuntimeError
        raise TrainingError(
            f"the checkpoint {str(folder)!r} can't be written: {error}",
            hint="the checkpoints before it stand; make room on the disk (agentrl runs prune), then --resume the run",
        ) from error


def load_trainer_state(folder: Path, optimizer: torch.optim.Optimizer) -> TrainerState:
    """Restore the optimizer and return where the run stood."""
    state = read_trainer_state(folder)
    optimizer.load_state_dict(torch.load(folder / _OPTIMIZER, weights_only=True, map_location="cpu"))
    return state


def read_trainer_state(folder: Path) -> TrainerState:
    """Read the position of a checkpoint.

    Raises:
        RunError: the folder is no checkpoint of ours or of a newer version.
    """
    try:
        values = json.loads((folder / _STATE).read_text())
    except (OSError, ValueError) as error:
        raise RunError(f"{str(folder)!r} is not a checkpoint that can be resumed: {error}") from error
    if values.pop("schema") != SCHEMA:
        raise RunError(f"the checkpoint {str(folder)!r} was written by another version of agentrl")
    return TrainerState(**values)
