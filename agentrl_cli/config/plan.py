"""What the settings amount to in trajectories, updates and tokens, before anything is started."""

from __future__ import annotations

from agentrl_cli.config.schema import Config


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
