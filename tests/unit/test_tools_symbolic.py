"""The symbolic tool, in a real sandbox. Expected results are worked out by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from agentrl_cli.agent.tools import build_toolbox
from agentrl_cli.agent.tools.symbolic import make_cell
from agentrl_cli.config.schema import SandboxConfig, ToolsConfig
from agentrl_cli.sandbox.local import LocalSandbox
from agentrl_cli.types import ToolCall, ToolResult, ToolStatus

LIMITS = SandboxConfig(pool_size=1, max_sessions=1, timeout_s=10.0)
TOOLS = ToolsConfig(names=["python", "symbolic"])


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    """One sandbox with one place for all tests: sessions are what is fresh."""
    box = LocalSandbox(LIMITS)
    yield box
    asyncio.run(box.close())


def symbolic(operation: str, expression: str, **arguments: Any) -> ToolCall:
    """Return a call of the tool."""
    return ToolCall("1", "symbolic", json.dumps({"operation": operation, "expression": expression, **arguments}))


def python(code: str) -> ToolCall:
    """Return a call of the python tool."""
    return ToolCall("1", "python", json.dumps({"code": code}))


def call_all(box: LocalSandbox, *calls: ToolCall, limits: SandboxConfig = LIMITS) -> list[ToolResult]:
    """Make calls in one session."""

    async def play() -> list[ToolResult]:
        session = build_toolbox(TOOLS, box, limits).open()
        try:
            return [await session.call(call) for call in calls]
        finally:
            await session.close()

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("call", "content"),
    [
        (symbolic("simplify", "sin(x)^2 + cos(x)^2"), "1\nLaTeX: 1"),
        (symbolic("expand", "(x+1)(x-1)"), "x**2 - 1\nLaTeX: x^{2} - 1"),
        (symbolic("factor", "2x^2 - 2"), "2*(x - 1)*(x + 1)\nLaTeX: 2 \\left(x - 1\\right) \\left(x + 1\\right)"),
        (symbolic("solve", "x^2 = 4"), "x = -2\nx = 2\nLaTeX: x = -2 \\quad x = 2"),
        (symbolic("solve", "x^2 - 4"), "x = -2\nx = 2\nLaTeX: x = -2 \\quad x = 2"),
        (symbolic("solve", "x + y == 3; x - y = 1"), "x = 2, y = 1\nLaTeX: x = 2, y = 1"),
        (symbolic("solve", "N*S = 10", variable="N"), "N = 10/S\nLaTeX: N = \\frac{10}{S}"),
        (symbolic("solve", "x = x + 1"), "no solution was found"),
        (symbolic("solve", "x = x"), "true for every value"),
        (symbolic("solve", "x^2 < 4"), "(-2 < x) & (x < 2)\nLaTeX: -2 < x \\wedge x < 2"),
        (symbolic("integrate", "2x"), "x**2\nLaTeX: x^{2}"),
        (symbolic("integrate", "x*y", variable="y"), "x*y**2/2\nLaTeX: \\frac{x y^{2}}{2}"),
        (symbolic("integrate", "x^2", lower="0", upper="3"), "9\nLaTeX: 9"),  # 3**3 / 3
        (symbolic("integrate", "e^(-x)", lower="0", upper="oo"), "1\nLaTeX: 1"),
        (
            symbolic("integrate", "x**x"),
            "Integral(x**x, x)\nLaTeX: \\int x^{x}\\, dx\nno closed form was found",
        ),
        (symbolic("differentiate", "x^3"), "3*x**2\nLaTeX: 3 x^{2}"),
        (symbolic("differentiate", "x^3", order=2), "6*x\nLaTeX: 6 x"),
        (symbolic("limit", "sin(x)/x", point="0"), "1\nLaTeX: 1"),
        (symbolic("limit", "1/x", point="0", side="left"), "-oo\nLaTeX: -\\infty"),
        (symbolic("limit", "(1 + 1/n)^n", point="∞"), "E\nLaTeX: e"),
        (
            symbolic("evaluate", "x^2 + y", values="x=2, y=1/3"),
            "13/3 ≈ 4.33333333333333\nLaTeX: \\frac{13}{3}",
        ),
        (symbolic("evaluate", "0.1 + 0.2"), "3/10 ≈ 0.300000000000000\nLaTeX: \\frac{3}{10}"),
        (symbolic("evaluate", "5!"), "120\nLaTeX: 120"),
        (symbolic("evaluate", "i^2"), "-1\nLaTeX: -1"),
        (symbolic("evaluate", "e*i + beta", values="e=3, i = 2, beta=1"), "7\nLaTeX: 7"),
        (symbolic("equal", "(x+1)^2", other="x^2 + 2x + 1"), "equal"),
        (symbolic("equal", "sin(2x)", other="2 sin(x) cos(x)"), "equal"),
        (symbolic("equal", "x", other="y"), "not equal"),
        (symbolic("equal", "1/3", other="0.333"), "not equal"),
        (symbolic("equal", "x = 2", other="2 = x"), "equal"),
        (symbolic("equal", "x = 2", other="x < 3"), "could not be decided"),
    ],
)
def test_results(call: ToolCall, content: str, sandbox: LocalSandbox) -> None:
    """Each operation returns text and LaTeX, a number of it where it is one, or words."""
    (result,) = call_all(sandbox, call)
    assert (result.status, result.content) == (ToolStatus.OK, content)


def test_solutions_without_a_formula_come_as_numbers(sandbox: LocalSandbox) -> None:
    """x^5 - x + 1 has one real root, between -2 and -1, where it changes its sign: -29 and 1."""
    (result,) = call_all(sandbox, symbolic("solve", "x^5 - x + 1 = 0"))
    first = result.content.splitlines()[0]
    root = float(first.removeprefix("x = CRootOf(x**5 - x + 1, 0) ≈ "))
    assert -2 < root < -1
    assert abs(root**5 - root + 1) < 1e-12


@pytest.mark.parametrize(
    ("call", "content"),
    [
        (symbolic("evaluate", "x +"), "Error: can't read 'x +': SyntaxError: invalid syntax"),
        (symbolic("evaluate", ""), "Error: can't read '': SyntaxError: invalid syntax"),
        (symbolic("evaluate", "\\frac{1}{2}"), "Error: can't read LaTeX: write x**2, sqrt(x), (a + b)/c"),
        (symbolic("evaluate", "1,000"), "Error: '1,000' is no expression"),
        (symbolic("evaluate", "'a'"), "Error: \"'a'\" is no expression"),
        (symbolic("evaluate", "x", values="2"), "Error: can't read '2': write values as x=2, y=1/3"),
        (symbolic("evaluate", "x", values="y=2"), "Error: y does not occur in the expression"),
        (symbolic("evaluate", "1/0"), "Error: the result is not defined (zoo)"),
        (symbolic("limit", "1/x", point="0"), "Error: the result is not defined (zoo)"),
        (symbolic("integrate", "x*y"), "Error: say which variable: one of x, y"),
        (symbolic("differentiate", "5"), "Error: there is no variable"),
        (symbolic("solve", "x = y = 1"), "Error: more than one = in 'x = y = 1': separate equations by ;"),
        (symbolic("solve", " ; "), "Error: there is no equation"),
        (
            symbolic("evaluate", "1\0"),
            "Error: can't read '1\\x00': SyntaxError: source code string cannot contain null bytes",
        ),
        (
            symbolic("evaluate", "\u0663 + 1"),
            "Error: can't read '\u0663 + 1': SyntaxError: invalid character '\u0663' (U+0663)",
        ),
    ],
)
def test_failures_are_explained(call: ToolCall, content: str, sandbox: LocalSandbox) -> None:
    """A failed call says what is wrong, without a traceback of ours."""
    (result,) = call_all(sandbox, call)
    assert (result.status, result.content) == (ToolStatus.ERROR, content)


@pytest.mark.parametrize(
    ("call", "content"),
    [
        (symbolic("limit", "x"), "limit needs the argument 'point'"),
        (symbolic("equal", "x"), "equal needs the argument 'other'"),
        (symbolic("expand", "x", point="0"), "expand has no use for the argument 'point'"),
        (symbolic("integrate", "x", lower="0"), "an integral has both bounds or none"),
        (symbolic("differentiate", "x", order=0), "'order' must be at least 1, got 0"),
        (symbolic("differentiate", "x", order=10**6), "'order' must be at most 20, got 1000000"),
        (symbolic("simplify", "x" * 1_000_000), "'expression' may have 1000 characters, got 1000000"),
    ],
)
def test_arguments_that_do_not_fit_the_operation(call: ToolCall, content: str, sandbox: LocalSandbox) -> None:
    """Such a call is invalid: nothing was executed."""
    (result,) = call_all(sandbox, call)
    assert (result.status, result.content) == (ToolStatus.INVALID, f"Error: symbolic: {content}")


def test_it_shares_the_interpreter_and_leaves_nothing_there(sandbox: LocalSandbox) -> None:
    """With one place in the sandbox both tools of a trajectory work; variables of python live on and are not seen."""
    names = "sorted(name for name in globals() if not name.startswith('__'))"
    results = call_all(sandbox, python("x = 5"), symbolic("expand", "x*(x + 1)"), python("x"), python(names))
    assert [result.status for result in results] == [ToolStatus.OK] * 4
    assert results[1].content.startswith("x**2 + x\n")
    assert results[2].content == "5"
    assert results[3].content == "['_', 'x']"


def test_an_expression_that_takes_for_ever_is_stopped(sandbox: LocalSandbox) -> None:
    """After sandbox.timeout_s; the next call works."""
    limits = LIMITS.model_copy(update={"timeout_s": 1.0})
    results = call_all(sandbox, symbolic("evaluate", "9**9**9**9"), symbolic("evaluate", "1+1"), limits=limits)
    assert results[0].status is ToolStatus.TIMEOUT
    assert results[1].content.startswith("2\n")


def test_a_long_result_is_cut(sandbox: LocalSandbox) -> None:
    """At sandbox.max_output_chars, with a marker."""
    limits = LIMITS.model_copy(update={"max_output_chars": 200})
    (result,) = call_all(sandbox, symbolic("expand", "(x + y)^100"), limits=limits)
    assert result.status is ToolStatus.OK
    assert "characters cut" in result.content
    assert len(result.content) < 300


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').getcwd()",
        "print('hi')",
        "exit()",
        "__import__('sys').exit(0)",
        "'); import os; ('",
        "\"\"\"'''",
        "{0}{x}%s",
        "().__class__.__base__.__subclasses__()",
        "(" * 400 + "1" + ")" * 400,
    ],
)
def test_what_is_no_expression_fails(expression: str, sandbox: LocalSandbox) -> None:
    """The sandbox holds what the parser evaluates; a result that is no expression is a failed call, never `ok`."""
    (result,) = call_all(sandbox, symbolic("evaluate", expression))
    assert result.status is ToolStatus.ERROR
    assert "Error: " in result.content


def test_a_text_never_becomes_part_of_the_program() -> None:
    """Whatever it holds, the cell is one call of exec with two literals."""
    for expression in ("'", '"', "'''", "\\", "\n", "{}", "\ud800", "\0", "')\nimport os\n('"):
        cell = make_cell({"operation": "evaluate", "expression": expression})
        assert cell.startswith("exec(")
        assert cell.isprintable()
        compile(cell, "cell", "eval")
