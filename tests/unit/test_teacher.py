"""The scripted teacher: real outputs decide what it does next, mistakes are a setting, choices are reproducible."""

import asyncio
import json
import math
from collections import Counter
from fractions import Fraction

import pytest

from agentrl_cli.agent.loop import LAST_TURN_NOTICE
from agentrl_cli.agent.tools import PYTHON_SCHEMA
from agentrl_cli.collection.plans import GIVE_UP, PLANS
from agentrl_cli.collection.scripted import ScriptedTeacher
from agentrl_cli.data.generated import FAMILIES, generate_problems
from agentrl_cli.errors import ConfigError, SamplerError
from agentrl_cli.types import AnswerKind, Problem, SamplingParams

TOOLS = [PYTHON_SCHEMA]


def interpret(code):
    """Evaluate a cell of the teacher as the sandbox would show it, without running a sandbox."""
    setup, _, expression = code.rpartition(";")
    scope = {"__builtins__": {}, "math": math} if setup == "import math" else {"__builtins__": {}}
    try:
        return repr(eval(expression, scope))
    except (NameError, SyntaxError) as error:
        return f"{type(error).__name__}: {error}"


def ask(teacher, messages, *, seed=0, tools=TOOLS):
    """Return the teacher's next message."""
    params = SamplingParams(max_tokens=100, seed=seed)
    return asyncio.run(teacher.complete(messages, tools, params)).message


def code_of(message):
    return json.loads(message["tool_calls"][0]["function"]["arguments"])["code"]


def converse(teacher, problem, *, seed=0):
    """Let the teacher work until it answers; returns its messages with the tool's."""
    messages = [{"role": "user", "content": problem.prompt}]
    for turn in range(5):
        message = ask(teacher, messages, seed=1000 * seed + turn)
        messages.append(message)
        if not message.get("tool_calls"):
            return messages
        call_id = message["tool_calls"][0]["id"]
        messages.append({"role": "tool", "tool_call_id": call_id, "content": interpret(code_of(message))})
    raise AssertionError(f"no answer after five turns: {messages}")


def is_right(messages, problem):
    return messages[-1]["content"] == f"The answer is \\boxed{{{problem.answer}}}."


def test_without_mistakes_every_problem_is_solved_with_the_tool():
    """`mistake_scale=0` gives right answers on all families and levels, each after at least one call."""
    problems = generate_problems("train", count=210, seed=0)
    teacher = ScriptedTeacher(problems, seed=1, mistake_scale=0.0)
    for problem in problems:
        messages = converse(teacher, problem)
        assert is_right(messages, problem), messages
        assert len(messages) >= 4


def test_mistakes_come_at_their_weights():
    """With its mistakes the teacher solves a family about as often as the weights of its right plans say."""
    for family in ("total", "pairs", "fence"):
        problems = generate_problems("train", count=300, seed=0, families=[family])
        teacher = ScriptedTeacher(problems, seed=0, skip_tool_rate=0.0)
        expected = sum(plan.weight for plan in PLANS[family] if plan.is_right)
        rate = sum(is_right(converse(teacher, p), p) for p in problems) / len(problems)
        # standard error at most sqrt(0.25 / 300) = 0.029; four of them
        assert abs(rate - expected) < 0.12, family


def test_wrong_plans_are_wrong():
    """No plan that counts as a mistake gives the right answer, but for rare coincidences of numbers."""
    for family in FAMILIES:
        if all(plan.is_right for plan in PLANS[family]):
            continue
        problems = generate_problems("train", count=60, seed=0, families=[family])
        teacher = ScriptedTeacher(problems, seed=0, mistake_scale=1e9, skip_tool_rate=0.0)
        assert sum(is_right(converse(teacher, p), p) for p in problems) <= 2, family


def test_weights_of_a_family_add_up_to_one():
    """Every family has plans, and their weights are shares."""
    assert set(PLANS) == set(FAMILIES)
    for family, plans in PLANS.items():
        assert sum(Fraction(plan.weight).limit_denominator(1000) for plan in plans) == 1, family


def test_commonest_plan_is_wrong_in_a_good_part_of_the_families():
    """Imitation by majority fails in at least five families, so that RL has decisions to change."""
    wrong = [f for f, plans in PLANS.items() if not max(plans, key=lambda plan: plan.weight).is_right]
    assert len(wrong) >= 5
    assert all(sum(plan.weight for plan in plans if plan.is_right) >= 0.2 for plans in PLANS.values())


def test_second_call_is_built_on_the_real_output():
    """Whatever the tool printed goes into the next call, also when it is not what Python would say."""
    problem = generate_problems("train", count=1, seed=0, families=["parity"], levels=[1])[0]
    teacher = ScriptedTeacher([problem], mistake_scale=0.0)
    messages = [{"role": "user", "content": problem.prompt}]
    messages.append(ask(teacher, messages))
    for output, expected in (("1000", "1000//2"), ("1001", f"1001+{problem.meta['c']}")):
        assert code_of(ask(teacher, [*messages, {"role": "tool", "content": output}])) == expected


def test_an_error_is_repaired_or_given_up():
    """After a NameError the teacher imports, computes something else, or gives up, in shares near its weights."""
    problems = generate_problems("train", count=300, seed=0, families=["packs"])
    teacher = ScriptedTeacher(problems, skip_tool_rate=0.0)
    outcomes = Counter()
    for problem in problems:
        messages = converse(teacher, problem)
        codes = [code_of(m) for m in messages if m.get("tool_calls")]
        if "import" in codes[0]:
            continue
        assert messages[2]["content"].startswith("NameError")
        outcomes["gives up" if len(codes) == 1 else "repairs" if "import" in codes[1] else "falls back"] += 1
        assert (messages[-1]["content"] == GIVE_UP) == (len(codes) == 1)
    assert set(outcomes) == {"gives up", "repairs", "falls back"}


def test_an_output_that_is_no_number_is_not_boxed():
    """If the tool fails where no plan expects it, the teacher says so instead of boxing the error."""
    problem = generate_problems("train", count=1, seed=0, families=["total"])[0]
    teacher = ScriptedTeacher([problem], mistake_scale=0.0)
    messages = [{"role": "user", "content": problem.prompt}]
    messages.append(ask(teacher, messages))
    messages.append({"role": "tool", "content": "Error: timed out"})
    assert ask(teacher, messages)["content"] == GIVE_UP


def test_last_turn_notice_ends_the_work():
    """Told that no call is left, the teacher answers with what it has, without the notice in the box."""
    problem = generate_problems("train", count=1, seed=0, families=["parity"])[0]
    teacher = ScriptedTeacher([problem], mistake_scale=0.0)
    messages = [{"role": "user", "content": problem.prompt}]
    messages.append(ask(teacher, messages))
    messages.append({"role": "tool", "content": f"1000\n{LAST_TURN_NOTICE}"})
    assert ask(teacher, messages) == {"role": "assistant", "content": "The answer is \\boxed{1000}."}


def test_guesses_make_no_call():
    """With `skip_tool_rate=1`, or without tools, it guesses a number as long as the answer."""
    problems = generate_problems("train", count=50, seed=0)
    for teacher, tools in ((ScriptedTeacher(problems, skip_tool_rate=1.0), TOOLS), (ScriptedTeacher(problems), [])):
        for problem in problems:
            message = ask(teacher, [{"role": "user", "content": problem.prompt}], tools=tools)
            assert "tool_calls" not in message
            box = message["content"].removeprefix("The answer is \\boxed{").removesuffix("}.")
            assert len(box) == len(problem.answer)
            assert box.isdecimal()


def test_equal_seeds_give_equal_conversations_and_others_differ():
    """Choices depend on the teacher's seed, the request's seed and the problem, and on nothing remembered."""
    problems = generate_problems("train", count=40, seed=0)

    def all_of(teacher, seed):
        return [converse(teacher, p, seed=seed) for p in problems]

    teacher = ScriptedTeacher(problems, seed=1)
    first = all_of(teacher, 0)
    assert all_of(teacher, 0) == first
    assert all_of(ScriptedTeacher(problems[::-1], seed=1), 0) == first
    assert all_of(teacher, 1) != first
    assert all_of(ScriptedTeacher(problems, seed=2), 0) != first


def test_foreign_problems_and_conversations_are_refused():
    """It teaches generated problems that it was given, and only goes on from its own calls."""
    foreign = Problem(id="x", prompt="Prove it.", answer="1", kind=AnswerKind.MATH, family="proofs")
    with pytest.raises(ConfigError, match="generated"):
        ScriptedTeacher([foreign])
    problem = generate_problems("train", count=1, seed=0)[0]
    teacher = ScriptedTeacher([problem])
    with pytest.raises(SamplerError, match="does not know"):
        ask(teacher, [{"role": "user", "content": "Prove it."}])
    call = {"id": "c", "type": "function", "function": {"name": "python", "arguments": '{"code": "1"}'}}
    begun = [
        {"role": "user", "content": problem.prompt},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "1"},
    ]
    with pytest.raises(SamplerError, match="can't go on"):
        ask(teacher, begun)
