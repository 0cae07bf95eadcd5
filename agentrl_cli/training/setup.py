"""What sft and rl both do before their first step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from agentrl_cli.config.digest import changed_settings, config_digest, input_files
from agentrl_cli.config.load import resolved_dump
from agentrl_cli.config.schema import Config, ModelConfig
from agentrl_cli.errors import ConfigError, RunError
from agentrl_cli.runs import RunFolder, step_of

LESS_MEMORY = "the lengths; model.gradient_checkpointing=true and adapters (model.lora) need less, too"
"""What helps in training once the micro-batches are small."""


def check_trainable(config: ModelConfig) -> None:
    """Refuse settings under which training would silently not learn."""
    if config.dtype == "bfloat16" and config.lora is None:
        raise ConfigError(
            "model.dtype='bfloat16' without adapters can't be trained: small updates round to nothing",
            hint="set model.dtype=float32, or train adapters with model.lora",
        )


def require_no_dropout(config: ModelConfig) -> None:
    """Refuse adapter dropout for rl: ratios need the same log-probabilities in each pass."""
    if config.lora is not None and config.lora.dropout:
        raise ConfigError(f"model.lora.dropout={config.lora.dropout} breaks the ratios of rl", hint="set it to 0")


def set_threads(threads: int) -> None:
    """Set torch's CPU threads; 0 leaves torch's choice."""
    if threads:
        torch.set_num_threads(threads)


def say_resumed(run: RunFolder, checkpoint: Path, *, total: int) -> str:
    """Return where a resumed run goes on, for its user."""
    step = step_of(checkpoint)
    if step >= total:
        return f"all {total} steps of {run.path} were done already"
    return f"{run.path} goes on after step {step} of {total}"


def open_run(
    config: Config, *, kind: str, out: Path | None, resume: Path | None, inputs: Sequence[Path] = ()
) -> tuple[RunFolder, Path | None]:
    """Create a run folder, or open the one to resume and cut it back to its last complete checkpoint.

    Args:
        inputs: Files that the run reads and no setting names; a resumed run needs the same content.

    Returns:
        The run, and the checkpoint to go on from (None for a new run, or one killed before its first).

    Raises:
        RunError: the folder can't be created or resumed, or its settings differ.
    """
    digest = config_digest(config, inputs=inputs)
    if resume is None:
        return RunFolder.create(config, kind=kind, out=out, digest=digest), None
    run = RunFolder.open(resume)
    if run.digest != digest:
        names = changed_settings(run.settings, resolved_dump(config)) or [*input_files(config), *map(str, inputs)]
        run.close()
        raise RunError(
            f"the settings or files differ from those that {str(resume)!r} began with: {', '.join(names)}",
            hint=f"leave them as they were (agentrl {run.kind} --resume {resume}), or begin a new run from a "
            "checkpoint: --set model.path=RUN/checkpoints/step-N",
        )
    checkpoint = run.latest_checkpoint()
    run.truncate_after(step_of(checkpoint) if checkpoint else 0)
    return run, checkpoint
