"""Rows for SFT: the ids a model trains on are the ids it meets in a rollout."""

from __future__ import annotations

import pytest
from transformers import PreTrainedTokenizerFast

from agentrl_cli.agent.tools import PYTHON_SCHEMA
from agentrl_cli.errors import DataError
from agentrl_cli.training.sft_data import RowBuilder, TokenRow

CALL = {
    "id": "call_0_0",
    "type": "function",
    "function": {"name": "python", "arguments": '{"code": "6*7"}'},
}
MESSAGES = [
    {"role": "user", "content": "What is 6*7?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_0_0", "name": "python", "content": "42"},
    {"role": "assistant", "content": "The answer is \\boxed{42}."},
]


def build(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, object]]) -> TokenRow:
    """Build one row."""
    return RowBuilder(tokenizer, call_format="hermes").build({"messages": messages, "tools": [PYTHON_SCHEMA]}, number=1)


def test_only_assistant_tokens_train(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    """The masked-in text is the two assistant turns with their end-of-turn tokens, nothing else."""
    row = build(tiny_tokenizer, MESSAGES)
    trained = tiny_tokenizer.decode([i for i, m in zip(row.ids, row.mask, strict=True) if m])
    call = '<tool_call>\n{"name": "python", "arguments": {"code": "6*7"}}\n</tool_call>'
    assert trained == f"{call}<|im_end|>The answer is \\boxed{{42}}.<|im_end|>"


def test_a_row_is_the_render_of_its_conversation(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    """Put together, prompt and continuation are the template's text up to the last end-of-turn."""
    row = build(tiny_tokenizer, MESSAGES)
    whole = tiny_tokenizer.apply_chat_template(MESSAGES, tools=[PYTHON_SCHEMA], tokenize=False)
    assert tiny_tokenizer.decode(row.prompt_ids + row.ids) + "\n" == whole


def test_what_follows_the_last_assistant_turn_is_left_out(tiny_tokenizer: PreTrainedTokenizerFast) -> None:
    """A trailing tool result teaches nothing and costs tokens."""
    assert build(tiny_tokenizer, MESSAGES[:3]).ids == build(tiny_tokenizer, MESSAGES[:2]).ids


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ("none", "no 'messages' list"),
        ([{"role": "user", "content": "x"}], "followed by an assistant message"),
        ([{"role": "assistant", "content": "x"}], "followed by an assistant message"),
        (
            [*MESSAGES[:2], {"role": "user", "content": "?"}, {"role": "user", "content": "?"}, MESSAGES[3]],
            "tool results or one user message",
        ),
    ],
)
def test_a_row_that_can_not_train_is_refused(
    tiny_tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, object]], complaint: str
) -> None:
    """The error says what is missing."""
    with pytest.raises(DataError, match=complaint):
        build(tiny_tokenizer, messages)
