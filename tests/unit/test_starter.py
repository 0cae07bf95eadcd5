"""The checkpoint that ships."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from agentrl_cli.agent.chat_format import ChatFormat
from agentrl_cli.agent.tools import PYTHON_SCHEMA
from agentrl_cli.config.schema import ModelConfig
from agentrl_cli.data.tiny_model import MARKERS
from agentrl_cli.errors import ConfigError
from agentrl_cli.sampler.loading import load_policy, resolve_path

FOLDER = Path(resolve_path("builtin:tiny"))


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    """The shipped tokenizer."""
    return AutoTokenizer.from_pretrained(FOLDER)


def test_it_is_small_and_in_bfloat16() -> None:
    """About a million parameters, at most 3 MB in all."""
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 3_000_000
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        tensors = [weights.get_tensor(name) for name in weights.keys()]  # noqa: SIM118
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    assert 0.9e6 <= sum(tensor.numel() for tensor in tensors) <= 1.2e6


def test_no_token_reaches_across_a_digit_a_newline_or_a_marker(tokenizer: PreTrainedTokenizerBase) -> None:
    """Otherwise a generation prompt's ids would differ from the training ids."""
    for token_id in range(len(tokenizer)):
        text = tokenizer.decode([token_id])
        if text in MARKERS:
            continue
        assert len(text) == 1 or not re.search(r"[\d\n]", text), (token_id, text)
        assert not any(marker in text for marker in MARKERS), (token_id, text)


def test_its_template_only_appends(tokenizer: PreTrainedTokenizerBase) -> None:
    """Tool results and reminders are a difference of two renders (checked as the format is made)."""
    chat_format = ChatFormat(tokenizer, tools=[PYTHON_SCHEMA], call_format="hermes")
    text = tokenizer.decode(chat_format.tool_result_ids(["42"], ["python"]))
    expected = "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert text == expected


def test_it_loads_for_training_with_an_identity() -> None:
    """Float32 for training; config.json gets digests of weights, tokenizer and template."""
    policy = load_policy(ModelConfig())
    assert next(policy.model.parameters()).dtype is torch.float32
    assert policy.identity["path"] == "builtin:tiny"
    assert all(len(policy.identity[f"{part}_sha256"]) == 64 for part in ("weights", "tokenizer", "template"))


@pytest.mark.parametrize("settings", [{"path": "builtin:huge"}, {"chat_template": "builtin:none"}])
def test_an_unknown_builtin_is_refused(settings: dict[str, str]) -> None:
    """The hint names what there is."""
    with pytest.raises(ConfigError) as caught:
        load_policy(ModelConfig(**settings))  # type: ignore[arg-type]
    assert "builtin:" in caught.value.hint
