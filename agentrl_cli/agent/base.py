"""Protocols of the agent loop: tools, and the conversation with a model.

The loop itself (`agentrl_cli.agent.loop`) is the same for collect, difficulty probing, rl and eval;
what differs between a token engine and a chat endpoint is the `Conversation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl_cli.types import FinishReason, Message, ToolCall, ToolResult, Trajectory


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """One turn of the model: its message as stored, the calls read from it, and why it ended."""

    message: Message
    calls: Sequence[ToolCall]
    finish_reason: FinishReason


class Conversation(Protocol):
    """A model in the middle of one trajectory; writes tokens and messages into the trajectory."""

    async def next_turn(self, trajectory: Trajectory, *, max_tokens: int) -> AssistantTurn:
        """Let the model speak and append its turn to the trajectory."""
        ...

    def add_tool_results(self, trajectory: Trajectory, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> int:
        """Append all results of a turn, in order; returns how many tokens that took (0 for chat endpoints)."""
        ...

    def add_user(self, trajectory: Trajectory, text: str) -> int:
        """Append a masked user message (a reminder of the loop); returns how many tokens that took."""
        ...

    async def close(self, trajectory: Trajectory) -> None:
        """Free what the model holds for this trajectory."""
        ...


class ToolSession(Protocol):
    """The tools of one trajectory, with whatever state they keep between its calls."""

    async def call(self, call: ToolCall) -> ToolResult:
        """Execute one call; failures are statuses, only `sandbox_error` means that it was not the model's doing."""
        ...

    async def close(self) -> None:
        """Free the state; safe to call twice."""
        ...


class ToolRunner(Protocol):
    """One tool of one trajectory."""

    async def run(self, call: ToolCall) -> ToolResult:
        """Execute one call of this tool; see `ToolSession.call`."""
        ...

    async def close(self) -> None:
        """Free the state."""
        ...


class Tool(Protocol):
    """One tool on offer."""

    @property
    def name(self) -> str:
        """What the model calls it."""
        ...

    @property
    def schema(self) -> Mapping[str, Any]:
        """OpenAI function schema, as the chat template renders it."""
        ...

    def open(self) -> ToolRunner:
        """Start what one trajectory needs of it; costs nothing until it is called."""
        ...


class Toolbox(Protocol):
    """The tools on offer."""

    @property
    def schemas(self) -> Sequence[Mapping[str, Any]]:
        """OpenAI function schemas, as the chat template renders them."""
        ...

    def open(self) -> ToolSession:
        """Start a session for one trajectory."""
        ...
