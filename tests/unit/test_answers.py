"""Where the answer stands in a text, and how plain answers are read.

Locked: only the last \\boxed outside think blocks counts; what is not wholly understood is not read.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from agentrl_cli.rewards.answers import final_text, has_answer, last_box, read_answer
from agentrl_cli.rewards.plain import is_words, read_based, read_choice, read_number, read_words
from agentrl_cli.types import AnswerKind


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{204}", "204"),
        (r"\boxed {204}", "204"),
        (r"\boxed{204} but \boxed{205}", "205"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}} }", r"\{1,2\}"),
        (r"\boxed{\left\{ x : x > 1 \right\}}", r"\left\{ x : x > 1 \right\}"),
        (r"\boxed{\begin{pmatrix}1\\{2}\end{pmatrix}}", r"\begin{pmatrix}1\\{2}\end{pmatrix}"),
        (r"\boxed{x = \boxed{7}}", "7"),
        (r"\boxed{7}. I used \boxed as asked.", "7"),
        (r"\boxed{204} hence \boxed{20", None),
        (r"\boxed{204} so \boxed{}", None),
        (r"\boxed{204} so \boxed{ {} ~ }", None),
        (r"\boxed{204\}", None),
        (r"\fbox{12}", None),
        (r"\boxedx{12}", None),
        (r"boxed{12}", None),
        ("204", None),
        ("", None),
    ],
)
def test_last_box(text: str, box: str | None) -> None:
    """The last box is read with balanced braces; an empty or open one is no answer, whatever stands before it."""
    assert last_box(text) == box


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("a", "a"),
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),
        ("<think>a</think>b<think>c</think>d", "d"),
        ("<think>a", ""),
        ("<think>a</think>b<think>c", "b"),
    ],
)
def test_final_text(text: str, rest: str) -> None:
    """Only what follows the last closed think block, and precedes an open one, is said to the user."""
    assert final_text(text) == rest


def test_box_in_an_open_think_block_is_no_answer() -> None:
    """A model that never stops thinking has not answered."""
    assert read_answer(r"<think>so \boxed{7}") is None


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        (r"\boxed{7}", AnswerKind.INTEGER, True),
        ("7", AnswerKind.INTEGER, False),
        (None, AnswerKind.INTEGER, False),
        ("```python\nprint(1)\n```", AnswerKind.CODE, True),
        (r"\boxed{print(1)}", AnswerKind.CODE, False),
        ("```python\nprint(1)\n```", AnswerKind.MATH, False),
    ],
)
def test_has_answer(text: str | None, kind: AnswerKind, expected: bool) -> None:
    """Code is answered by a fenced block, everything else by a box."""
    assert has_answer(text, kind) is expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("025", "25"),
        ("+5", "5"),
        ("- 5", "-5"),
        ("\u22125", "-5"),
        ("-0", "0"),
        ("12.0", "12"),
        ("12.", "12"),
        (".5", "1/2"),
        ("1,234,567", "1234567"),
        ("1{,}234{,}567", "1234567"),
        (r"1\,234\,567", "1234567"),
        (r"11,\! 111,\! 100", "11111100"),
        ("1,234.50", "2469/2"),
        ("\uff11\uff12", "12"),
        ("\u0661\u0662", "12"),
        ("1\x002", "12"),
        ("$12$", "12"),
        (r"\(12\)", "12"),
        (r"\$18.90", "189/10"),
        (r"-\$5", "-5"),
        (r"36\text{ cm}", "36"),
        (r"36\text{ cm}^2", "36"),
        (r"\text{36 cm}", "36"),
        (r"36 \mathrm{~cm}^{2}", "36"),
        ("36cm", "36"),
        ("36 miles per hour", "36"),
        (r"106^\circ", "106"),
        (r"106^{\circ}", "106"),
        (r"50\%", "50"),
        ("50 percent", "50"),
        (r"\mathbf{36}", "36"),
        ("(36)", "36"),
        (r"\left(36\right)", "36"),
        ("x=12", "12"),
        ("m + n = 5 + 31 = 36", "36"),
        (r"\text{Area} = 36", "36"),
        (r"\frac{72}{2}", "36"),
        (r"-\frac34", "-3/4"),
        (r"\frac{-3}{4}", "-3/4"),
        (r"\frac{270}7\text{ degrees}", "270/7"),
        (r"137 \frac{1}{2}", "275/2"),
        (r"-1\frac{1}{2}", "-3/2"),
        ("5/2", "5/2"),
        ("2 1/2", "5/2"),
        (r"3.6 \times 10^{4}", "36000"),
        (r"6.72 \cdot 10^{-5}", "84/1250000"),
        ("1e3", "1000"),
    ],
)
def test_read_number(text: str, value: str | None) -> None:
    """Ways to write a number are read as the exact fraction that they mean."""
    number = read_number(text)
    assert (number and number.value) == (value and Fraction(value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "204 or 205",
        r"204 \text{ or } 205",
        r"\text{204 or 205}",
        "x=204 or x=205",
        "x=204, x=205",
        r"x=204 \quad x=205",
        r"x \ne 204",
        "n!=204",
        r"\approx 204",
        r"\text{not }204",
        "36 million",
        r"36\text{ million}",
        "3 dozen",
        "36x",
        "36 x",
        "36!",
        "3 6",
        "1,23",
        "1,2345",
        "36_8",
        r"36 \pm 1",
        "--36",
        r"\frac{1}{0}",
        "1/0",
        "2^{10}",
        "0x10",
        "nan",
        "1" * 5000,
    ],
)
def test_what_is_no_number(text: str) -> None:
    """Hedged, scaled, symbolic or malformed answers are not read as the number that stands in them."""
    assert read_number(text) is None


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("C", "C"),
        ("(c)", "C"),
        ("[C]", "C"),
        (r"\text{C}", "C"),
        (r"\textbf{(C)}", "C"),
        (r"\textbf{(C)}\ 12", "C"),
        ("C.", "C"),
        ("C. 5 m", "C"),
        ("C) because B is slower", "C"),
        ("Option C", "C"),
        ("A or B", None),
        ("A, B", None),
        ("A. or B.", None),
        ("A) B)", None),
        ("AB", None),
        ("A dog", None),
        ("12", None),
        ("", None),
    ],
)
def test_read_choice(text: str, letter: str | None) -> None:
    """One letter is chosen, with or without brackets and its text; two letters are no choice."""
    assert read_choice(text) == letter


def test_words_are_compared_without_case_and_commands() -> None:
    """A word in a text command is a word, compared as such; a short product of variables is a formula."""
    assert is_words(r"\text{Evelyn}")
    assert is_words("Evelyn")
    assert not is_words("xyz")
    assert not is_words(r"\text{ 5 cm}")
    assert read_words(r"\textbf{(B)}") == read_words("b") == "b"


def test_numerals_in_a_base() -> None:
    """Digits and base of a numeral are told apart; a number without base has none."""
    assert read_based("4210_{5}") == read_based(r"4210_5") == ("4210", "5")
    assert read_based("4210") is None
