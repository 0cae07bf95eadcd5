"""Builds the tokenizer and the untrained model of preset `tiny`.

The tokenizer is a byte-level BPE over rendered conversations. Every digit and every newline is a
token of its own and no token reaches across one: numbers are copied digit by digit, and the newline
after `assistant` in a generation prompt never merges with what the model writes next. Boilerplate
(the tool schema, the frame of a call) shrinks to a few long tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentrl_cli.types import Message

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CALL_MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
MARKERS = (END_OF_TEXT, TURN_START, TURN_END, *CALL_MARKERS)
"""Added tokens: one id each, never part of a merge. Those of calls survive `skip_special_tokens`."""

MAX_TOKEN_CHARS = 48
"""Long enough for the whole frame of a call, `{"name": "python", "arguments": {"code": "`."""

_SPLIT = re.compile("|".join(re.escape(marker) for marker in MARKERS))


def build_tokenizer(
    conversations: Iterable[Sequence[Message]],
    *,
    tools: Sequence[Mapping[str, Any]],
    chat_template: str,
    vocab_size: int = 512,
) -> PreTrainedTokenizerFast:
    """Train the tokenizer on conversations as the chat template renders them.

    Args:
        conversations: Teacher trajectories; a few hundred of each family are enough.
        tools: Function schemas that the template renders.
        chat_template: Jinja text; it is stored in the tokenizer.
        vocab_size: Size to train to; at least 256 bytes and the markers.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d|\n"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=MAX_TOKEN_CHARS,
        show_progress=False,
    )
    renderer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=chat_template)  # type: ignore[no-untyped-call]
    tokenizer.train_from_iterator(_texts(conversations, renderer, tools), trainer)
    tokenizer.add_tokens(
        [AddedToken(marker, special=marker not in CALL_MARKERS, normalized=False) for marker in MARKERS]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )


def build_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> Qwen3ForCausalLM:
    """Return a model of about one million parameters in float32, initialised from `seed`.

    The caller's random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(model_config(tokenizer))  # type: ignore[no-untyped-call]


def model_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """Return the architecture: Qwen3 with 4 layers of width 128 and tied embeddings."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _texts(
    conversations: Iterable[Sequence[Message]], renderer: PreTrainedTokenizerFast, tools: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Yield the text between markers: the trainer does not know them, and would merge across."""
    for messages in conversations:
        text = str(renderer.apply_chat_template(list(messages), tools=[dict(tool) for tool in tools], tokenize=False))
        yield from (piece for piece in _SPLIT.split(text) if piece)
