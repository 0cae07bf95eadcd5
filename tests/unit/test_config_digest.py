"""The digest that decides whether a run may be resumed, and what the settings amount to."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.config.digest import changed_settings, config_digest
from agentrl_cli.config.load import load_config, resolved_dump
from agentrl_cli.config.plan import batch_arithmetic


def digest(*overrides: str) -> str:
    """Return the digest of tiny, without its schedule, with changes."""
    return config_digest(load_config("tiny", None, ["optim.schedule=constant", *overrides]))


@pytest.mark.parametrize(
    "override", ["steps=99", "save_every_steps=1", "keep_checkpoints=9", "pool_size=1", "filter.min_calls=3"]
)
def test_what_changes_no_result_may_change(override: str) -> None:
    """Run length, saving, workers and other commands' settings leave the digest alone."""
    assert digest(override) == digest()


@pytest.mark.parametrize("override", ["seed=1", "optim.learning_rate=3e-4", "max_turns=3", "threads=1", "revision=abc"])
def test_what_changes_results_changes_the_digest(override: str) -> None:
    """Everything else is part of the run's identity."""
    assert digest(override) != digest()


@pytest.mark.parametrize(
    "schedule",
    [
        ["optim.schedule=cosine"],
        ["optim.warmup_frac=0.1"],
        ["epsilon_high_schedule={kind='linear', start=0.3, end=0.28}"],
        ["epsilon_high_schedule.kind=progressive"],
    ],
)
def test_steps_count_under_a_schedule(schedule: list[str]) -> None:
    """A schedule that stretches over the run makes another length another run."""
    assert digest(*schedule, "steps=99") != digest(*schedule)


def test_exclusions_reach_single_settings_and_whole_sections() -> None:
    """The caller may leave out more, by full name."""
    changed = load_config("tiny", None, ["seed=1", "eval.num_samples=9"])
    same = load_config("tiny", None, [])
    assert config_digest(changed, exclude={"run.seed", "eval"}) == config_digest(same, exclude={"run.seed", "eval"})
    assert config_digest(changed, exclude={"run.seed"}) != config_digest(same, exclude={"run.seed"})


def test_changed_settings_are_named() -> None:
    """The refusal of a resume can say what differs."""
    old = resolved_dump(load_config("tiny", None, []))
    new = resolved_dump(load_config("tiny", None, ["seed=1", "lora.r=4"]))
    assert changed_settings(old, new) == ["run.seed", "model.lora"]


def test_batch_arithmetic_of_4b() -> None:
    """64 problems x 16 trajectories = 1024 a step, in 4 updates of 256; rows of 2560 + 20480 = 23040 tokens."""
    plan = batch_arithmetic(load_config("4b", None, ["steps=10"]))
    assert plan["rl_trajectories_per_step"] == 1024
    assert plan["rl_updates_per_step"] == 4
    assert plan["rl_trajectories_per_update"] == 256
    assert plan["rl_updates"] == 40
    assert plan["row_tokens"] == 23040
    assert plan["rl_tokens_per_step"] == 23_592_960  # 1024 x 23040
    assert plan["eval_trajectories"] == 960  # 30 x 32


def test_refills_count_into_the_most_that_is_sampled() -> None:
    """16 x 8 = 128 trajectories and at most 2 refill rounds of as many: 384."""
    on = ["filter_groups.enabled=true", "max_extra_rounds=2", "problems_per_step=16", "num_generations=8"]
    assert batch_arithmetic(load_config("tiny", None, on))["rl_most_sampled_per_step"] == 384
    off = [*on, "filter_groups.enabled=false"]
    assert batch_arithmetic(load_config("tiny", None, off))["rl_most_sampled_per_step"] == 128


def test_another_text_to_search_is_another_digest(tmp_path: Path) -> None:
    """What a search finds decides what a run computes; the content counts, and that a text is there."""
    (tmp_path / "a.txt").write_text("zebra")
    config = load_config("tiny", None, ['tools.names=["search"]', f"tools.search.corpus={tmp_path}"])
    digests = [config_digest(config)]
    (tmp_path / "a.txt").write_text("horse")
    digests.append(config_digest(config))
    (tmp_path / "b.md").write_text("horse")
    digests.append(config_digest(config))
    assert len(set(digests)) == 3
