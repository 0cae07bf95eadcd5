"""The values that travel between modules: problems, messages, completions, trajectories.

Pure data, no torch. One trajectory is one rollout of one problem: prompt, then every token that
follows it in order (generated turns, template glue, tool results), with a mask that says which of
them the policy generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Message = dict[str, Any]
"""An OpenAI chat message: role, content, and for assistants `tool_calls` (arguments a JSON string)."""


class AnswerKind(StrEnum):
    """How an answer is compared; it comes from the gold, never from the response."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    MATH = "math"
    CHOICE = "choice"
    CODE = "code"


class VerdictStatus(StrEnum):
    """What verification of one response came to."""

    OK = "ok"
    NO_ANSWER = "no_answer"
    TRUNCATED = "truncated"
    UNPARSED = "unparsed"
    TIMEOUT = "timeout"
    INFRA_ERROR = "infra_error"


class Ending(StrEnum):
    """Why a trajectory ended. What each is paid and whether it trains: see `agentrl_cli.rewards`."""

    ANSWERED = "answered"
    NO_ANSWER = "no_answer"
    MAX_TURNS = "max_turns"
    TOOL_LIMIT = "tool_limit"
    MAX_TOKENS = "max_tokens"
    INFRA_ERROR = "infra_error"
    CANCELLED = "cancelled"

    @property
    def is_truncated(self) -> bool:
        """Counts as truncated in `truncated_frac`."""
        return self in (Ending.MAX_TURNS, Ending.TOOL_LIMIT, Ending.MAX_TOKENS)

    @property
    def is_valid(self) -> bool:
        """Belongs to its group and to the loss (infrastructure failures and cancellations do not)."""
        return self not in (Ending.INFRA_ERROR, Ending.CANCELLED)


class ToolStatus(StrEnum):
    """What one tool call came to; `sandbox_error` alone is ours and never counts against the model."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    CRASH = "crash"
    DENIED = "denied"
    INVALID = "invalid"
    """The call could not be parsed or named no tool; nothing was executed."""
    SANDBOX_ERROR = "sandbox_error"


@dataclass(frozen=True, slots=True)
class Problem:
    """One question with its gold answer."""

    id: str
    prompt: str
    answer: str
    kind: AnswerKind = AnswerKind.INTEGER
    source: str = ""
    family: str = ""
    level: int = 0
    """Difficulty level, 1 (easy) upwards; 0 where the source has none."""
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asked for; `error` says why it could not be read, else it is empty."""

    id: str
    name: str
    arguments: str
    """JSON object as text."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered: `content` is exactly the text that the model sees."""

    status: ToolStatus
    content: str
    wall_s: float = 0.0

    @property
    def is_executed(self) -> bool:
        """The call ran (whether it succeeded or not); a call that could not be read did not."""
        return self.status not in (ToolStatus.INVALID, ToolStatus.SANDBOX_ERROR)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample one completion."""

    max_tokens: int
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 switches it off."""
    seed: int = 0
    """Of this completion alone: the drawn tokens do not depend on what else is in the batch."""
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Names the trajectory whose KV cache a request continues, and the group whose prompt it shares."""

    trajectory_id: str
    group_id: str = ""


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Completion:
    """Tokens of one turn as the engine drew them, the stop token included."""

    ids: list[int]
    logprobs: list[float]
    """log p of each drawn token under logits / temperature (temperature 1 for greedy), full softmax."""
    finish_reason: FinishReason
    weight_version: int = 0


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """One assistant message of a chat endpoint."""

    message: Message
    finish_reason: FinishReason
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right, what was read out of the response, and how that went."""

    correct: bool
    status: VerdictStatus
    extracted: str = ""


@dataclass(frozen=True, slots=True)
class ToolEvent:
    """One call with its result, and the turn (from 0) that asked for it."""

    turn: int
    call: ToolCall
    result: ToolResult


@dataclass(slots=True)
class Trajectory:
    """One rollout of one problem.

    `ids`, `mask` and `sampler_logp` have one entry per token after the prompt; mask 1 marks tokens
    that the policy generated (its end-of-turn token included). They are empty when the model was a
    chat endpoint.
    """

    id: str
    problem: Problem
    group_id: str
    seed: int
    messages: list[Message]
    tools: Sequence[Mapping[str, Any]]
    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    sampler_logp: list[float] = field(default_factory=list)
    turn_versions: list[int] = field(default_factory=list)
    """Weight version that generated each turn."""
    turn_tokens: list[int] = field(default_factory=list)
    """Generated tokens of each turn."""
    events: list[ToolEvent] = field(default_factory=list)
    ending: Ending = Ending.NO_ANSWER
    error: str = ""
    """For `infra_error`: what failed."""
    verdict: Verdict | None = None
    reward: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict)
    advantage: float = 0.0
    wall_s: float = 0.0

    @property
    def num_generated(self) -> int:
        """Tokens that the policy generated."""
        return sum(self.turn_tokens)

    @property
    def num_turns(self) -> int:
        """Calls of the model."""
        return len(self.turn_tokens)

    @property
    def num_calls(self) -> int:
        """Tool calls that were executed."""
        return sum(event.result.is_executed for event in self.events)

    @property
    def num_successful_calls(self) -> int:
        """Tool calls that ran without error."""
        return sum(event.result.status is ToolStatus.OK for event in self.events)

    @property
    def final_text(self) -> str:
        """Content of the last assistant message, or an empty string."""
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                return message.get("content") or ""
        return ""
