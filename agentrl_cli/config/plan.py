"""What the settings amount to in trajectories, tokens, memory, disk and time, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentrl_cli.config.plan_cost import (
    checkpoint_bytes,
    device_flops,
    run_bytes,
    step_seconds,
    token_budget,
    trajectory_bytes,
)
from agentrl_cli.config.plan_machine import Machine, read_machine
from agentrl_cli.config.plan_memory import (
    GIB,
    MemoryEstimate,
    kv_cache_bytes,
    num_trained,
    rl_memory,
    sft_memory,
    weight_bytes,
)
from agentrl_cli.config.plan_models import FoundModel, ModelFacts, find_model
from agentrl_cli.config.schema import Config, TransformersSamplerConfig

UNKNOWN_MODEL = "unknown model: give a local path (--set model.path=DIR) to have memory, disk and time estimated"
NEEDS_GPU_ABOVE = 10**9
"""Parameters that no CPU trains in useful time."""
DOWNLOAD_VALUE_BYTES = 2
"""Checkpoints are published in bfloat16."""
FILE_SUFFIXES = (".jsonl", ".json", ".parquet", ".csv")
"""Sources of problems that are files; others are names of data sets."""


def make_plan(config: Config, machine: Machine | None = None) -> dict[str, Any]:
    """Return what a run under these settings needs, and in `problems` what stands against it here.

    Token counts, memory, disk and time are upper bounds: every prompt and completion at its limit.

    Args:
        config: The settings; `rl` is planned, with the peak of `sft` beside it.
        machine: What to hold the plan against; this machine if not given.
    """
    machine = machine or read_machine()
    model = find_model(config.model.path, hub_cache=machine.hub_cache)
    facts = model.facts
    return {
        "batch": batch_arithmetic(config),
        "tokens": token_budget(config),
        "model": _describe_model(config, model),
        "memory_gib": _describe_memory(config, facts, machine) if facts else {},
        "disk_gib": _describe_disk(config, facts) if facts else {},
        "time": _describe_time(config, facts, machine) if facts else {},
        "problems": find_problems(config, model, machine),
    }


def batch_arithmetic(config: Config) -> dict[str, int | float]:
    """Return the sizes that `rl`, `sft` and `eval` work out from the settings.

    Tokens are upper bounds: every prompt and every completion at its limit.
    """
    grpo, agent = config.grpo, config.agent
    trajectories = grpo.problems_per_step * grpo.num_generations
    updates = grpo.num_minibatches * grpo.num_epochs
    row_tokens = config.data.max_prompt_length + agent.max_completion_length
    rounds = 1 + (grpo.filter_groups.max_extra_rounds if grpo.filter_groups.enabled else 0)
    return {
        "rl_trajectories_per_step": trajectories,
        "rl_most_sampled_per_step": trajectories * rounds,
        "rl_updates_per_step": updates,
        "rl_trajectories_per_update": trajectories // grpo.num_minibatches,
        "rl_updates": updates * config.run.steps,
        "rl_trajectories": trajectories * config.run.steps,
        "row_tokens": row_tokens,
        "rl_tokens_per_step": trajectories * row_tokens,
        "sft_rows_per_update": config.sft.batch_size,
        "eval_trajectories": config.eval.num_problems * config.eval.num_samples,
    }


def find_problems(config: Config, model: FoundModel, machine: Machine) -> list[str]:
    """Return what this machine or the engine can't honour, a sentence each with what to change."""
    problems = _engine_problems(config)
    path = config.model.path
    if not model.is_here and machine.is_offline:
        problems.append(f"model {path!r} is not on this machine and downloads are off: --set model.path=DIR")
    for name, source in (("train", config.data.train), ("eval", config.data.eval)):
        if Path(source).suffix in FILE_SUFFIXES and not Path(source).exists():
            problems.append(f"data.{name}={source!r} does not exist")
    if model.facts is None:
        return [*problems, UNKNOWN_MODEL]
    if not machine.gpus and model.facts.num_parameters > NEEDS_GPU_ABOVE:
        problems.append(f"no CUDA device: {model.facts.num_parameters / 1e9:.1f} billion parameters need one")
    else:
        problems += _memory_problems(config, model.facts, machine)
    disk = run_bytes(config, model.facts)
    if disk > machine.free_disk_bytes:
        problems.append(
            f"rl may write {_gib(disk):g} GiB and {_gib(machine.free_disk_bytes):g} GiB are free: lower "
            "run.keep_checkpoints or set run.keep_trajectories=false"
        )
    return problems


def download_bytes(model: FoundModel) -> int:
    """Return what fetching the model would take; 0 if it is here or its size is unknown."""
    return 0 if model.is_here or model.facts is None else model.facts.num_parameters * DOWNLOAD_VALUE_BYTES


def _engine_problems(config: Config) -> list[str]:
    """Return the settings that `rl` or `sft` would refuse with this engine."""
    problems = []
    if not isinstance(config.sampler, TransformersSamplerConfig):
        problems.append(f"rl refuses sampler.type={config.sampler.type!r}: it has no token ids")
    if config.model.dtype == "bfloat16" and config.model.lora is None:
        problems.append("rl and sft refuse model.dtype='bfloat16' without model.lora: small updates round to nothing")
    if config.model.lora is not None and config.model.lora.dropout:
        problems.append("rl refuses model.lora.dropout above 0: ratios need equal log-probabilities in each pass")
    return problems


def _memory_problems(config: Config, facts: ModelFacts, machine: Machine) -> list[str]:
    """Return where a command needs more than the device has, and what would fit."""
    problems = []
    estimate = rl_memory(config, facts)
    if estimate.peak > machine.device_bytes:
        problems.append(f"rl {_exceeds(estimate, machine)}: {_advice(config, facts, estimate, machine)}")
    if (sft := sft_memory(config, facts)).peak > machine.device_bytes:
        problems.append(f"sft {_exceeds(sft, machine)}: lower sft.micro_batch_tokens and sft.max_length")
    return problems


def _exceeds(estimate: MemoryEstimate, machine: Machine) -> str:
    needed, there = _gib(estimate.peak), _gib(machine.device_bytes)
    return f"may need {needed:g} GiB on {machine.device} ({machine.device_name}), which has {there:g} GiB"


def _advice(config: Config, facts: ModelFacts, estimate: MemoryEstimate, machine: Machine) -> str:
    """Return the setting that would make `rl` fit."""
    fixed = estimate.process + estimate.weights + estimate.reference + estimate.gradients + estimate.adam
    if fixed > machine.device_bytes:
        return f"weights and optimizer alone take {_gib(fixed):g} GiB; train adapters (model.lora) or a smaller model"
    left = machine.device_bytes - (estimate.peak - estimate.kv_cache)
    rows = int(left // (kv_cache_bytes(config, facts) / _max_batch(config))) if left > 0 else 0
    if rows:
        return f"sampler.max_batch={rows} would fit"
    checkpointing = "" if config.model.gradient_checkpointing else ", set model.gradient_checkpointing=true"
    return f"lower agent.max_completion_length and grpo.num_generations{checkpointing}"


def _max_batch(config: Config) -> int:
    return config.sampler.max_batch if isinstance(config.sampler, TransformersSamplerConfig) else 1


def _describe_model(config: Config, model: FoundModel) -> dict[str, Any]:
    if model.facts is None:
        return {"path": config.model.path, "is_here": model.is_here}
    return {
        "path": config.model.path,
        "is_here": model.is_here,
        "download_gib": _gib(download_bytes(model)),
        "parameters": model.facts.num_parameters,
        "trained_parameters": num_trained(config, model.facts),
        "weights_gib": _gib(weight_bytes(config, model.facts)),
    }


def _describe_memory(config: Config, facts: ModelFacts, machine: Machine) -> dict[str, Any]:
    estimate = rl_memory(config, facts)
    parts = ("process", "weights", "reference", "gradients", "adam", "kv_cache", "activations", "head")
    return {
        "device": machine.device_name,
        "device_has": _gib(machine.device_bytes),
        "rl_peak": _gib(estimate.peak),
        **{f"rl_{part}": _gib(getattr(estimate, part)) for part in parts},
        "sft_peak": _gib(sft_memory(config, facts).peak),
    }


def _describe_disk(config: Config, facts: ModelFacts) -> dict[str, Any]:
    return {
        "checkpoint": _gib(checkpoint_bytes(config, facts)),
        "checkpoints_kept": config.run.keep_checkpoints,
        "trajectories_per_step": _gib(trajectory_bytes(config)),
        "rl_run": _gib(run_bytes(config, facts)),
    }


def _describe_time(config: Config, facts: ModelFacts, machine: Machine) -> dict[str, Any]:
    seconds = step_seconds(config, facts, machine)
    return {
        "note": "rough, at most, without waiting for tools and memory",
        "device": machine.device_name,
        "assumed_flops": device_flops(config, machine),
        "step_s": _rounded(seconds),
        "run_h": _rounded(seconds * config.run.steps / 3600),
    }


def _gib(num_bytes: int) -> float:
    return _rounded(num_bytes / GIB)


def _rounded(value: float) -> float:
    """Keep three digits."""
    return float(f"{value:.3g}")
