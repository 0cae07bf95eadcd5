"""The tiny tokenizer, its chat template and model: what tokens may span, round trips, the append-only property."""

import json
import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_cli.agent.chat_format import ChatFormat
from agentrl_cli.agent.tools import PYTHON_SCHEMA
from agentrl_cli.data.generated import generate_problems
from agentrl_cli.data.tiny_model import MARKERS, build_model, build_tokenizer
from agentrl_cli.sampler.loading import read_template

TOOLS = [PYTHON_SCHEMA]
TEMPLATES = ("tiny-tools", "smollm2-tools")
PYTHON_CALL_FRAME = '{"name": "python", "arguments": {"code": "'


def call(code, *, as_text=True):
    """An assistant's tool call as OpenAI writes it, arguments as JSON text or as a dict."""
    arguments = {"code": code}
    function = {"name": "python", "arguments": json.dumps(arguments) if as_text else arguments}
    return {"id": "c", "type": "function", "function": function}


def conversation(question, *codes):
    """One call after the other, each answered by the tool, then a final message."""
    messages = [{"role": "user", "content": question}]
    for code in codes:
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call(code)]},
            {"role": "tool", "tool_call_id": "c", "name": "python", "content": "1234"},
        ]
    return [*messages, {"role": "assistant", "content": "The answer is \\boxed{1234}."}]


@pytest.fixture(scope="module")
def tokenizer():
    """A tokenizer trained on a few hundred conversations."""
    problems = generate_problems("sft", count=400, seed=0)
    conversations = [conversation(p.prompt, "12*34+5", "import math;math.gcd(12,18)*3") for p in problems]
    return build_tokenizer(
        conversations, tools=TOOLS, chat_template=read_template("builtin:tiny-tools"), vocab_size=640
    )


def test_no_token_reaches_across_a_digit_newline_or_marker(tokenizer):
    """Every token with a digit or newline is that one character; every marker is one token and in no other."""
    assert len(tokenizer) == 640
    for index in range(len(tokenizer)):
        text = tokenizer.decode([index])
        if any(c.isdecimal() or c == "\n" for c in text):
            assert len(text) == 1, text
        if text not in MARKERS:
            assert not any(part in text for part in ("<|", "tool_call>", "tool_response>")), text
    for marker in MARKERS:
        assert tokenizer(marker).input_ids == [tokenizer.convert_tokens_to_ids(marker)]


def test_roles_of_the_markers(tokenizer):
    """A turn ends with <|im_end|>, padding is <|endoftext|>, and call markers survive skip_special_tokens."""
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    text = "<tool_call>\n{}\n</tool_call>"
    assert tokenizer.decode(tokenizer(f"{text}<|im_end|>").input_ids, skip_special_tokens=True) == text


@settings(deadline=None, max_examples=200)
@given(st.text())
def test_any_text_survives_the_round_trip(tokenizer, text):
    """Encoding and decoding give back the text, whatever characters it holds."""
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_it_survives_saving(tokenizer, tmp_path):
    """A reloaded tokenizer has the same ids, roles and template."""
    from transformers import AutoTokenizer

    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "<|im_start|>user\nTom has 12 bags é \t  x<|im_end|>\n"
    assert again(text).input_ids == tokenizer(text).input_ids
    assert (again.eos_token, again.pad_token) == (tokenizer.eos_token, tokenizer.pad_token)
    assert again.chat_template == tokenizer.chat_template


def test_prompts_and_calls_are_short(tokenizer):
    """Boilerplate is a few long tokens: the frame of a call is one, a prompt has at most 150."""
    assert len(tokenizer(PYTHON_CALL_FRAME).input_ids) == 1
    chat_format = ChatFormat(tokenizer, tools=TOOLS, call_format="hermes")
    problems = generate_problems("test", count=100, seed=0)
    lengths = [len(chat_format.prompt_ids([{"role": "user", "content": p.prompt}])) for p in problems]
    assert max(lengths) <= 150


def test_generation_prompt_is_a_prefix_of_training_ids(tokenizer):
    """What the model is trained on starts with exactly the ids that it is asked to continue, at every turn."""
    chat_format = ChatFormat(tokenizer, tools=TOOLS, call_format="hermes")
    messages = conversation("Add 12 and 34.", "12+34", "46*2")
    whole = chat_format.encode(chat_format.render(messages, generate=False))
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            prompt = chat_format.prompt_ids(messages[:index])
            assert whole[: len(prompt)] == prompt
            turn = chat_format.assistant_ids(messages[:index], message)
            assert whole[len(prompt) : len(prompt) + len(turn)] == turn


@pytest.mark.parametrize("template", TEMPLATES)
def test_template_appends_only(tokenizer, template):
    """The render of a conversation starts with the render of any earlier state of it.

    Only between two results of one turn nothing is rendered: they share a user turn.
    """
    rng = random.Random(0)
    for _ in range(50):
        messages = [{"role": "system", "content": "Be brief."}] if rng.random() < 0.5 else []
        messages.append({"role": "user", "content": "Add 1 and 2."})
        for _ in range(rng.randint(1, 3)):
            calls = [call("1+2")] * rng.randint(0, 3)
            content = rng.choice(["", "Let me see."])
            messages.append({"role": "assistant", "content": content, "tool_calls": calls})
            messages += [{"role": "tool", "content": "3"}] * len(calls) or [{"role": "user", "content": "Sure?"}]
        whole = render(tokenizer, template, messages)
        for (index, message), (_, following) in pairwise(enumerate(messages)):
            if message["role"] == following["role"] == "tool":
                continue
            state = messages[: index + 1]
            assert whole.startswith(render(tokenizer, template, state)), state
            if following["role"] == "assistant":
                assert whole.startswith(render(tokenizer, template, state, add_generation_prompt=True)), state


def render(tokenizer, template, messages, **options):
    """Render with one of our templates."""
    return tokenizer.apply_chat_template(
        messages, tools=TOOLS, tokenize=False, chat_template=read_template(f"builtin:{template}"), **options
    )


@pytest.mark.parametrize("template", TEMPLATES)
def test_template_keeps_the_contract_of_calls(tokenizer, template):
    """Calls and results look as in Qwen3's template: JSON in tags, and the results of a turn in one user turn."""
    messages = [
        {"role": "user", "content": "Add 1 and 2."},
        {"role": "assistant", "content": "Hm.", "tool_calls": [call("1+2"), call("é\n", as_text=False)]},
        {"role": "tool", "content": "3"},
        {"role": "tool", "content": "4"},
    ]
    text = render(tokenizer, template, messages, add_generation_prompt=True)
    assert text.endswith(
        "<|im_start|>user\nAdd 1 and 2.<|im_end|>\n"
        "<|im_start|>assistant\nHm.\n"
        '<tool_call>\n{"name": "python", "arguments": {"code": "1+2"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "python", "arguments": {"code": "é\\n"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert text.startswith("<|im_start|>system\n")
    assert f"<tools>\n{json.dumps(PYTHON_SCHEMA)}\n</tools>" in text


@pytest.mark.parametrize("template", TEMPLATES)
def test_template_keeps_the_system_message(tokenizer, template):
    """A system message of ours comes first, the tools after it, and it is rendered once."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = render(tokenizer, template, messages)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert text.count("Be brief.") == 1


def test_template_without_tools_says_nothing_of_them(tokenizer):
    """Without tools and system message the tiny template starts with the user."""
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n"


def test_model_is_small_seeded_and_leaves_the_random_state(tokenizer):
    """About a million parameters, at most 3 MB in bf16, equal for equal seeds."""
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    model = build_model(tokenizer, seed=0)
    assert torch.equal(before, torch.random.get_rng_state())
    assert 2 * model.num_parameters() < 3_000_000
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.head_dim == 64
    assert model.lm_head.weight is model.model.embed_tokens.weight
    same, other = build_model(tokenizer, seed=0), build_model(tokenizer, seed=1)
    assert torch.equal(model.lm_head.weight, same.lm_head.weight)
    assert not torch.equal(model.lm_head.weight, other.lm_head.weight)
