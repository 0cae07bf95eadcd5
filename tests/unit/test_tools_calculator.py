"""The calculator: exact where it can be, bounded always. Expected values are worked out by hand."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_cli.agent.tools.arithmetic import MAX_CHARS, ArithmeticProblem, evaluate, show


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("1 + 2*3", "7"),
        ("(1+2)*3", "9"),
        ("-2**2", "-4"),
        ("2**3**2", "512"),  # 2**9
        ("7//2", "3"),
        ("-7//2", "-4"),  # floor of -3.5
        ("-7 % 3", "2"),  # -7 = 3 * -3 + 2
        ("2**-3", "0.125"),
        ("0.1 + 0.2", "0.3"),
        ("0.1 * 3 - 0.3", "0"),
        ("1/3 + 1/6", "0.5"),
        ("1/3", "1/3 ≈ 0.333333333333333"),
        ("-1/3", "-1/3 ≈ -0.333333333333333"),
        ("-0.05", "-0.05"),
        ("3.0", "3"),
        ("1e3", "1000"),
        ("1e-5", "0.00001"),
        ("1e400 * 1e-400", "1"),
        ("12345678901234567890 * 10", "123456789012345678900"),
        ("1_000 + 0x1f", "1031"),
        (".5 + 5.", "5.5"),
        ("0.1000000000000000055", "0.1000000000000000055"),  # a float would lose the end
        ("sqrt(16)", "4"),
        ("sqrt(2.25)", "1.5"),
        ("8**(1/3)", "2"),
        ("(27/8)**(2/3)", "2.25"),  # (3/2)**2
        ("sqrt(2)", "≈ 1.4142135623731"),
        ("pi", "≈ 3.14159265358979"),
        ("abs(-3) + min(1, 2) + max(1, 2, 3)", "7"),
        ("round(2.675, 2)", "2.68"),  # exact, so the tie goes to the even digit
        ("round(2.5)", "2"),
        ("round(pi, 2)", "3.14"),
        ("round(1234, -2)", "1200"),
        ("floor(-2.5) + ceil(-2.5)", "-5"),  # -3 - 2
        ("factorial(5)", "120"),
        ("comb(5, 2)", "10"),
        ("comb(5, 7)", "0"),
        ("perm(5, 2)", "20"),
        ("gcd(12, 18)", "6"),
        ("lcm(4, 6, 10)", "60"),
        ("gcd(-4)", "4"),
        ("log2(1024)", "10"),
        ("log10(1000)", "3"),
        ("log(8, 2)", "3"),
        ("log(e)", "≈ 1"),
        ("exp(0)", "≈ 1"),
        ("sin(0)", "≈ 0"),
        ("0**0", "1"),
        ("1**(10**300)", "1"),
        ("(-1)**(10**300 + 1)", "-1"),
        ("0**(10**300)", "0"),
        (" 6\n*\t7 ", "42"),
        ("3 \u00d7 4 \u2212 2 \u00f7 1", "10"),  # times, minus, divided by
        ("+".join(["1"] * 400), "400"),
    ],
)
def test_values(expression: str, shown: str) -> None:
    """An exact result is written out; an approximate one stands behind ≈."""
    assert show(evaluate(expression)) == shown


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "the expression is empty"),
        ("  \n", "the expression is empty"),
        ("1 +", "can't read the expression"),
        ("1 2", "can't read the expression"),
        ("5!", "write n! as factorial\\(n\\)"),
        ("[1]{2}", "write brackets as \\(\\)"),
        ("2^10", "write powers with \\*\\*"),
        ("1,000 + 1", "without thousands separators"),
        ("x", "unknown name 'x'; known are pi, e, tau, sqrt"),
        ("f(1)", "unknown function 'f'; known are sqrt, abs"),
        ("sqrt()", "sqrt takes 1 argument\\(s\\), got 0"),
        ("round(1, 2, 3)", "round takes 1 or 2 argument\\(s\\), got 3"),
        ("max()", "max takes at least 1 argument\\(s\\), got 0"),
        ("1/0", "division by zero"),
        ("0**-1", "division by zero"),
        ("sin(0)**-1", "division by zero"),
        ("5 % 0", "division by zero"),
        ("log(2, 1)", "division by zero"),
        ("sqrt(-1)", "sqrt\\(-1\\) has no real value"),
        ("log(0)", "log\\(0\\) has no real value"),
        ("asin(2)", "asin\\(2\\) has no real value"),
        ("(-8)**(1/3)", "a negative number to a fractional power is not real"),
        ("factorial(-1)", "factorial needs numbers from 0, got -1"),
        ("factorial(0.5)", "factorial needs whole numbers, got 0.5"),
        ("gcd(1, sqrt(2))", "gcd needs whole numbers, got ≈ 1.4142135623731"),
        ("exp(1000)", "too large for an approximate result"),
        ("sin(10**3000)", "too large for an approximate result"),
        ("exp(700) * exp(700)", "too large for an approximate result"),
        ("1j", "1j is no real number"),
        ("True + 1", "True is no real number"),
        ("'a' * 9", "'a' is no real number"),
        ("None", "None is no real number"),
    ],
)
def test_what_has_no_value_is_explained(expression: str, message: str) -> None:
    """In words that say what to write instead."""
    with pytest.raises(ArithmeticProblem, match=message):
        evaluate(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9**9",
        "9**9**7",
        "(1/9)**(9**9)",
        "2**-99999999999",
        "factorial(10**9)",
        "factorial(factorial(1000))",
        "comb(10**9, 5*10**8)",
        "perm(10**9, 10**8)",
        "1e999999999",
        "1e-999999999",
        "round(1, 10**9)",
        "round(1, -10**9)",
        "9**4000 * 9**4000",
        "lcm(" + ", ".join(f"9**4{i:03d}-1" for i in range(50)) + ")",
        "(" * 400 + "1" + ")" * 400,
        "-" * 990 + "1",
        "1+" * 499 + "(",
        "1\0",
        "\0",
        "\ud800",
        "\u0663+\u0664",
        "\uff12+\uff12",
        "\u00b2",
        "__import__('os').system('x')",
        "().__class__.__bases__",
        "(lambda: 1)()",
        "[x for x in (1, 2)]",
        "f'{1}'",
        "print(1)",
        "sqrt.__globals__",
        "max(*[1, 2])",
        "sqrt(x=1)",
        "1 if 1 else 2",
        "1 < 2",
        "1 and 2",
        "(y := 1)",
        "await x",
        "yield",
        "import os",
        "1; 2",
        "...",
        "b'1'",
        "x" * (MAX_CHARS + 1),
        "1" * 1_000_000,
    ],
)
def test_hostile_expressions_are_refused_at_once(expression: str) -> None:
    """Neither time nor memory goes to what is too large, and nothing but arithmetic is evaluated."""
    start = time.process_time()
    with pytest.raises(ArithmeticProblem) as caught:
        evaluate(expression)
    assert time.process_time() - start < 2.0  # any of them would take minutes, or for ever
    assert len(str(caught.value)) < MAX_CHARS + 500


def test_the_bounds_are_told_apart() -> None:
    """Text, power, factorial and every step of a list have messages of their own."""
    lcm = "lcm(" + ", ".join(f"9**4{i:03d}-1" for i in range(50)) + ")"
    for expression, message in [
        ("1" * 1001, "the expression has 1001 characters, 1000 are allowed"),
        ("9**9**9", "a power gets too large: at most about 3900 digits"),
        ("9**4088", "a number gets too large: at most about 3900 digits"),
        ("factorial(2000)", "a factorial gets too large: at most about 3900 digits"),
        ("comb(10**9, 10**8)", "comb gets too large: at most about 3900 digits"),
        (lcm, "a number gets too large: at most about 3900 digits"),
    ]:
        with pytest.raises(ArithmeticProblem) as caught:
            evaluate(expression)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    "expression",
    [
        "+".join(f"9**4{i:03d}/7**40{i:02d}" for i in range(60)),
        "+".join(["comb(3000, 1500)"] * 50),
        "+".join(["(9**4000)**(1/2)"] * 55),
        "+".join(["(9**300/8**300)**(1/63)"] * 40),
        "gcd(" + ",".join(f"3**8{i:03d}-1" for i in range(90)) + ")",
        "+".join(["1e3900/7e3899"] * 70),
    ],
)
def test_the_longest_allowed_expressions_take_little_time(expression: str) -> None:
    """The largest numbers, as often as they fit: the loop of all trajectories waits for them."""
    start = time.process_time()
    evaluate(expression[:MAX_CHARS].rsplit("+", 1)[0] if len(expression) > MAX_CHARS else expression)
    assert time.process_time() - start < 0.3


def test_roots_of_the_largest_numbers_are_not_sought() -> None:
    """Except for square roots, which take no time; others would take as many steps as the root has bits."""
    assert show(evaluate("(4**3000)**(1/2)")) == show(evaluate("2**3000"))
    assert show(evaluate("(8**300)**(1/3)")) == show(evaluate("2**300"))
    with pytest.raises(ArithmeticProblem, match="too large for an approximate result"):
        evaluate("(8**3000)**(1/3)")


def test_a_long_result_is_printed_whole() -> None:
    """9**4000 has 3,817 digits (4000 * log10(9) = 3816.97), below what Python refuses to print."""
    assert len(show(evaluate("9**4000"))) == 3817


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789.e+-*/%() ,sqrtmaxfogcd_", max_size=40))
def test_any_text_is_a_value_or_a_problem(text: str) -> None:
    """Nothing else comes out, whatever goes in."""
    with contextlib.suppress(ArithmeticProblem):
        assert show(evaluate(text))


@settings(max_examples=200, deadline=None)
@given(st.integers(-999, 999), st.integers(-999, 999), st.integers(1, 999), st.sampled_from("+-*"))
def test_integers_agree_with_python(a: int, b: int, c: int, sign: str) -> None:
    """Exact arithmetic is Python's own."""
    expression = f"({a}) {sign} ({b}) * {c} - ({b}) // {c} + ({a}) % {c}"
    assert show(evaluate(expression)) == str(eval(expression))
