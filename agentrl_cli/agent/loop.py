"""The multi-turn loop: the model speaks, its calls run, it reads the results, until it answers or meets a limit.

collect, difficulty probing, rl and eval all run this loop. Every ending is an `Ending`; what each is
paid stands in `agentrl_cli.rewards`. A failure of the sampler or the sandbox ends the trajectory as
`infra_error`: it is data, its siblings go on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl_cli.agent.base import AssistantTurn, Conversation, Toolbox, ToolSession
from agentrl_cli.config.schema import AgentConfig
from agentrl_cli.errors import SamplerError
from agentrl_cli.rewards.answers import has_answer
from agentrl_cli.types import (
    Ending,
    FinishReason,
    Message,
    Problem,
    ToolCall,
    ToolEvent,
    ToolResult,
    ToolStatus,
    Trajectory,
)

LAST_TURN_NOTICE = "No further tool calls are possible. Give your final answer now."
REMINDER = "Use the tool now, or give your final answer in \\boxed{}."


@dataclass(frozen=True, slots=True)
class AgentLimits:
    """Bounds of one trajectory; see `AgentConfig` for their meaning."""

    max_turns: int
    max_tool_calls: int
    max_completion_length: int
    max_tokens_without_call: int

    @classmethod
    def from_config(cls, config: AgentConfig) -> AgentLimits:
        """Take the limits of the [agent] section."""
        return cls(
            max_turns=config.max_turns,
            max_tool_calls=config.max_tool_calls,
            max_completion_length=config.max_completion_length,
            max_tokens_without_call=config.max_tokens_without_call,
        )


async def run_trajectory(
    problem: Problem,
    conversation: Conversation,
    toolbox: Toolbox,
    *,
    limits: AgentLimits,
    seed: int,
    trajectory_id: str,
    group_id: str,
    system_prompt: str = "",
) -> Trajectory:
    """Run one rollout of one problem to its ending; reward and verdict are not set here."""
    system: list[Message] = [{"role": "system", "content": system_prompt}] if system_prompt else []
    trajectory = Trajectory(
        id=trajectory_id,
        problem=problem,
        group_id=group_id,
        seed=seed,
        messages=[*system, {"role": "user", "content": problem.prompt}],
        tools=toolbox.schemas,
    )
    tools = toolbox.open()
    start = time.monotonic()
    try:
        trajectory.ending = await _run_turns(trajectory, conversation, tools, limits=limits)
    except SamplerError as error:
        trajectory.ending, trajectory.error = Ending.INFRA_ERROR, error.message
    finally:
        trajectory.wall_s = time.monotonic() - start
        await tools.close()
        await conversation.close(trajectory)
    return trajectory


async def _run_turns(
    trajectory: Trajectory, conversation: Conversation, tools: ToolSession, *, limits: AgentLimits
) -> Ending:
    used = 0
    limit_met = Ending.MAX_TURNS if limits.max_turns == 1 else None
    while True:
        left = limits.max_completion_length - used
        max_tokens = min(left, limits.max_tokens_without_call or left)
        turn = await conversation.next_turn(trajectory, max_tokens=max_tokens)
        used += trajectory.turn_tokens[-1]
        if turn.finish_reason is FinishReason.LENGTH:
            is_last = limit_met is not None or trajectory.num_turns >= limits.max_turns
            if max_tokens == left or is_last:
                return Ending.MAX_TOKENS
            if not turn.calls:
                used += conversation.add_user(trajectory, REMINDER)
                if used >= limits.max_completion_length:
                    return Ending.MAX_TOKENS
                continue
        if not turn.calls:
            answered = has_answer(turn.message["content"], trajectory.problem.kind)
            return Ending.ANSWERED if answered else limit_met or Ending.NO_ANSWER
        if limit_met is not None:
            return limit_met
        results = await _run_calls(trajectory, turn, tools, limits=limits)
        if results[-1].status is ToolStatus.SANDBOX_ERROR:
            trajectory.error = results[-1].content
            return Ending.INFRA_ERROR
        limit_met = _limit_met(trajectory, limits)
        if limit_met is not None:
            last = results[-1]
            results[-1] = ToolResult(last.status, f"{last.content}\n{LAST_TURN_NOTICE}", wall_s=last.wall_s)
        used += conversation.add_tool_results(trajectory, turn.calls[: len(results)], results)
        if used >= limits.max_completion_length:
            return Ending.MAX_TOKENS


async def _run_calls(
    trajectory: Trajectory, turn: AssistantTurn, tools: ToolSession, *, limits: AgentLimits
) -> list[ToolResult]:
    """Execute a turn's calls in order; calls past the limit are answered, not executed. Stops at a sandbox error."""
    results: list[ToolResult] = []
    for call in turn.calls:
        if trajectory.num_calls >= limits.max_tool_calls:
            result = ToolResult(ToolStatus.INVALID, "Error: the limit of tool calls is reached")
        else:
            result = await tools.call(call)
        trajectory.events.append(ToolEvent(trajectory.num_turns - 1, call, result))
        results.append(result)
        if result.status is ToolStatus.SANDBOX_ERROR:
            break
    return results


def _limit_met(trajectory: Trajectory, limits: AgentLimits) -> Ending | None:
    """Return the ending that a further call would lead to, or None while calls are free."""
    if trajectory.num_calls >= limits.max_tool_calls:
        return Ending.TOOL_LIMIT
    if trajectory.num_turns >= limits.max_turns - 1:
        return Ending.MAX_TURNS
    return None


def tool_messages(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> list[Message]:
    """Return the OpenAI tool messages of a turn's results."""
    return [
        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": result.content}
        for call, result in zip(calls, results, strict=True)
    ]
