"""A teacher made of code: it solves the generated problems with real tool calls, and makes mistakes on purpose.

It reads the real outputs of its calls and goes on from them, as a model would. Its mistakes
(`agentrl_cli.collection.plans`) stay in the cold start of preset `tiny`, so that what RL adds beyond
imitation can be measured.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_cli.agent.loop import LAST_TURN_NOTICE
from agentrl_cli.collection.plans import GIVE_UP, PLANS, Plan, render_call
from agentrl_cli.errors import ConfigError, SamplerError
from agentrl_cli.seeding import derive_seed
from agentrl_cli.types import ChatCompletion, FinishReason, Message, Problem, SamplingParams


class ScriptedTeacher:
    """A `ChatSampler` over generated problems.

    What it does next depends on the conversation alone and on a hash of its seed, the request's seed
    and the problem: of the family's plans that agree with the calls made so far, one is drawn by weight.
    Nothing is remembered between requests.
    """

    def __init__(
        self, problems: Sequence[Problem], *, seed: int = 0, mistake_scale: float = 1.0, skip_tool_rate: float = 0.03
    ) -> None:
        """Prepare to teach.

        Args:
            problems: Generated problems (family and numbers in `meta`) that it may be asked about.
            seed: Of all its choices.
            mistake_scale: Factor on the weights of wrong plans and of `skip_tool_rate`; 0 makes no mistakes.
            skip_tool_rate: Share of problems that it answers with a guess, without any call.

        Raises:
            ConfigError: a problem is not a generated one.
        """
        if foreign := [p for p in problems if p.family not in PLANS]:
            raise ConfigError(
                f"the scripted teacher only knows generated problems, got {foreign[0].id!r}",
                hint="use --problems generated:sft, or another --teacher",
            )
        self._problems = {problem.prompt: problem for problem in problems}
        self._seed = seed
        self._mistake_scale = mistake_scale
        self._skip_tool_rate = skip_tool_rate * mistake_scale

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: SamplingParams
    ) -> ChatCompletion:
        """Return the next call, or the final message.

        Raises:
            SamplerError: the conversation is about another problem or was begun by someone else.
        """
        problem = self._find(messages)
        codes, outputs = _history(messages)
        rng = random.Random(derive_seed("teacher", self._seed, params.seed, problem.id, len(codes)))
        if not codes and (not tools or rng.random() < self._skip_tool_rate):
            return _completion(_boxed(_guess(problem, rng)))
        last = outputs[-1].removesuffix("\n" + LAST_TURN_NOTICE) if outputs else ""
        is_last_turn = bool(codes) and (messages[-1]["role"] == "user" or last != outputs[-1])
        plan = self._draw_plan(problem, codes, outputs, rng)
        if len(codes) < len(plan.calls) and not is_last_turn:
            code = render_call(plan, len(codes), problem.meta, last)
            if code is not None:
                return _completion("", code=code, turn=len(codes))
        is_usable = bool(last) and "Error" not in last
        return _completion(GIVE_UP if plan.gives_up or not is_usable else _boxed(last))

    async def close(self) -> None:
        """Nothing to free."""

    def _find(self, messages: Sequence[Message]) -> Problem:
        prompt = next((message["content"] for message in messages if message["role"] == "user"), None)
        problem = self._problems.get(str(prompt))
        if problem is None:
            raise SamplerError(f"the scripted teacher does not know the problem {prompt!r}")
        return problem

    def _draw_plan(self, problem: Problem, codes: Sequence[str], outputs: Sequence[str], rng: random.Random) -> Plan:
        plans = [plan for plan in PLANS[problem.family] if _agrees(plan, problem, codes, outputs)]
        weights = [plan.weight * (1.0 if plan.is_right else self._mistake_scale) for plan in plans]
        if not sum(weights):
            raise SamplerError(f"the scripted teacher can't go on from the calls {list(codes)!r}")
        return rng.choices(plans, weights)[0]


def _agrees(plan: Plan, problem: Problem, codes: Sequence[str], outputs: Sequence[str]) -> bool:
    """Whether following `plan` would have led to these calls."""
    if len(codes) > len(plan.calls):
        return False
    before = ["", *outputs]
    return all(render_call(plan, i, problem.meta, before[i]) == code for i, code in enumerate(codes))


def _history(messages: Sequence[Message]) -> tuple[list[str], list[str]]:
    """Return the code of all calls so far and their outputs."""
    calls = [call for message in messages for call in message.get("tool_calls") or []]
    codes = [str(json.loads(call["function"]["arguments"])["code"]) for call in calls]
    outputs = [str(message["content"]) for message in messages if message["role"] == "tool"]
    return codes, outputs


def _guess(problem: Problem, rng: random.Random) -> str:
    """A number as long as the answer, with its first digit right."""
    return problem.answer[0] + "".join(str(rng.randrange(10)) for _ in problem.answer[1:])


def _boxed(text: str) -> str:
    return f"The answer is \\boxed{{{text}}}."


def _completion(content: str, *, code: str | None = None, turn: int = 0) -> ChatCompletion:
    message: Message = {"role": "assistant", "content": content}
    if code is not None:
        arguments = json.dumps({"code": code}, ensure_ascii=False)
        function = {"name": "python", "arguments": arguments}
        message["tool_calls"] = [{"id": f"call_{turn}_0", "type": "function", "function": function}]
    return ChatCompletion(message=message, finish_reason=FinishReason.STOP)
