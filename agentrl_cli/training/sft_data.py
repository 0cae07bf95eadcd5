"""Turns recorded conversations into token rows, built piece by piece exactly as a rollout builds them.

Each piece (prompt, assistant turn, tool results) is tokenised on its own, like in the agent loop, so
that the ids a model is trained on are the ids it will meet. Loss falls on assistant turns only, their
end-of-turn token included.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from agentrl_cli.agent.calls import CallFormat
from agentrl_cli.agent.chat_format import ChatFormat
from agentrl_cli.errors import DataError
from agentrl_cli.types import Message


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One conversation as tokens: `ids` and `mask` (1 = assistant) follow the prompt."""

    id: str
    prompt_ids: list[int]
    ids: list[int]
    mask: list[int]

    @property
    def num_tokens(self) -> int:
        """Prompt and continuation together."""
        return len(self.prompt_ids) + len(self.ids)


class RowBuilder:
    """Builds token rows; conversations with the same tools share one checked chat format."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, call_format: CallFormat) -> None:
        self._tokenizer = tokenizer
        self._call_format: CallFormat = call_format
        self._formats: dict[str, ChatFormat] = {}

    def build(self, row: Mapping[str, Any], *, number: int) -> TokenRow:
        """Build one row.

        Args:
            row: A record with `messages` (OpenAI) and, if it has calls, `tools`.
            number: Its line in the file, from 1, for errors.

        Raises:
            DataError: the row has no messages, or no assistant turn.
        """
        messages = row.get("messages")
        if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
            raise DataError(f"line {number} has no 'messages' list of role/content objects", hint="see agentrl filter")
        first = next((i for i, m in enumerate(messages) if m["role"] == "assistant"), None)
        if not first:
            raise DataError(f"line {number} needs a prompt followed by an assistant message")
        chat_format = self._format(row.get("tools") or [])
        ids, mask = _continue(chat_format, messages, first)
        return TokenRow(str(row.get("id", number)), chat_format.prompt_ids(messages[:first]), ids, mask)

    def _format(self, tools: Sequence[Mapping[str, Any]]) -> ChatFormat:
        key = json.dumps(tools, sort_keys=True)
        if key not in self._formats:
            self._formats[key] = ChatFormat(self._tokenizer, tools=tools, call_format=self._call_format)
        return self._formats[key]


def _continue(chat_format: ChatFormat, messages: Sequence[Message], first: int) -> tuple[list[int], list[int]]:
    """Return ids and mask from the first assistant turn to the last one; what follows that teaches nothing."""
    ids: list[int] = []
    mask: list[int] = []
    last = max(i for i, m in enumerate(messages) if m["role"] == "assistant")
    position = first
    while position <= last:
        message = messages[position]
        if message["role"] == "assistant":
            piece = chat_format.assistant_ids(messages[:position], message)
            mask += [1] * len(piece)
            position += 1
        else:
            end = next(i for i in range(position, last + 1) if messages[i]["role"] == "assistant")
            piece = _between(chat_format, messages[position:end])
            mask += [0] * len(piece)
            position = end
        ids += piece
    return ids, mask


def _between(chat_format: ChatFormat, messages: Sequence[Message]) -> list[int]:
    """Return the ids of what stands between two assistant turns: tool results, or one user message."""
    roles = {m["role"] for m in messages}
    if roles == {"tool"}:
        return chat_format.tool_result_ids(
            [m.get("content") or "" for m in messages], [m.get("name") or "" for m in messages]
        )
    if roles == {"user"} and len(messages) == 1:
        return chat_format.user_ids(messages[0].get("content") or "")
    raise DataError(f"between two assistant turns there must be tool results or one user message, got {sorted(roles)}")
