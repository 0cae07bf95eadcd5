"""A conversation with an engine that takes and gives token ids."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl_cli.agent.base import AssistantTurn
from agentrl_cli.agent.chat_format import ChatFormat
from agentrl_cli.agent.loop import tool_messages
from agentrl_cli.sampler.base import Sampler
from agentrl_cli.seeding import derive_seed
from agentrl_cli.types import SamplingParams, SessionKey, ToolCall, ToolResult, Trajectory


class TokenConversation:
    """Keeps a trajectory's tokens, mask and log-probabilities as the engine drew them.

    Ids are never re-tokenised: the text in `messages` is derived from them. Tokens past
    `max_length` (a long tool result) are cut off, so that every trajectory fits its engine.
    """

    def __init__(
        self, sampler: Sampler, chat_format: ChatFormat, *, temperature: float, top_p: float, max_length: int
    ) -> None:
        self._sampler = sampler
        self._format = chat_format
        self._temperature = temperature
        self._top_p = top_p
        self._max_length = max_length

    async def next_turn(self, trajectory: Trajectory, *, max_tokens: int) -> AssistantTurn:
        """Generate a turn and append its ids, mask 1 and log-probabilities."""
        if not trajectory.prompt_ids:
            trajectory.prompt_ids = self._format.prompt_ids(trajectory.messages)
        turn = trajectory.num_turns
        params = SamplingParams(
            max_tokens=max_tokens,
            temperature=self._temperature,
            top_p=self._top_p,
            seed=derive_seed(trajectory.seed, turn),
            stop_token_ids=(self._format.eos_id,),
        )
        completion = await self._sampler.generate(
            trajectory.prompt_ids + trajectory.ids, params, session=SessionKey(trajectory.id, trajectory.group_id)
        )
        trajectory.ids += completion.ids
        trajectory.mask += [1] * len(completion.ids)
        trajectory.sampler_logp += completion.logprobs
        trajectory.turn_tokens.append(len(completion.ids))
        trajectory.turn_versions.append(completion.weight_version)
        parsed = self._format.parse(completion.ids, turn=turn)
        message = parsed.message()
        trajectory.messages.append(message)
        return AssistantTurn(message, parsed.calls, completion.finish_reason)

    def add_tool_results(self, trajectory: Trajectory, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> int:
        """Append all results of a turn as one difference of two renders, mask 0."""
        trajectory.messages += tool_messages(calls, results)
        ids = self._format.tool_result_ids([result.content for result in results], [call.name for call in calls])
        return self._append_masked(trajectory, ids)

    def add_user(self, trajectory: Trajectory, text: str) -> int:
        """Append a user message, mask 0."""
        trajectory.messages.append({"role": "user", "content": text})
        return self._append_masked(trajectory, self._format.user_ids(text))

    async def close(self, trajectory: Trajectory) -> None:
        """Free the trajectory's KV cache."""
        await self._sampler.release(trajectory.id)

    def _append_masked(self, trajectory: Trajectory, ids: list[int]) -> int:
        # a turn that was cut off has no eos of its own: the glue must close it
        if trajectory.ids and trajectory.ids[-1] != self._format.eos_id:
            ids = [self._format.eos_id, *ids]
        ids = ids[: self._max_length - len(trajectory.ids)]
        trajectory.ids += ids
        trajectory.mask += [0] * len(ids)
        trajectory.sampler_logp += [0.0] * len(ids)
        return len(ids)
