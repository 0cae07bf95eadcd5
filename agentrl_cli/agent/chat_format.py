"""Text to tokens and back, by the model's own chat template, so that a conversation only ever grows.

Generated ids are kept as they are. What follows a turn (tool results, a reminder) is tokenised as the
difference between two renders of the template over a placeholder turn: a render of the model's real
turn would re-serialise its call arguments and rarely match what it wrote. That difference only exists
if a longer conversation's render starts with the shorter one's (the prefix property); a template
without it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from agentrl_cli.agent.calls import CallFormat, ParsedTurn, parse_turn
from agentrl_cli.errors import DataError, ModelError
from agentrl_cli.types import Message

_USER: Message = {"role": "user", "content": "placeholder"}
_PLACEHOLDER = "placeholder turn"
_TEMPLATE_HINT = "--set model.chat_template=FILE.jinja (or builtin:smollm2-tools)"


class ChatFormat:
    """One tokenizer with its chat template, for one set of tools."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, tools: Sequence[Mapping[str, Any]], call_format: CallFormat
    ) -> None:
        if not tokenizer.chat_template:
            raise ModelError(
                "the tokenizer has no chat template",
                hint=f"give one: {_TEMPLATE_HINT}",
            )
        if tokenizer.eos_token is None:
            raise ModelError("the tokenizer has no end-of-turn token (eos_token)", hint="set eos_token in its config")
        self.tokenizer = tokenizer
        self.tools: list[Any] = [dict(tool) for tool in tools]
        self.call_format: CallFormat = call_format
        self.eos_token: str = tokenizer.eos_token
        self.eos_id: int = tokenizer.eos_token_id
        self._check_tools_are_shown()
        self._check_prefix_property()

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of a conversation up to where the model speaks next."""
        return self.encode(self.render(messages, generate=True))

    def parse(self, ids: Sequence[int], *, turn: int) -> ParsedTurn:
        """Read a generated turn (its end-of-turn token may be missing)."""
        if ids and ids[-1] == self.eos_id:
            ids = ids[:-1]
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return parse_turn(str(text), call_format=self.call_format, turn=turn)

    def tool_result_ids(self, contents: Sequence[str], names: Sequence[str]) -> list[int]:
        """Return the ids from the end of a turn's eos to where the model speaks next, results between."""
        if self.call_format == "python_block":
            return self.user_ids("\n".join(f"```output\n{content}\n```" for content in contents))
        calls = [
            {"id": f"call_{i}", "type": "function", "function": {"name": name or "python", "arguments": {}}}
            for i, name in enumerate(names)
        ]
        assistant = {"role": "assistant", "content": _PLACEHOLDER, "tool_calls": calls}
        results = [
            {"role": "tool", "tool_call_id": f"call_{i}", "name": name or "python", "content": content}
            for i, (content, name) in enumerate(zip(contents, names, strict=True))
        ]
        return self.encode(self._text_after(assistant, results))

    def user_ids(self, text: str) -> list[int]:
        """Return the ids from the end of a turn's eos to where the model speaks next, a user message between."""
        assistant = {"role": "assistant", "content": _PLACEHOLDER}
        return self.encode(self._text_after(assistant, [{"role": "user", "content": text}]))

    def assistant_ids(self, history: Sequence[Message], message: Message) -> list[int]:
        """Return the ids of one assistant turn as the template writes it, eos included (for training on text)."""
        before = self.render(history, generate=True)
        after = self.render([*history, message], generate=False)
        self._require_prefix(before, after)
        end = after.rfind(self.eos_token)
        if end < len(before):
            raise self._no_end()
        return self.encode(after[len(before) : end + len(self.eos_token)])

    def render(self, messages: Sequence[Message], *, generate: bool) -> str:
        """Return the template's text.

        Raises:
            DataError: the template fails on this conversation.
        """
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    [_with_dict_arguments(message) for message in messages],
                    tools=self.tools or None,
                    tokenize=False,
                    add_generation_prompt=generate,
                )
            )
        except TemplateError as error:
            roles = ", ".join(dict.fromkeys(str(message["role"]) for message in messages))
            raise DataError(f"the chat template fails on a conversation of {roles}: {error}") from error

    def encode(self, text: str) -> list[int]:
        """Return ids without any token that the text does not name."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _text_after(self, assistant: Message, following: Sequence[Message]) -> str:
        before = self.render([_USER, assistant], generate=False)
        after = self.render([_USER, assistant, *following], generate=True)
        self._require_prefix(before, after)
        end = before.rfind(self.eos_token)
        if end < before.rfind(_PLACEHOLDER):
            raise self._no_end()
        return after[end + len(self.eos_token) :]

    def _check_tools_are_shown(self) -> None:
        prompt = self.render([_USER], generate=True)
        hidden = [name for tool in self.tools if (name := str(tool["function"]["name"])) not in prompt]
        if hidden and self.call_format != "python_block":
            raise ModelError(
                f"the chat template knows no tools: its prompt does not name {', '.join(hidden)}",
                hint=f"give one that does, {_TEMPLATE_HINT}, or go without: --set tools.names=[]",
            )

    def _check_prefix_property(self) -> None:
        self.user_ids("placeholder")
        if self.tools or self.call_format == "python_block":
            self.tool_result_ids(["placeholder"], [""])
            self.tool_result_ids(["placeholder", "placeholder"], ["", ""])

    def _no_end(self) -> ModelError:
        return ModelError(
            f"the chat template does not end an assistant turn with {self.eos_token!r}, the tokenizer's eos_token",
            hint=f"give a template that does: {_TEMPLATE_HINT}",
        )

    @staticmethod
    def _require_prefix(before: str, after: str) -> None:
        if after.startswith(before):
            return
        pairs = enumerate(zip(before, after, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(before), len(after)))
        window = slice(max(0, at - 40), at + 40)
        raise ModelError(
            "the chat template rewrites earlier turns when the conversation grows; the first difference: "
            f"{before[window]!r} became {after[window]!r}",
            hint="use a template that only appends: --set model.chat_template=FILE.jinja",
        )


def _with_dict_arguments(message: Message) -> Message:
    """Give templates the call arguments as a dict: some would quote a JSON string a second time."""
    if not message.get("tool_calls"):
        return message
    calls = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        try:
            arguments = json.loads(function["arguments"])
        except (ValueError, TypeError):
            arguments = function["arguments"]
        if isinstance(arguments, dict):
            function["arguments"] = arguments
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}
