"""A conversation with a chat endpoint or a scripted teacher: messages, no token ids."""

from __future__ import annotations

import json
from collections.abc import Sequence

from agentrl_cli.agent.base import AssistantTurn
from agentrl_cli.agent.loop import tool_messages
from agentrl_cli.sampler.base import ChatSampler
from agentrl_cli.seeding import derive_seed
from agentrl_cli.types import Message, SamplingParams, ToolCall, ToolResult, Trajectory


class ChatConversation:
    """Keeps a trajectory's messages; `turn_tokens` is what the endpoint says it generated."""

    def __init__(self, sampler: ChatSampler, *, temperature: float, top_p: float) -> None:
        self._sampler = sampler
        self._temperature = temperature
        self._top_p = top_p

    async def next_turn(self, trajectory: Trajectory, *, max_tokens: int) -> AssistantTurn:
        """Ask for the next assistant message."""
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=self._temperature,
            top_p=self._top_p,
            seed=derive_seed(trajectory.seed, trajectory.num_turns),
        )
        completion = await self._sampler.complete(trajectory.messages, trajectory.tools, params)
        trajectory.turn_tokens.append(completion.completion_tokens)
        message, calls = _normalise(completion.message)
        trajectory.messages.append(message)
        return AssistantTurn(message, calls, completion.finish_reason)

    def add_tool_results(self, trajectory: Trajectory, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> int:
        """Append one tool message per call."""
        trajectory.messages += tool_messages(calls, results)
        return 0

    def add_user(self, trajectory: Trajectory, text: str) -> int:
        """Append a user message."""
        trajectory.messages.append({"role": "user", "content": text})
        return 0

    async def close(self, trajectory: Trajectory) -> None:
        """Nothing is held per trajectory."""


def _normalise(message: Message) -> tuple[Message, list[ToolCall]]:
    """Keep the fields of the OpenAI format; arguments become a JSON string."""
    calls = []
    for raw in message.get("tool_calls") or []:
        function = raw["function"]
        arguments = function["arguments"]
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        calls.append(ToolCall(raw["id"], function["name"], text))
    kept: Message = {"role": "assistant", "content": message.get("content") or ""}
    if calls:
        kept["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return kept, calls
