"""The generated page of settings, and the explanations on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl_cli.config.catalog import catalog
from agentrl_cli.config.docs import render
from agentrl_cli.config.elsewhere import ELSEWHERE
from agentrl_cli.config.explain import explain
from agentrl_cli.errors import ConfigError


def test_settings_page_is_current(repo_root: Path) -> None:
    """docs/settings.md is what the schema says; `make docs` writes it anew."""
    assert (repo_root / "docs" / "settings.md").read_text(encoding="utf-8") == render()


def test_names_elsewhere_belong_to_settings_that_exist() -> None:
    """A renamed setting takes its row along."""
    assert set(ELSEWHERE) <= set(catalog())


def test_explain_gives_meaning_choices_and_default() -> None:
    """One setting, by a short name."""
    text = explain("loss_agg_mode")
    assert text.startswith("grpo.loss_agg_mode\n")
    assert "choices: token-mean, seq-mean-token-mean, seq-mean-token-sum-norm, sequence" in text
    assert 'default: "token-mean"' in text


def test_explain_says_which_variant_a_setting_needs() -> None:
    """A setting of one sampler only says so, and that it has no default."""
    text = explain("base_url")
    assert "only with sampler.type = openai" in text
    assert "default: required" in text


def test_explain_lists_a_section() -> None:
    """A section lists what stands in it, with defaults."""
    assert "grpo.overlong.cache_tokens (4096): L_cache" in explain("overlong")


def test_explain_refuses_unknown_names() -> None:
    """With the nearest name."""
    with pytest.raises(ConfigError) as caught:
        explain("epsilon_hi")
    assert caught.value.hint == "did you mean grpo.epsilon_high?"
