"""How tool calls are read out of what a model wrote."""

from __future__ import annotations

import json

import pytest

from agentrl_cli.agent.calls import parse_turn


def hermes(text: str):
    return parse_turn(text, call_format="hermes", turn=3)


def test_a_call_is_taken_out_of_the_content() -> None:
    """The call becomes name and JSON arguments; the text around it stays as content."""
    parsed = hermes('Let me see.\n<tool_call>\n{"name": "python", "arguments": {"code": "1+1"}}\n</tool_call>')
    assert parsed.content == "Let me see."
    assert [(c.id, c.name, json.loads(c.arguments), c.error) for c in parsed.calls] == [
        ("call_3_0", "python", {"code": "1+1"}, "")
    ]


def test_several_calls_keep_their_order_and_ids() -> None:
    """Every call of a turn is read, in order, under its own id."""
    call = '<tool_call>{"name": "python", "arguments": {"code": "%d"}}</tool_call>'
    parsed = hermes(call % 1 + "\n" + call % 2)
    assert [c.id for c in parsed.calls] == ["call_3_0", "call_3_1"]
    assert [json.loads(c.arguments)["code"] for c in parsed.calls] == ["1", "2"]


def test_raw_newlines_inside_the_code_are_accepted() -> None:
    """Models write line breaks into JSON strings unescaped; the code is still what they meant."""
    parsed = hermes('<tool_call>{"name": "python", "arguments": {"code": "a=1\nprint(a)"}}</tool_call>')
    assert json.loads(parsed.calls[0].arguments)["code"] == "a=1\nprint(a)"


@pytest.mark.parametrize(
    ("inner", "complaint"),
    [
        ('{"name": "python", "arguments": {"code": "1"', "not valid JSON"),
        ("print(1)", "not valid JSON"),
        ('["python"]', '"name" and "arguments"'),
        ('{"arguments": {"code": "1"}}', '"name" and "arguments"'),
        ('{"name": "python", "arguments": "1+1"}', "must be a JSON object"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_call_that_cannot_be_read_says_what_is_wrong(inner: str, complaint: str) -> None:
    """It remains a call, with an error for the model, whether or not its marker is closed."""
    for text in (f"<tool_call>{inner}</tool_call>", f"<tool_call>{inner}"):
        (call,) = hermes(text).calls
        assert complaint in call.error


def test_calls_inside_a_think_block_do_not_count() -> None:
    """Only text after the think block may call; an open think block has no end yet."""
    call = '<tool_call>{"name": "python", "arguments": {}}</tool_call>'
    assert hermes(f"<think>{call}</think>done").calls == ()
    assert hermes(f"<think>{call}").calls == ()
    assert len(hermes(f"<think>hm</think>{call}").calls) == 1


def test_python_blocks_are_calls_in_their_own_format() -> None:
    """Fenced python code is a call; other fences and unclosed ones are not."""
    text = "Compute:\n```python\nx = 2\nprint(x)\n```\nand\n```text\nno\n```\n```python\nopen"
    parsed = parse_turn(text, call_format="python_block", turn=0)
    assert [json.loads(c.arguments)["code"] for c in parsed.calls] == ["x = 2\nprint(x)"]
    assert parsed.content == text.strip()


def test_the_message_is_openai_shaped() -> None:
    """A turn without calls has no tool_calls key; with calls, arguments are a JSON string."""
    assert hermes("hello").message() == {"role": "assistant", "content": "hello"}
    message = hermes('<tool_call>{"name": "python", "arguments": {"code": "é"}}</tool_call>').message()
    assert message["tool_calls"][0]["function"] == {"name": "python", "arguments": '{"code": "é"}'}
