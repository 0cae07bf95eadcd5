"""The semantics of a rollout: what ends it, what the model is told, and which tokens train.

Locked here: a malformed call is answered and counts as failed; calls past the limit are answered, not
executed; the limit of turns leaves one last turn in which the model knows it; a turn cut by the token
limit ends the trajectory even with a complete box; a sandbox failure is never a wrong answer; tool
tokens and template glue have mask 0 and every generated token, its end-of-turn included, has mask 1.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from transformers import PreTrainedTokenizerBase

from agentrl_cli.agent.chat_format import ChatFormat
from agentrl_cli.agent.loop import LAST_TURN_NOTICE, REMINDER, AgentLimits, run_trajectory
from agentrl_cli.agent.token_conversation import TokenConversation
from agentrl_cli.agent.tools import PYTHON_SCHEMA
from agentrl_cli.errors import SamplerError
from agentrl_cli.sampler.scripted import ScriptedSampler
from agentrl_cli.types import (
    Ending,
    Problem,
    SamplingParams,
    SessionKey,
    ToolCall,
    ToolResult,
    ToolStatus,
    Trajectory,
)

PROBLEM = Problem(id="p", prompt="What is 6*7?", answer="42")
LIMITS = AgentLimits(max_turns=4, max_tool_calls=3, max_completion_length=400, max_tokens_without_call=0)
ANSWER = "The answer is \\boxed{42}."


def call(code: str) -> str:
    """Return a turn that calls the tool."""
    arguments = json.dumps({"code": code})
    return f'<tool_call>\n{{"name": "python", "arguments": {arguments}}}\n</tool_call>'


class EchoToolbox:
    """Answers every python call with `ran CODE`, or with a given result; notes what was executed."""

    schemas = (PYTHON_SCHEMA,)

    def __init__(self, result: ToolResult | None = None) -> None:
        self.executed: list[str] = []
        self.closed = 0
        self._result = result

    def open(self) -> EchoToolbox:
        return self

    async def call(self, call: ToolCall) -> ToolResult:
        if call.error:
            return ToolResult(ToolStatus.INVALID, f"Error: {call.error}")
        code = json.loads(call.arguments)["code"]
        self.executed.append(code)
        return self._result or ToolResult(ToolStatus.OK, f"ran {code}")

    async def close(self) -> None:
        self.closed += 1


def roll_out(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[str],
    *,
    limits: AgentLimits = LIMITS,
    toolbox: EchoToolbox | None = None,
) -> Trajectory:
    """Play a scripted model; a turn that is longer than its allowance is cut there."""
    toolbox = toolbox or EchoToolbox()
    script = iter(turns)

    def speak(prompt_ids: Sequence[int], params: SamplingParams, session: SessionKey | None) -> list[int]:
        ids = tokenizer(next(script) + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
        return list(ids)[: params.max_tokens]

    chat_format = ChatFormat(tokenizer, tools=toolbox.schemas, call_format="hermes")
    conversation = TokenConversation(
        ScriptedSampler(speak), chat_format, temperature=1.0, top_p=1.0, max_length=limits.max_completion_length
    )
    trajectory = asyncio.run(
        run_trajectory(PROBLEM, conversation, toolbox, limits=limits, seed=1, trajectory_id="t", group_id="g")
    )
    assert toolbox.closed == 1
    assert len(trajectory.ids) == len(trajectory.mask) == len(trajectory.sampler_logp)
    assert sum(trajectory.mask) == trajectory.num_generated == sum(trajectory.turn_tokens)
    return trajectory


def text(tokenizer: PreTrainedTokenizerBase, trajectory: Trajectory, mask: int) -> str:
    """Return the text of the tokens with this mask value."""
    return tokenizer.decode([i for i, m in zip(trajectory.ids, trajectory.mask, strict=True) if m == mask])


def test_a_call_is_run_and_its_output_read(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """Generated turns are the masked-in tokens; the tool's output and the glue are masked out."""
    trajectory = roll_out(tiny_tokenizer, [call("6*7"), ANSWER])
    assert trajectory.ending is Ending.ANSWERED
    assert [m["role"] for m in trajectory.messages] == ["user", "assistant", "tool", "assistant"]
    assert trajectory.messages[2] == {
        "role": "tool",
        "tool_call_id": "call_0_0",
        "name": "python",
        "content": "ran 6*7",
    }
    eos = tiny_tokenizer.eos_token
    assert text(tiny_tokenizer, trajectory, 1) == call("6*7") + eos + ANSWER + eos
    between = text(tiny_tokenizer, trajectory, 0)
    assert "ran 6*7" in between
    assert between.endswith("<|im_start|>assistant\n")


def test_the_tokens_are_what_the_template_renders(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """Prompt, turns and results together equal one render of the whole conversation."""
    trajectory = roll_out(tiny_tokenizer, [call("6*7"), call("42"), ANSWER])
    whole = tiny_tokenizer.apply_chat_template(trajectory.messages, tools=[PYTHON_SCHEMA], tokenize=False)
    rolled = tiny_tokenizer.decode(trajectory.prompt_ids + trajectory.ids)
    assert rolled + "\n" == whole


def test_no_box_and_no_call_is_no_answer(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """A turn that just stops ends the trajectory."""
    assert roll_out(tiny_tokenizer, ["I do not know."]).ending is Ending.NO_ANSWER


def test_a_malformed_call_is_answered_and_counts_as_failed(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """The model learns what was wrong and may go on; nothing was executed."""
    trajectory = roll_out(tiny_tokenizer, ["<tool_call>{broken</tool_call>", ANSWER])
    assert trajectory.ending is Ending.ANSWERED
    assert "not valid JSON" in trajectory.messages[2]["content"]
    assert (trajectory.num_calls, trajectory.num_successful_calls, len(trajectory.events)) == (0, 0, 1)


def test_all_calls_of_a_turn_are_answered_in_order(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """Two calls in a turn give two tool messages, rendered together."""
    toolbox = EchoToolbox()
    trajectory = roll_out(tiny_tokenizer, [call("1") + "\n" + call("2"), ANSWER], toolbox=toolbox)
    assert toolbox.executed == ["1", "2"]
    assert [m["content"] for m in trajectory.messages if m["role"] == "tool"] == ["ran 1", "ran 2"]


def test_the_last_turn_is_announced_and_ends_by_turns(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """With four turns, the third result carries the notice; a fourth call is not executed."""
    toolbox = EchoToolbox()
    trajectory = roll_out(
        tiny_tokenizer, [call("1"), call("2"), call("3"), call("4")], toolbox=toolbox, limits=AgentLimits(4, 99, 400, 0)
    )
    assert trajectory.ending is Ending.MAX_TURNS
    assert toolbox.executed == ["1", "2", "3"]
    notices = [LAST_TURN_NOTICE in m["content"] for m in trajectory.messages if m["role"] == "tool"]
    assert notices == [False, False, True]


def test_an_answer_in_the_last_turn_counts(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """The last turn is a real one."""
    turns = [call("1"), call("2"), call("3"), ANSWER]
    assert roll_out(tiny_tokenizer, turns, limits=AgentLimits(4, 99, 400, 0)).ending is Ending.ANSWERED


def test_no_answer_in_the_last_turn_ends_by_its_limit(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """Giving up after the notice is the limit's ending, not a plain missing answer."""
    trajectory = roll_out(tiny_tokenizer, [call("1"), "Sorry."], limits=AgentLimits(2, 99, 400, 0))
    assert trajectory.ending is Ending.MAX_TURNS


def test_the_limit_of_calls_is_announced_and_ends_by_calls(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """A call past the limit is answered with an error; the turn after the notice may not call."""
    toolbox = EchoToolbox()
    turns = [call("1") + call("2"), call("3")]
    trajectory = roll_out(tiny_tokenizer, turns, toolbox=toolbox, limits=AgentLimits(9, 1, 400, 0))
    assert trajectory.ending is Ending.TOOL_LIMIT
    assert toolbox.executed == ["1"]
    assert "limit of tool calls" in trajectory.messages[3]["content"]


def test_a_turn_cut_by_the_token_limit_ends_even_with_a_box(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """A complete box before the cut does not save the trajectory."""
    length = len(tiny_tokenizer(ANSWER, add_special_tokens=False)["input_ids"])
    trajectory = roll_out(tiny_tokenizer, [ANSWER + " And so on."], limits=AgentLimits(4, 3, length, 0))
    assert trajectory.ending is Ending.MAX_TOKENS
    assert len(trajectory.ids) == length


def test_a_result_that_does_not_fit_is_cut_and_ends_the_trajectory(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """Tool output counts towards the length; nothing is generated after it."""
    toolbox = EchoToolbox(ToolResult(ToolStatus.OK, "9" * 1000))
    trajectory = roll_out(tiny_tokenizer, [call("1")], toolbox=toolbox, limits=AgentLimits(4, 3, 100, 0))
    assert trajectory.ending is Ending.MAX_TOKENS
    assert len(trajectory.ids) == 100


def test_a_long_turn_without_a_call_is_closed_with_a_reminder(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """The cut turn gets an end-of-turn that is masked out, then the reminder; the model goes on."""
    limits = AgentLimits(max_turns=4, max_tool_calls=3, max_completion_length=400, max_tokens_without_call=60)
    trajectory = roll_out(tiny_tokenizer, ["hm " * 200, call("1"), ANSWER], limits=limits)
    assert trajectory.ending is Ending.ANSWERED
    assert trajectory.turn_tokens[0] == 60
    assert trajectory.mask[:61] == [1] * 60 + [0]
    assert trajectory.ids[60] == tiny_tokenizer.eos_token_id
    assert {"role": "user", "content": REMINDER} in trajectory.messages


def test_a_sandbox_failure_is_infrastructure(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """It ends the trajectory, keeps the reason, and counts as no call."""
    toolbox = EchoToolbox(ToolResult(ToolStatus.SANDBOX_ERROR, "no process"))
    trajectory = roll_out(tiny_tokenizer, [call("1")], toolbox=toolbox)
    assert (trajectory.ending, trajectory.error) == (Ending.INFRA_ERROR, "no process")
    assert trajectory.num_calls == 0


def test_a_sampler_failure_is_infrastructure(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """It is data, not a crash; what the trajectory held is freed."""

    def fail(prompt_ids: Sequence[int], params: SamplingParams, session: SessionKey | None) -> list[int]:
        raise SamplerError("the engine died")

    toolbox = EchoToolbox()
    chat_format = ChatFormat(tiny_tokenizer, tools=toolbox.schemas, call_format="hermes")
    conversation = TokenConversation(ScriptedSampler(fail), chat_format, temperature=1.0, top_p=1.0, max_length=400)
    trajectory = asyncio.run(
        run_trajectory(PROBLEM, conversation, toolbox, limits=LIMITS, seed=1, trajectory_id="t", group_id="g")
    )
    assert (trajectory.ending, trajectory.error) == (Ending.INFRA_ERROR, "the engine died")
    assert toolbox.closed == 1


@pytest.mark.parametrize("turns", [1, 2])
def test_a_single_turn_has_no_room_for_a_call(tiny_tokenizer: PreTrainedTokenizerBase, turns: int) -> None:
    """With one turn the model may only answer; with two it may call once."""
    toolbox = EchoToolbox()
    trajectory = roll_out(tiny_tokenizer, [call("1"), call("2")], toolbox=toolbox, limits=AgentLimits(turns, 9, 400, 0))
    assert trajectory.ending is Ending.MAX_TURNS
    assert len(toolbox.executed) == turns - 1
