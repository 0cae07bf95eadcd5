"""What every preset must hold, and what sets each apart."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl_cli.agent.chat_format import ChatFormat
from agentrl_cli.agent.tools import PYTHON_SCHEMA
from agentrl_cli.config.load import load_config, preset_names, preset_text, resolved_dump
from agentrl_cli.config.plan import make_plan
from agentrl_cli.config.plan_machine import Gpu, Machine
from agentrl_cli.config.plan_memory import GIB, rl_memory, sft_memory
from agentrl_cli.config.plan_models import find_model
from agentrl_cli.config.schema import Config
from agentrl_cli.sampler.loading import read_template

AUTHORS_SIZE = ["4b", "7b", "32b", "4b-grpo"]


def settings(name: str) -> Config:
    """Return a preset as it would run."""
    return load_config(name, None, [])


def machine(folder: Path, *, gib: int) -> Machine:
    """A machine with one GPU of that size and an empty cache."""
    gpu = Gpu("GPU", gib * GIB)
    return Machine((gpu,), 256 * GIB, 16, 10_000 * GIB, folder / "no-cache", is_offline=False)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_can_be_planned(name: str, tmp_path: Path) -> None:
    """A preset is valid and names a model whose sizes are known without a network."""
    plan = make_plan(settings(name), machine(tmp_path, gib=1000))
    assert plan["model"]["parameters"] > 0
    assert plan["problems"] == []


def test_the_presets_of_the_package() -> None:
    """Six come with the package."""
    assert preset_names() == ["135m", "32b", "4b", "4b-grpo", "7b", "tiny"]


@pytest.mark.parametrize("name", preset_names())
def test_every_value_says_where_it_comes_from(name: str) -> None:
    """A value has a comment on its line or, for a text of several lines, on the line above."""
    lines = preset_text(name).splitlines()
    silent = []
    for number, line in enumerate(lines):
        value = re.match(r"\w+ *= *(.*)", line)
        if value and "#" not in line and not (value[1] == '"""' and lines[number - 1].startswith("#")):
            silent.append(f"{number + 1}: {line}")
    assert silent == []


@pytest.mark.parametrize("name", AUTHORS_SIZE)
def test_usual_ranges_are_held(name: str) -> None:
    """Rates and clip ranges stay inside what is usual; a value outside says in its comment that it is below or above.

    Usual: rate 1e-6 to 5e-6, 16 to 32 problems a step, beta 0.01 to 0.05, lower clip 0.18 to 0.22, upper 0.28 to 0.32.
    """
    config = settings(name)
    assert 1e-6 <= config.optim.learning_rate <= 5e-6
    assert 0.18 <= config.grpo.epsilon_low <= 0.22
    ranges = {
        "epsilon_high": (config.grpo.epsilon_high, 0.28, 0.32, "below 0.28-0.32"),
        "problems_per_step": (config.grpo.problems_per_step, 16, 32, "above the usual 16-32"),
        "beta": (config.grpo.beta, 0.01, 0.05, "0.01-0.05"),
    }
    for key, (value, low, high, reason) in ranges.items():
        (line,) = re.findall(rf"^{key} = .*$", preset_text(name), re.MULTILINE)
        assert low <= value <= high or reason in line, line


@pytest.mark.parametrize("name", preset_names())
def test_clipping_can_act(name: str) -> None:
    """A step has more than one update: with a single one every ratio is 1 and nothing is ever clipped."""
    config = settings(name)
    assert config.grpo.num_minibatches * config.grpo.num_epochs >= 2


def test_7b_is_4b_but_for_the_model_and_the_clip_range() -> None:
    """The authors train both sizes alike; only the upper clip range narrows from 7B on."""
    assert difference("4b", "7b") == {
        "model.path": ("Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen2.5-7B-Instruct"),
        "sampler.max_batch": (64, 16),
        "grpo.epsilon_high": (0.315, 0.28),
    }


def test_4b_grpo_takes_back_what_tcr_adds() -> None:
    """The baseline differs from 4b in the parts of the method and nowhere else."""
    assert difference("4b", "4b-grpo") == {
        "grpo.loss_agg_mode": ("token-mean", "seq-mean-token-mean"),
        "grpo.epsilon_high": (0.315, 0.2),
        "grpo.beta": (0.0, 0.001),
        "grpo.overlong.enabled": (True, False),
    }
    assert not settings("4b-grpo").grpo.filter_groups.enabled


def test_32b_fits_on_one_h200(tmp_path: Path) -> None:
    """With every row at its limit, rl and sft stay below the 139 GiB of such a device."""
    config = settings("32b")
    facts = find_model(config.model.path, hub_cache=tmp_path).facts
    assert facts is not None
    assert rl_memory(config, facts).peak < 139 * GIB
    assert sft_memory(config, facts).peak < 139 * GIB


def test_32b_brings_a_template_that_only_appends(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    """Its own template drops the thinking of earlier turns; the preset's passes the check that training makes."""
    name = settings("32b").model.chat_template
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.chat_template = read_template(name)
    chat = ChatFormat(tokenizer, tools=[PYTHON_SCHEMA], call_format="hermes")
    assert "<tool_response>" in tokenizer.decode(chat.tool_result_ids(["42"], ["python"]))


def difference(first: str, second: str) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which two presets differ."""
    left, right = (flat(resolved_dump(settings(name))) for name in (first, second))
    return {key: (left[key], right[key]) for key in left if left[key] != right[key]}


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their full names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found
