"""Arithmetic that is exact as long as it can be: the evaluator behind the calculator.

Python's own parser reads the expression, nothing of it is ever compiled or run: only the nodes named here
are evaluated. Integers, fractions and decimals stay exact rationals; a root or a logarithm that has no rational
value becomes a float, and the result says so. Text, numbers and so the time of an evaluation are bounded.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from fractions import Fraction

Value = Fraction | float

MAX_CHARS = 1000
"""Longest expression."""
MAX_DIGITS = 3900
"""Longest numerator or denominator, below the 4,300 digits that Python prints."""
_MAX_BITS = 12_956
"""MAX_DIGITS in bits: 10**3900 has so many."""
_MAX_EXPONENT = MAX_DIGITS
"""Largest power of ten in a number, as in 1e3900."""
_MAX_ROOT_DEGREE = 64
_MAX_ROOT_BITS = 2000
"""Of what a root other than the square root is sought exactly; it takes as many steps as the root has bits."""
_SIGNIFICANT_DIGITS = 15
"""Digits of an approximate result; a float holds no more."""
_MAX_DECIMALS = 50
"""Exact results with at most so many decimals are written with a point, others as a fraction."""
_TOO_LONG = f"at most about {MAX_DIGITS} digits"
_SIGNS = str.maketrans({"\u2212": "-", "\u00d7": "*", "\u00f7": "/", "\u00b7": "*"})
"""Minus, times, divided by and the middle dot, as they stand in texts."""


class ArithmeticProblem(Exception):
    """The expression has no value here; the message says why, in words for the model."""


def evaluate(text: str) -> Value:
    """Return the value of an expression: a fraction if it is exact, else a float.

    Raises:
        ArithmeticProblem: it can't be read, names something that is not known, has no real value or is too large.
    """
    if len(text) > MAX_CHARS:
        raise ArithmeticProblem(f"the expression has {len(text)} characters, {MAX_CHARS} are allowed")
    line = " ".join(text.translate(_SIGNS).split())
    if not line:
        raise ArithmeticProblem("the expression is empty")
    tree = _parse(line)
    try:
        return _Evaluator(line).value(tree)
    except ZeroDivisionError as error:
        raise ArithmeticProblem("division by zero") from error
    except OverflowError as error:
        raise ArithmeticProblem("a number is too large for an approximate result") from error
    except RecursionError as error:
        raise ArithmeticProblem("the expression is nested too deeply") from error


def show(value: Value) -> str:
    """Return a value as text: exact as an integer, a decimal or a fraction, approximate behind a `≈`."""
    if isinstance(value, float):
        return f"≈ {value:.{_SIGNIFICANT_DIGITS}g}"
    if value.denominator == 1:
        return str(value.numerator)
    decimals = _decimals(value.denominator)
    if decimals is not None:
        digits = str(abs(value.numerator) * 10**decimals // value.denominator).rjust(decimals + 1, "0")
        return f"{'-' if value < 0 else ''}{digits[:-decimals]}.{digits[-decimals:]}"
    try:
        return f"{value} ≈ {float(value):.{_SIGNIFICANT_DIGITS}g}"
    except OverflowError:
        return str(value)


def _parse(line: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as for 1if, which is refused anyway
            return ast.parse(line, mode="eval").body
    except (RecursionError, MemoryError) as error:
        raise ArithmeticProblem("the expression is nested too deeply") from error
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ArithmeticProblem(f"can't read the expression: {reason}{_advice(line)}") from error


def _advice(line: str) -> str:
    """Return what to write instead of what people write by habit."""
    if "!" in line:
        return "; write n! as factorial(n)"
    return "; write brackets as (), products with *" if set("{}[]\\$") & set(line) else ""


class _Evaluator:
    """Evaluates the nodes of one expression."""

    def __init__(self, line: str) -> None:
        self._bytes = line.encode()

    def value(self, node: ast.expr) -> Value:
        """Return the value of a node, checked for its size."""
        match node:
            case ast.Constant():
                return _bounded(self._number(node))
            case ast.Name(id=name):
                if name not in _CONSTANTS:
                    raise ArithmeticProblem(f"unknown name {name!r}; known are {', '.join([*_CONSTANTS, *_FUNCTIONS])}")
                return _CONSTANTS[name]
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand)
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.value(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _bounded(_OPERATORS[type(op)](self.value(left), self.value(right)))
            case ast.BinOp(op=ast.BitXor()):
                raise ArithmeticProblem("^ is not known: write powers with **")
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return _bounded(self._call(name, arguments))
            case ast.Tuple():
                raise ArithmeticProblem("a comma can't stand here: write numbers without thousands separators")
        raise ArithmeticProblem(f"{type(node).__name__} is no arithmetic: use numbers, + - * / // % ** and functions")

    def _call(self, name: str, arguments: list[ast.expr]) -> Value:
        if name not in _FUNCTIONS:
            raise ArithmeticProblem(f"unknown function {name!r}; known are {', '.join(_FUNCTIONS)}")
        function, least, most = _FUNCTIONS[name]
        if not least <= len(arguments) <= most:
            wanted = f"at least {least}" if most == MAX_CHARS else " or ".join(map(str, range(least, most + 1)))
            raise ArithmeticProblem(f"{name} takes {wanted} argument(s), got {len(arguments)}")
        values = [self.value(argument) for argument in arguments]
        try:
            return function(*values)
        except ValueError as error:
            shown = ", ".join(show(value)[:60] for value in values[:3])
            raise ArithmeticProblem(f"{name}({shown}) has no real value") from error

    def _number(self, node: ast.Constant) -> Fraction:
        """Return a number exactly as it is written: 0.1 is a tenth."""
        if type(node.value) is int:
            return Fraction(node.value)
        if type(node.value) is not float:
            raise ArithmeticProblem(f"{node.value!r} is no real number")
        assert node.end_col_offset is not None, "the parser gives each number its place"
        text = self._bytes[node.col_offset : node.end_col_offset].decode().replace("_", "").lower()
        _, _, exponent = text.partition("e")
        if exponent and abs(int(exponent)) > _MAX_EXPONENT:
            raise ArithmeticProblem(f"{text} is too large or too small: powers of ten end at {_MAX_EXPONENT}")
        return Fraction(text)


def _bounded(value: Value) -> Value:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ArithmeticProblem("a number is too large for an approximate result")
    elif max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise ArithmeticProblem(f"a number gets too large: {_TOO_LONG}")
    return value if isinstance(value, float) else Fraction(value)


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(base, float) or isinstance(exponent, float):
        return _real_power(base, exponent)
    if base == -1 and exponent.denominator == 1:
        return Fraction(-1 if exponent % 2 else 1)
    if base == 1 or (base == 0 and exponent > 0):
        return base
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    # a number of b bits to the n-th power has more than n * (b - 1) bits
    if abs(exponent) * max(bits - 1, 1) > _MAX_BITS:
        raise ArithmeticProblem(f"a power gets too large: {_TOO_LONG}")
    if exponent.denominator == 1:
        return Fraction(base**exponent)
    root = _exact_root(base, exponent.denominator)
    return _real_power(base, exponent) if root is None else Fraction(root**exponent.numerator)


def _real_power(base: Value, exponent: Value) -> float:
    if base == 0 and exponent < 0:
        raise ZeroDivisionError
    if base < 0 and exponent != int(exponent):
        raise ArithmeticProblem("a negative number to a fractional power is not real")
    return math.pow(base, exponent)


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    """Return the root of a number that is at least 0 if it is rational, else None."""
    bits = max(value.numerator.bit_length(), value.denominator.bit_length())
    if value < 0 or degree > _MAX_ROOT_DEGREE or (degree > 2 and bits > _MAX_ROOT_BITS):
        return None
    parts = [_integer_root(part, degree) for part in (value.numerator, value.denominator)]
    if any(root**degree != part for root, part in zip(parts, (value.numerator, value.denominator), strict=True)):
        return None
    return Fraction(parts[0], parts[1])


def _integer_root(value: int, degree: int) -> int:
    """Return the largest integer whose power is at most `value`, by halving an interval."""
    if degree == 2:
        return math.isqrt(value)
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle)
    return low


def _sqrt(value: Value) -> Value:
    root = _exact_root(value, 2) if isinstance(value, Fraction) else None
    return math.sqrt(value) if root is None else root


def _whole(value: Value, what: str) -> int:
    """Return a value as an integer, which it must be."""
    if isinstance(value, float) or value.denominator != 1:
        raise ArithmeticProblem(f"{what} needs whole numbers, got {show(value)[:60]}")
    return value.numerator


def _count(value: Value, what: str) -> int:
    """Return a value as an integer, which must not be negative."""
    number = _whole(value, what)
    if number < 0:
        raise ArithmeticProblem(f"{what} needs numbers from 0, got {show(value)[:60]}")
    return number


def _factorial(value: Value) -> Value:
    number = _count(value, "factorial")
    # log2(n!) = lgamma(n + 1) / log(2)
    if number > _MAX_BITS or math.lgamma(number + 1) / math.log(2) > _MAX_BITS:
        raise ArithmeticProblem(f"a factorial gets too large: {_TOO_LONG}")
    return Fraction(math.factorial(number))


def _choose(value: Value, taken: Value) -> Value:
    total, part = _count(value, "comb"), _count(taken, "comb")
    _check_product(total, min(part, total - part), "comb")
    return Fraction(math.comb(total, part))


def _arrange(value: Value, taken: Value) -> Value:
    total, part = _count(value, "perm"), _count(taken, "perm")
    _check_product(total, min(part, total), "perm")
    return Fraction(math.perm(total, part))


def _check_product(total: int, factors: int, name: str) -> None:
    """Refuse a product of so many factors up to `total` that computing it takes long; its size is checked later."""
    if factors * total.bit_length() > 3 * _MAX_BITS:
        raise ArithmeticProblem(f"{name} gets too large: {_TOO_LONG}")


def _round(value: Value, decimals: Value = Fraction(0)) -> Value:
    places = _whole(decimals, "round")
    if abs(places) > _MAX_EXPONENT:
        raise ArithmeticProblem(f"round knows at most {_MAX_EXPONENT} decimals")
    return Fraction(round(Fraction(value), places))


def _log(value: Value, base: Value | None = None) -> Value:
    if base is None:
        return _natural_log(value)
    if base in (2, 10):
        return _log2(value) if base == 2 else _log10(value)
    return _natural_log(value) / _natural_log(base)


def _natural_log(value: Value) -> float:
    # of numerator and denominator, which may each be larger than any float
    return math.log(value) if isinstance(value, float) else math.log(value.numerator) - math.log(value.denominator)


def _log2(value: Value) -> Value:
    exact = isinstance(value, Fraction) and value > 0 and value.denominator == 1 and value.numerator.bit_count() == 1
    return Fraction(int(value).bit_length() - 1) if exact else _natural_log(value) / math.log(2)


def _log10(value: Value) -> Value:
    if isinstance(value, Fraction) and value > 0 and value.denominator == 1:
        digits = str(value.numerator)
        if digits.rstrip("0") == "1":
            return Fraction(len(digits) - 1)
        return math.log10(value.numerator)
    return _natural_log(value) / math.log(10)


def _of_integers(function: Callable[[int, int], int], name: str) -> Callable[..., Value]:
    """Return a function of any number of integers, made of one of two; its result is bounded at each step."""

    def apply(*values: Value) -> Value:
        total: Value = Fraction(abs(_whole(values[0], name)))
        for value in values[1:]:
            total = _bounded(Fraction(function(_whole(total, name), _whole(value, name))))
        return total

    return apply


def _of_reals(function: Callable[[float], float]) -> Callable[..., Value]:
    return lambda value: function(float(value))


def _decimals(denominator: int) -> int | None:
    """Return with how many decimals a fraction ends, or None if that is never or late."""
    twos = (denominator & -denominator).bit_length() - 1
    rest, fives = denominator >> twos, 0
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    decimals = max(twos, fives)
    return decimals if rest == 1 and decimals <= _MAX_DECIMALS else None


_CONSTANTS: Mapping[str, Value] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_OPERATORS: Mapping[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: left // right,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: Mapping[str, tuple[Callable[..., Value], int, int]] = {
    "sqrt": (_sqrt, 1, 1),
    "abs": (abs, 1, 1),
    "min": (min, 1, MAX_CHARS),
    "max": (max, 1, MAX_CHARS),
    "round": (_round, 1, 2),
    "floor": (lambda value: Fraction(math.floor(value)), 1, 1),
    "ceil": (lambda value: Fraction(math.ceil(value)), 1, 1),
    "factorial": (_factorial, 1, 1),
    "comb": (_choose, 2, 2),
    "perm": (_arrange, 2, 2),
    "gcd": (_of_integers(math.gcd, "gcd"), 1, MAX_CHARS),
    "lcm": (_of_integers(math.lcm, "lcm"), 1, MAX_CHARS),
    "log": (_log, 1, 2),
    "ln": (_natural_log, 1, 1),
    "log2": (_log2, 1, 1),
    "log10": (_log10, 1, 1),
    "exp": (_of_reals(math.exp), 1, 1),
    "sin": (_of_reals(math.sin), 1, 1),
    "cos": (_of_reals(math.cos), 1, 1),
    "tan": (_of_reals(math.tan), 1, 1),
    "asin": (_of_reals(math.asin), 1, 1),
    "acos": (_of_reals(math.acos), 1, 1),
    "atan": (_of_reals(math.atan), 1, 1),
}
"""Name to function, fewest and most arguments."""
