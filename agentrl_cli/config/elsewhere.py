"""What other trainers call our settings."""

from __future__ import annotations

import re

ELSEWHERE = {
    "grpo.num_generations": ("num_generations", "actor_rollout_ref.rollout.n"),
    "grpo.problems_per_step": ("generation_batch_size / num_generations", "data.train_batch_size"),
    "grpo.num_minibatches": (
        "steps_per_generation / gradient_accumulation_steps",
        "data.train_batch_size / actor.ppo_mini_batch_size",
    ),
    "grpo.num_epochs": ("num_iterations", "actor.ppo_epochs"),
    "grpo.micro_batch_tokens": ("per_device_train_batch_size", "actor.ppo_max_token_len_per_gpu"),
    "grpo.temperature": ("temperature", "actor_rollout_ref.rollout.temperature"),
    "grpo.loss_agg_mode": ("loss_type, importance_sampling_level", "actor.loss_agg_mode, actor.policy_loss.loss_mode"),
    "grpo.scale_rewards": ("scale_rewards", "algorithm.norm_adv_by_std_in_grpo"),
    "grpo.epsilon_low": ("epsilon", "actor.clip_ratio_low"),
    "grpo.epsilon_high": ("epsilon_high", "actor.clip_ratio_high"),
    "grpo.delta": ("delta", "actor.clip_ratio_c"),
    "grpo.beta": ("beta", "actor.use_kl_loss, actor.kl_loss_coef"),
    "grpo.kl_estimator": ("(k3 always)", "actor.kl_loss_type"),
    "grpo.rollout_is": ("vllm_importance_sampling_mode", "algorithm.rollout_correction.rollout_is"),
    "grpo.rollout_is_threshold": (
        "vllm_importance_sampling_clip_max",
        "algorithm.rollout_correction.rollout_is_threshold",
    ),
    "grpo.filter_groups.enabled": ("", "algorithm.filter_groups.enable"),
    "grpo.filter_groups.max_extra_rounds": ("", "algorithm.filter_groups.max_inflight_gen_batches"),
    "grpo.mask_truncated": ("mask_truncated_completions", ""),
    "grpo.overlong.enabled": ("(reward get_soft_overlong_punishment)", "overlong_buffer_cfg.enable"),
    "grpo.overlong.max_tokens": ("max_completion_len", "max_resp_len"),
    "grpo.overlong.cache_tokens": ("soft_punish_cache", "overlong_buffer_cfg.len"),
    "grpo.entropy_control.enabled": ("(entropy bonus: use_adaptive_entropy)", ""),
    "agent.max_completion_length": ("max_completion_length", "data.max_response_length"),
    "agent.max_turns": ("max_tool_calling_iterations", "rollout.multi_turn.max_assistant_turns"),
    "agent.call_format": ("", "rollout.multi_turn.format"),
    "data.max_prompt_length": ("", "data.max_prompt_length"),
    "optim.learning_rate": ("learning_rate", "actor.optim.lr"),
}
"""Nearest setting in TRL 1.16 (GRPOConfig) and verl 0.9 (`actor` is actor_rollout_ref.actor).

Empty where there is none; what stands in parentheses is a remark.
"""

_ALIASES = {"lr": "optim.learning_rate", "clip_high": "grpo.epsilon_high", "clip_low": "grpo.epsilon_low"}
"""Names that people use besides."""


def known_elsewhere(key: str) -> str:
    """Return our setting for a name of TRL, of verl or of common use, or an empty string."""
    leaf = key.rpartition(".")[2]
    for path, names in ELSEWHERE.items():
        words = re.findall(r"[\w.]+", " ".join(name for name in names if not name.startswith("(")))
        if any(key == word or leaf == word.rpartition(".")[2] for word in words):
            return path
    return _ALIASES.get(leaf, "")
