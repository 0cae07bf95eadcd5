"""Loading settings: precedence, short keys, values, and what is refused in which words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl_cli.config.catalog import catalog
from agentrl_cli.config.load import load_config, load_run_config, preset_names, resolved_dump
from agentrl_cli.config.schema import Config, OpenAISamplerConfig, TransformersSamplerConfig
from agentrl_cli.errors import ConfigError


def refused(*overrides: str, preset: str | None = None, config_file: Path | None = None) -> ConfigError:
    """Return the error that loading raises."""
    with pytest.raises(ConfigError) as caught:
        load_config(preset, config_file, overrides)
    return caught.value


def write(path: Path, text: str) -> Path:
    """Write a file and return it."""
    path.write_text(text, encoding="utf-8")
    return path


def test_later_layers_win_key_by_key(tmp_path: Path) -> None:
    """--set wins over the file, the file over the preset, and each leaves the other keys alone."""
    file = write(tmp_path / "my.toml", "[grpo]\nepsilon_high = 0.30\nproblems_per_step = 32\n")
    config = load_config("tiny", file, ["grpo.epsilon_high=0.25"])
    assert config.grpo.epsilon_high == 0.25
    assert config.grpo.problems_per_step == 32
    assert config.grpo.num_generations == 8  # tiny's own


def test_tiny_is_the_default_preset() -> None:
    """Without a name the embedded preset is used."""
    assert load_config(None, None, []) == load_config("tiny", None, [])


def test_no_preset_file_or_override_means_schema_defaults_elsewhere() -> None:
    """What no layer sets comes from the schema."""
    assert load_config("tiny", None, []).guard == Config().guard


def test_a_partial_table_keeps_the_defaults_of_its_section() -> None:
    """Setting one key of sft.optim leaves sft's own schedule in force, not that of [optim]."""
    config = load_config("4b", None, ["sft.optim.learning_rate=2e-5"])
    assert config.sft.optim.learning_rate == 2e-5
    assert (config.sft.optim.schedule, config.optim.schedule) == ("cosine", "constant")


@pytest.mark.parametrize(
    ("override", "path"),
    [("steps=2", "run.steps"), ("cache_tokens=8", "grpo.overlong.cache_tokens"), ("lora.r=4", "model.lora.r")],
)
def test_a_unique_key_may_drop_its_sections(override: str, path: str) -> None:
    """The last parts of a name are enough while only one setting ends in them."""
    value: object = resolved_dump(load_config(None, None, [override]))
    for part in path.split("."):
        assert isinstance(value, dict)
        value = value[part]
    assert value == int(override.partition("=")[2])


def test_an_ambiguous_key_lists_its_candidates() -> None:
    """learning_rate stands in [optim] and [sft.optim]: neither is guessed."""
    error = refused("learning_rate=1e-5")
    assert "ambiguous: optim.learning_rate, sft.optim.learning_rate" in error.message
    assert "optim.learning_rate" in error.hint


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("grpo.epsilon_hgh", "grpo.epsilon_high"),
        ("stepz", "run.steps"),
        ("grop.beta", "grpo.beta"),
        ("grpo.learning_rate", "optim.learning_rate"),
    ],
)
def test_an_unknown_key_gets_the_nearest_full_name(key: str, suggestion: str) -> None:
    """A typo, a wrong section and a misspelt section are all answered with a name that exists."""
    error = refused(f"{key}=1")
    assert error.message == f"unknown setting {key!r}"
    assert error.hint == f"did you mean {suggestion}?"


def test_an_unknown_key_without_a_near_name_lists_its_section() -> None:
    """Where nothing is near, the section's settings are listed."""
    assert "learning_rate, schedule, warmup_frac" in refused("optim.xyz=1").hint


def test_an_unknown_key_in_a_file_names_the_file(tmp_path: Path) -> None:
    """A mistake in a file says which file it stands in."""
    file = write(tmp_path / "my.toml", "[run]\nstep = 3\n")
    error = refused(config_file=file)
    assert error.message == f"unknown setting 'run.step' in {file}"
    assert error.hint == "did you mean run.steps?"


def test_an_unknown_preset_lists_those_that_exist() -> None:
    """Names are exact: 4B is not 4b."""
    error = refused(preset="4B")
    assert error.message == "unknown preset '4B'"
    assert "135m, 32b, 4b, 4b-grpo, 7b, tiny" in error.hint


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps=0", "run.steps must be above 0, got 0 (--set)"),
        ("steps=true", "run.steps must be a whole number, got True (--set)"),
        ("steps=1.5", "run.steps must be a whole number, got 1.5 (--set)"),
        ("steps=", "run.steps must be a whole number, got '' (--set)"),
        ("grpo.beta=nan", "grpo.beta must be a finite number, got nan (--set)"),
        ("deterministic=1", "run.deterministic must be true or false, got 1 (--set)"),
        ("warmup_frac=2", "'warmup_frac' is ambiguous: optim.warmup_frac, sft.optim.warmup_frac"),
        ("optim.warmup_frac=2", "optim.warmup_frac must be at most 1.0, got 2 (--set)"),
        ("grpo=3", "grpo must be a table of settings, got 3 (--set)"),
        ("components=[{name='outcome', weight='x'}]", "rewards.components[0].weight must be a number, got 'x' (--set)"),
        ("steps", "--set needs key=value, got 'steps'"),
    ],
)
def test_wrong_values_say_what_was_got_and_from_where(override: str, message: str) -> None:
    """A wrong value is answered in the user's words, without pydantic's."""
    error = refused(override)
    assert error.message == message
    assert "pydantic" not in error.message + error.hint
    assert "Input should" not in error.message + error.hint


def test_a_wrong_choice_gets_the_nearest_one() -> None:
    """A misspelt choice lists all and suggests one."""
    error = refused("loss_agg_mode=token-men")
    assert "'token-mean', 'seq-mean-token-mean'" in error.message
    assert error.hint == "did you mean 'token-mean'?"


def test_several_mistakes_are_listed_together() -> None:
    """One try shows all wrong values."""
    error = refused("steps=0", "optim.beta1=2")
    assert error.message.startswith("2 settings are wrong:")
    assert "run.steps must be above 0" in error.message
    assert "optim.beta1 must be at most 1" in error.message


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["grpo.delta=1.0"], "delta=1.0 must exceed 1 + epsilon_high"),
        (["problems_per_step=15"], "must be a multiple of num_minibatches=4"),
        (["loss_agg_mode=sequence"], "needs at most 0.05"),
        (["cache_tokens=4096"], "set grpo.overlong.cache_tokens below 192"),
        (["epsilon_high_schedule.kind=linear"], "needs start and end"),
        (["grpo.beta=0.001", "kl_monitor_every=5"], "kl_monitor_every has no effect with beta > 0"),
    ],
)
def test_contradictions_are_refused(overrides: list[str], words: str) -> None:
    """Settings that exclude each other are refused before anything starts."""
    assert words in refused(*overrides).message


def test_switching_the_sampler_drops_the_other_ones_keys() -> None:
    """The preset's max_batch belongs to the transformers sampler and must not trip the openai one."""
    config = load_config("tiny", None, ["sampler.model=m", "base_url=http://x/v1", "sampler.type=openai"])
    assert config.sampler == OpenAISamplerConfig(base_url="http://x/v1", model="m")


def test_the_default_sampler_needs_no_type(tmp_path: Path) -> None:
    """A table without `type` changes the sampler that is in force."""
    file = write(tmp_path / "my.toml", "[sampler]\nmax_batch = 3\n")
    assert load_config(None, file, []).sampler == TransformersSamplerConfig(max_batch=3)


def test_a_key_of_another_sampler_is_refused_with_the_way_out() -> None:
    """A setting that would have no effect is an error."""
    error = refused("base_url=http://x/v1")
    assert error.message == "sampler.base_url has no effect here: it belongs to sampler.type = openai"
    assert "--set sampler.type=openai" in error.hint


def test_a_required_key_is_named() -> None:
    """The openai sampler can't guess its model."""
    assert refused("sampler.type=openai", "base_url=x").message == "sampler.model is required (sampler.type = openai)"


@pytest.mark.parametrize("text", ["1234567", "7e12345", "true", "2020-01-01"])
def test_text_settings_keep_what_looks_like_another_type(text: str) -> None:
    """A commit of digits stays text."""
    assert load_config(None, None, [f"revision={text}"]).model.revision == text


def test_values_are_toml_where_they_can_be() -> None:
    """Lists, quoted text and plain text are all read."""
    config = load_config(None, None, ["names=[]", 'train="a b.jsonl"', "data.eval=dir/c.jsonl", "levels=[1, 2]"])
    assert config.tools.names == []
    assert (config.data.train, config.data.eval) == ("a b.jsonl", "dir/c.jsonl")
    assert config.data.generated.levels == [1, 2]


def test_a_broken_list_is_an_error_not_text() -> None:
    """What begins like a list is meant as one."""
    error = refused("names=[python]")
    assert "tools.names: '[python]' is not valid TOML" in error.message
    assert '["a", "b"]' in error.hint


def test_none_unsets_what_a_preset_set() -> None:
    """TOML has no null: the text none takes adapters back."""
    assert load_config("135m", None, []).model.lora is not None
    assert load_config("135m", None, ["lora=none"]).model.lora is None


def test_the_last_of_equal_keys_wins() -> None:
    """As on any command line, and so for a table before one of its keys."""
    assert load_config(None, None, ["steps=2", "run.steps=3"]).run.steps == 3
    config = load_config(None, None, ["overlong={cache_tokens=9, count='all'}", "cache_tokens=8"])
    assert (config.grpo.overlong.cache_tokens, config.grpo.overlong.count) == (8, "all")


def test_unreadable_files_are_user_errors(tmp_path: Path) -> None:
    """A missing file, bad TOML and bad JSON each say so."""
    assert "does not exist" in refused(config_file=tmp_path / "none.toml").message
    assert "is not valid TOML" in refused(config_file=write(tmp_path / "a.toml", "[run\n")).message
    assert "is not valid JSON" in refused(config_file=write(tmp_path / "a.json", "{")).message
    assert "must hold a JSON object" in refused(config_file=write(tmp_path / "b.json", '{"config": 3}')).message


def test_a_runs_settings_come_back_as_they_were(tmp_path: Path) -> None:
    """The resolved settings of a run load to the same Config, whatever the default preset says."""
    config = load_config("4b", None, ["seed=7", "lora=none"])
    (tmp_path / "config.json").write_text(json.dumps({"config": resolved_dump(config)}))
    assert load_run_config(tmp_path, []) == config
    assert load_run_config(tmp_path, ["steps=9"]).run.steps == 9
    assert load_config(None, tmp_path / "config.json", []) == config


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid_and_inside_the_ranges_it_claims(name: str) -> None:
    """Each shipped preset parses, has at least two updates a step, and the clip range of its model size."""
    config = load_config(name, None, [])
    assert config.grpo.num_minibatches * config.grpo.num_epochs >= 2
    assert 0.18 <= config.grpo.epsilon_low <= 0.22
    clips_higher = name != "4b-grpo"  # the plain GRPO that 4b is compared with
    assert 0.28 <= config.grpo.epsilon_high <= 0.32 if clips_higher else config.grpo.epsilon_high == 0.2
    assert config.model.dtype == "float32" or config.model.lora is not None


def test_4b_follows_the_published_recipe() -> None:
    """64 problems x 16 trajectories, 4 updates of 16 problems, 20480 tokens with a ramp of 4096, no KL term."""
    config = load_config("4b", None, [])
    grpo = config.grpo
    assert (grpo.problems_per_step, grpo.num_generations, grpo.num_minibatches) == (64, 16, 4)
    assert (config.agent.max_completion_length, grpo.overlong.cache_tokens) == (20480, 4096)
    assert (grpo.epsilon_high, grpo.beta, config.agent.max_turns, config.data.max_prompt_length) == (0.315, 0, 16, 2560)
    assert (config.eval.num_samples, config.eval.temperature, config.eval.top_p) == (32, 1.0, 0.6)


def test_every_setting_is_documented() -> None:
    """No setting or section without a meaning."""
    assert [setting.path for setting in catalog().values() if not setting.doc] == []


def test_nested_defaults_are_those_of_their_class() -> None:
    """A section's default must equal its class's own, or a partial table would silently reset the rest."""
    for setting in catalog().values():
        if setting.is_section and setting.default is not None:
            assert setting.default == type(setting.default)(), setting.path
