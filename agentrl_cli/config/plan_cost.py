"""Tokens, disk and time of a run, from its settings; upper bounds with every row at its limit."""

from __future__ import annotations

from agentrl_cli.config.plan_machine import Machine
from agentrl_cli.config.plan_memory import adam_bytes, num_trained, weight_bytes
from agentrl_cli.config.plan_models import ModelFacts
from agentrl_cli.config.schema import Config

TRAJECTORY_TOKEN_BYTES = 9 + 8
"""Of one token on disk: id, mask and log-probability in the sidecar (4 + 1 + 4); about 4 characters of text
(the usual rate of English), which tool calls and their results hold twice."""
FLOPS_PER_CPU_CORE = 2e10
"""Assumed: about a fifth of what one core with AVX2 can do in float32."""
FLOPS_PER_GPU = {"float32": 2e13, "bfloat16": 1.5e14}
"""Assumed: about the float32 rate of an A100 (19.5e12 by its data sheet), and half of its 312e12 in bfloat16."""


def token_budget(config: Config) -> dict[str, int]:
    """Return the most tokens of one step of `rl`: generated, trained on (all passes), read as prompts."""
    grpo = config.grpo
    trajectories = grpo.problems_per_step * grpo.num_generations
    rounds = 1 + (grpo.filter_groups.max_extra_rounds if grpo.filter_groups.enabled else 0)
    completion, prompt = config.agent.max_completion_length, config.data.max_prompt_length
    return {
        "generated_per_step": trajectories * completion,
        "generated_per_step_with_refills": trajectories * rounds * completion,
        "prompt_per_step": grpo.problems_per_step * prompt,
        "trained_per_step": grpo.num_epochs * (trajectories * completion + grpo.problems_per_step * prompt),
        "evaluation": config.eval.num_problems * config.eval.num_samples * completion,
    }


def checkpoint_bytes(config: Config, facts: ModelFacts) -> int:
    """Return the bytes of one checkpoint: weights (of adapters alone if there are any) and Adam's states."""
    weights = weight_bytes(config, facts)
    if config.model.lora is not None:
        weights = 4 * num_trained(config, facts)
    return weights + adam_bytes(config, facts)


def run_bytes(config: Config, facts: ModelFacts) -> int:
    """Return the bytes that a whole run of `rl` leaves at most; one checkpoint more exists while it is written."""
    kept = min(config.run.keep_checkpoints + 1, 1 + config.run.steps // config.run.save_every_steps)
    return kept * checkpoint_bytes(config, facts) + config.run.steps * trajectory_bytes(config)


def trajectory_bytes(config: Config) -> int:
    """Return the bytes of a step's stored trajectories at most; 0 if they are not kept."""
    if not config.run.keep_trajectories:
        return 0
    tokens = token_budget(config)
    return (tokens["generated_per_step_with_refills"] + tokens["prompt_per_step"]) * TRAJECTORY_TOKEN_BYTES


def device_flops(config: Config, machine: Machine) -> float:
    """Return the operations a second that are assumed of the device that would run this."""
    if machine.gpus:
        return FLOPS_PER_GPU[config.model.dtype]
    return FLOPS_PER_CPU_CORE * (config.run.threads or machine.num_cores)


def step_seconds(config: Config, facts: ModelFacts, machine: Machine) -> float:
    """Return roughly how long a step takes at most.

    A generated or read token costs 2 N operations, a trained one 6 N (arXiv 2001.08361, section 2.1), 8 N when
    its forward pass is computed twice (gradient checkpointing). Waiting for memory and tools is left out, so
    decoding few rows of a large model takes several times as long.
    """
    tokens = token_budget(config)
    passes = 8 if config.model.gradient_checkpointing else 6
    read = tokens["generated_per_step"] + tokens["prompt_per_step"]
    operations = facts.num_parameters * (2 * read + passes * tokens["trained_per_step"])
    return operations / device_flops(config, machine)
