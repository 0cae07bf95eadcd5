"""Writes docs/settings.md from the schema: `python -m agentrl_cli.config.docs > docs/settings.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from agentrl_cli.config.catalog import REQUIRED, Setting, catalog, children, choices, toml_text

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

_HEAD = """\
# Settings

Generated from the schema by `python -m agentrl_cli.config.docs > docs/settings.md`; edit \
`agentrl_cli/config/schema.py` instead.

Precedence: preset, then `--config FILE` (TOML), then `--set key=value`. A key may leave out its leading \
sections while the rest is unique (`--set steps=2`). Defaults below are those of the schema; presets override \
some of them (`agentrl presets show NAME`), and `--dry-run` prints what a run would use. Where a setting can be \
unset, the text `"none"` unsets it.
"""


def render() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for section in children(""):
        rows = [setting for path, setting in catalog().items() if path.startswith(section.path + ".")]
        parts += [f"## {section.path}\n\n{section.doc}\n", _table(["key", "default", "meaning"], map(_row, rows))]
    names = [[f"`{path}`", _code(trl), _code(verl)] for path, (trl, verl) in ELSEWHERE.items()]
    parts += [
        "## Names elsewhere\n\nThe nearest setting of other trainers (TRL 1.16 `GRPOConfig`, verl 0.9; `actor` is"
    ]
    parts[-1] += " `actor_rollout_ref.actor`, `rollout` is `actor_rollout_ref.rollout`). Units may differ.\n"
    parts.append(_table(["agentrl", "TRL", "verl"], names))
    return "\n".join(parts)


def _row(setting: Setting) -> list[str]:
    """Return the cells of one setting; sections have no default of their own."""
    if setting.is_section:
        return [f"**`{setting.path}`**", "none" if setting.default is None else "", setting.doc]
    options = choices(setting.annotation)
    meaning = setting.doc + (f" One of {', '.join(map(_code, options))}." if len(options) > 1 else "")
    meaning += f" Only with {setting.variant}." if setting.variant else ""
    default = REQUIRED if setting.default == REQUIRED else _code(toml_text(setting.default))
    return [f"`{setting.path}`", default, meaning]


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Return a Markdown table, with a line break after it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def _code(text: str) -> str:
    """Set names in code type; remarks in parentheses stay plain."""
    if text.startswith("("):
        return text
    return f"`{text}`" if text else "-"


if __name__ == "__main__":
    sys.stdout.write(render())
