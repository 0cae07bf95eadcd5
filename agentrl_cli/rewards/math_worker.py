"""The process that compares expressions with math-verify; it is killed when it takes too long.

Reads one JSON request a line, `{"id", "gold", "answer", "limit_s"}`, and writes `{"id", "status", "correct",
"key"}`. Without `gold` it only returns the key: a text that equal expressions share.

math-verify alone is no safe reward. It takes differences below 1e-15 for none and rounds decimals to six
places, reads a pair as an interval, drops single letters as units and ignores the case of symbols. So the
parsing here takes the whole answer or nothing, without units; formulas are equal if their values are, with exact
decimals, to 30 digits, at several values of the variables; and what math-verify says of lists,
intervals, matrices and equations counts only if their parts are equal in the same sense.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import resource
import signal
import sys
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify
from sympy.core.relational import Relational

MEMORY_BYTES = 4 * 2**30
_NORMALIZATION = NormalizationConfig(basic_latex=True, malformed_operators=True, nits=True, boxed="none")
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_NUM_POINTS = 3
_DIGITS = 30
_NEGLIGIBLE = sympy.Rational(1, 10**_DIGITS)
_COMPLEX = re.compile(r"(?<![A-Za-z\\])i(?![A-Za-z])|\\(?:imath|Re|Im|arg|mathbb)(?![A-Za-z])")
_UPRIGHT = re.compile(r"\\(?:mathrm|text|textrm|operatorname)\s*\{\s*([a-zA-Z])\s*\}")
_SHORT_FRACTION = re.compile(r"\\[dtc]?frac\s*(\d)\s*(\d)")
_JUXTAPOSED = re.compile(r"(?<=\d)(?<![_^]\d)\s+(?=\d)(?!\d+\s*/)")
"""Two numbers with nothing between them, which the parser would add; `1 2/3` is meant to be."""

Key = tuple[Any, ...]


def main() -> None:
    """Answer requests until the input ends."""
    logging.disable(logging.CRITICAL)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        # The parent kills at the limit; the alarm ends this process even if the parent is gone.
        signal.setitimer(signal.ITIMER_REAL, 2 * request["limit_s"])
        reply = _answer(request["answer"], request.get("gold"))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps({"id": request["id"], **reply}), flush=True)


def _answer(answer: str, gold: str | None) -> dict[str, Any]:
    is_real = not _COMPLEX.search(f"{gold or ''} {answer}")
    parsed = parse(answer, is_real=is_real)
    if parsed is None:
        return {"status": "unparsed", "correct": False, "key": ""}
    if gold is None:
        return {"status": "ok", "correct": False, "key": _key_text(parsed)}
    parsed_gold = parse(gold, is_real=is_real)
    is_equal = parsed_gold is not None and are_equal(parsed_gold, parsed)
    return {"status": "ok", "correct": is_equal, "key": ""}


def parse(latex: str, *, is_real: bool) -> Any | None:
    """Return the sympy object that the whole of `latex` stands for, or None."""
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", _UPRIGHT.sub(r"{\1}", latex))
    if _JUXTAPOSED.search(text):
        return None
    try:
        text = normalize_latex(text, _NORMALIZATION)
        parsed = latex2sympy(text, is_real=is_real, normalization_config=None, conversion_config=_CONVERSION)
        return None if parsed is None or parsed.has(sympy.nan, sympy.zoo) else parsed
    except Exception:  # the parser raises whatever its grammar and sympy come upon
        return None


def are_equal(gold: Any, answer: Any) -> bool:
    """Whether two formulas have equal values, or math-verify accepts the answer and its parts have equal values."""
    if isinstance(gold, sympy.Eq) != isinstance(answer, sympy.Eq):
        gold, answer = _right_side(gold), _right_side(answer)
    if isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr):
        agrees = _exactly_equal(gold, answer)
        return verify(gold, answer, timeout_seconds=None) if agrees is None else agrees
    return verify(gold, answer, timeout_seconds=None) and _exactly_equal(gold, answer) is not False


def _exactly_equal(gold: Any, answer: Any) -> bool | None:
    """Compare structure and exact values; None where there are no values to compare."""
    try:
        if isinstance(gold, Relational) and isinstance(answer, Relational):
            return _same_relation(gold, answer)
        return key(gold) == key(answer)
    except Exception:  # sympy raises whatever it comes upon
        return None


def _key_text(parsed: Any) -> str:
    try:
        return repr(key(parsed))
    except Exception:  # as above
        return ""


def key(parsed: Any) -> Key:
    """Return what equal objects share: structure, and values at fixed points of the variables.

    Raises:
        ValueError: the object has no such key.
    """
    if isinstance(parsed, sympy.Eq):
        return key(parsed.rhs) if parsed.lhs.is_Symbol else ("eq", *key(parsed.lhs), *key(parsed.rhs))
    if isinstance(parsed, sympy.FiniteSet):
        return ("set", *sorted({key(item) for item in parsed.args}, key=repr))
    if isinstance(parsed, sympy.Union):
        return ("union", *sorted({key(item) for item in parsed.args}, key=repr))
    if isinstance(parsed, sympy.Interval):
        ends = (key(parsed.start), key(parsed.end))
        # (1, 2) is a pair as well as an open interval
        if parsed.left_open and parsed.right_open:
            return ("tuple", *ends)
        return ("interval", bool(parsed.left_open), bool(parsed.right_open), *ends)
    if isinstance(parsed, sympy.Tuple):
        return ("tuple", *(key(item) for item in parsed))
    if isinstance(parsed, sympy.MatrixBase):
        return ("matrix", parsed.shape, *(key(item) for item in parsed))
    if isinstance(parsed, sympy.Expr):
        return ("value", *_values(parsed))
    raise ValueError(type(parsed).__name__)


def _right_side(parsed: Any) -> Any:
    return parsed.rhs if isinstance(parsed, sympy.Eq) else parsed


def _same_relation(gold: Any, answer: Any) -> bool:
    """Whether the sides differ by one constant factor at all points: 2y = 4x and y - 2x = 0."""
    flip = {sympy.Lt: sympy.Gt, sympy.Gt: sympy.Lt, sympy.Le: sympy.Ge, sympy.Ge: sympy.Le}
    ratios = {
        str(sympy.N(a / g, _DIGITS // 2))
        for g, a in zip(_at_points(gold.lhs - gold.rhs), _at_points(answer.lhs - answer.rhs), strict=True)
    }
    if len(ratios) != 1:
        return False
    if isinstance(gold, sympy.Eq | sympy.Ne):
        return type(gold) is type(answer)
    is_negative = ratios.pop().startswith("-")
    return type(answer) is (flip[type(gold)] if is_negative else type(gold))


def _values(expr: Any) -> list[str]:
    if expr in (sympy.oo, -sympy.oo):
        return [str(expr)]
    return [_digits(value) for value in _at_points(expr)]


def _at_points(expr: Any) -> list[Any]:
    """Return the value of an expression at each point; one value if it has no variables."""
    exact = expr.doit().replace(lambda e: e.is_Float, lambda e: sympy.Rational(str(e)))
    # In a complex context the parser leaves i a symbol.
    exact = exact.subs({s: sympy.I for s in exact.free_symbols if s.name == "i" and s.is_real is False})
    points = range(_NUM_POINTS if exact.free_symbols else 1)
    return [_value(exact.subs({s: _coordinate(s.name, point) for s in exact.free_symbols})) for point in points]


def _value(exact: Any) -> Any:
    """Evaluate to `_DIGITS` digits behind the point and as many significant ones, with as many to spare."""
    value = exact.evalf(2 * _DIGITS)
    if not value.is_number:
        raise ValueError("no number")
    if abs(value) < _NEGLIGIBLE and sympy.simplify(exact) == 0:
        return sympy.Integer(0)
    whole = _whole_digits(value)
    return exact.evalf(2 * _DIGITS + whole) if whole else value


def _whole_digits(value: Any) -> int:
    """Return the power of ten of a number above 1; the margin keeps noise below 1000 from making it 999.9…"""
    size = abs(value)
    return int(float(sympy.log(size, 10)) + 1e-9) if size > 1 else 0


def _coordinate(name: str, point: int) -> Any:
    """Return a number that depends on the variable's name alone: above 0 at the first point, below at the last."""
    digest = hashlib.sha256(f"{name}:{point}".encode()).digest()
    size = sympy.Rational(int.from_bytes(digest[:4], "big"), 2**32) + sympy.Rational(1, 2)
    is_negative = point > 0 and (point == _NUM_POINTS - 1 or digest[4] % 2)
    return -size if is_negative else size


def _digits(value: Any) -> str:
    """Write a complex number as precisely as `_value` has it, noise beside the larger part cut off."""
    digits = _DIGITS + _whole_digits(value)
    parts = value.as_real_imag()
    noise = max(abs(part) for part in parts) * sympy.Rational(1, 10**digits)
    return " ".join(str(sympy.N(part, digits) if abs(part) > noise else 0) for part in parts)


if __name__ == "__main__":
    main()
