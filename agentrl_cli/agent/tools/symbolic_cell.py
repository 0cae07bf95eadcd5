"""What the symbolic tool runs in the sandbox: sympy on texts that a model wrote.

Never imported: its text is sent to the interpreter with each call and sees nothing of the package. sympy reads an
expression by evaluating it as Python, so this must not happen in a process of our own.
"""

from __future__ import annotations

import json
import re
from typing import Any

import sympy
from sympy.parsing import sympy_parser

_SIGNS = str.maketrans({"\u2212": "-", "\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u03c0": "pi", "\u221e": "oo"})
_TRANSFORMATIONS = (
    *sympy_parser.standard_transformations,
    sympy_parser.convert_xor,
    sympy_parser.implicit_multiplication,
    sympy_parser.rationalize,
)
_NAMES = {name: sympy.Symbol(name) for name in ("C", "N", "O", "Q", "S")} | {
    "e": sympy.E,
    "i": sympy.I,
    "inf": sympy.oo,
}
"""Letters that sympy has other uses for, and names that it does not know."""
_DIGITS = 15


class Error(Exception):
    """What is wrong with a call, in words for the model."""


def answer(request: str) -> str:
    """Return the lines that the model sees for one call, given as JSON."""
    arguments = json.loads(request)
    variables = re.findall(r"\w+", arguments.get("variable", ""))
    given = re.findall(r"(\w+)\s*=", arguments.get("values", ""))
    reader = _Reader(variables, given)
    result = _OPERATIONS[arguments["operation"]](reader, arguments)
    if isinstance(result, str):
        return result
    if result.has(sympy.zoo, sympy.nan):
        raise Error(f"the result is not defined ({result})")
    lines = [_with_number(result), f"LaTeX: {sympy.latex(result)}"]
    if isinstance(result, sympy.Integral | sympy.Limit | sympy.Derivative):
        lines.append("no closed form was found")
    return "\n".join(lines)


class _Reader:
    """Reads expressions; variables and names that are given a value mean themselves, whatever sympy knows by them."""

    def __init__(self, variables: list[str], given: list[str]) -> None:
        self.variables = [sympy.Symbol(name) for name in variables]
        self._names = _NAMES | {name: sympy.Symbol(name) for name in [*variables, *given]}

    def read(self, text: str) -> Any:
        """Return the expression, or the equation, that a text means."""
        sides = re.split(r"(?<![<>=!:])={1,2}(?!=)", text)
        if len(sides) > 2:
            raise Error(f"more than one = in {text!r}: separate equations by ;")
        read = [self._side(side) for side in sides]
        return sympy.Eq(*read) if len(read) == 2 else read[0]

    def _side(self, text: str) -> Any:
        if "\\" in text:
            raise Error("can't read LaTeX: write x**2, sqrt(x), (a + b)/c")
        try:
            value = sympy_parser.parse_expr(text.translate(_SIGNS), self._names, _TRANSFORMATIONS)
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:  # the parser evaluates: anything can come out of it
            reason = error.msg if isinstance(error, SyntaxError) else error
            raise Error(f"can't read {text.strip()!r}: {type(error).__name__}: {reason}") from None
        if not isinstance(value, sympy.Basic | sympy.MatrixBase):
            raise Error(f"{text.strip()!r} is no expression")
        return value

    def expression(self, arguments: dict[str, Any]) -> Any:
        """Return the expression of a call."""
        return self.read(arguments["expression"])

    def variable(self, expression: Any) -> Any:
        """Return the variable that a call names, or the only one of its expression."""
        if len(self.variables) == 1:
            return self.variables[0]
        free = sorted(expression.free_symbols, key=str)
        if len(free) == 1 and not self.variables:
            return free[0]
        raise Error(f"say which variable: one of {', '.join(map(str, free))}" if free else "there is no variable")


def _integrate(reader: _Reader, arguments: dict[str, Any]) -> Any:
    expression = reader.expression(arguments)
    variable = reader.variable(expression)
    if "lower" not in arguments:
        return sympy.integrate(expression, variable)
    return sympy.integrate(expression, (variable, reader.read(arguments["lower"]), reader.read(arguments["upper"])))


def _differentiate(reader: _Reader, arguments: dict[str, Any]) -> Any:
    expression = reader.expression(arguments)
    return sympy.diff(expression, reader.variable(expression), arguments.get("order", 1))


def _limit(reader: _Reader, arguments: dict[str, Any]) -> Any:
    expression = reader.expression(arguments)
    side = {"both": "+-", "left": "-", "right": "+"}[arguments.get("side", "both")]
    point = reader.read(arguments["point"])
    try:
        return sympy.limit(expression, reader.variable(expression), point, "+" if point.is_infinite else side)
    except ValueError as error:
        raise Error(str(error)) from None


def _evaluate(reader: _Reader, arguments: dict[str, Any]) -> Any:
    """Put values in and return what comes out, exactly; a number of it follows by itself."""
    expression = reader.expression(arguments)
    values = {}
    for part in filter(str.strip, arguments.get("values", "").split(",")):
        name, sign, value = part.partition("=")
        if not sign or not name.strip().isidentifier():
            raise Error(f"can't read {part.strip()!r}: write values as x=2, y=1/3")
        if sympy.Symbol(name.strip()) not in expression.free_symbols:
            raise Error(f"{name.strip()} does not occur in the expression")
        values[sympy.Symbol(name.strip())] = reader.read(value)
    return expression.subs(values).doit()


def _solve(reader: _Reader, arguments: dict[str, Any]) -> Any:
    equations = [reader.read(part) for part in arguments["expression"].split(";") if part.strip()]
    if not equations:
        raise Error("there is no equation")
    if all(equation is sympy.true for equation in equations):
        return "true for every value"
    unknown = sorted(set().union(*(equation.free_symbols for equation in equations)), key=str)
    variables = reader.variables or unknown
    if any(isinstance(equation, sympy.core.relational._Inequality) for equation in equations):
        return sympy.solve(equations, *variables)
    solutions = sympy.solve(equations[0] if len(equations) == 1 else equations, variables, dict=True)
    if not solutions:
        return "no solution was found"
    texts = [", ".join(f"{name} = {_with_number(value)}" for name, value in s.items()) for s in solutions]
    latex = [", ".join(f"{sympy.latex(name)} = {sympy.latex(value)}" for name, value in s.items()) for s in solutions]
    return "\n".join([*texts, "LaTeX: " + r" \quad ".join(latex)])


def _equal(reader: _Reader, arguments: dict[str, Any]) -> str:
    left, right = reader.expression(arguments), reader.read(arguments["other"])
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        difference = left - right
        same = True if difference == 0 or sympy.simplify(difference) == 0 else difference.equals(0)
    else:
        same = True if sympy.simplify(left) == sympy.simplify(right) else None
    return {True: "equal", False: "not equal", None: "could not be decided"}[same]


_OPERATIONS = {
    "simplify": lambda reader, arguments: sympy.simplify(reader.expression(arguments)),
    "expand": lambda reader, arguments: sympy.expand(reader.expression(arguments)),
    "factor": lambda reader, arguments: sympy.factor(reader.expression(arguments)),
    "solve": _solve,
    "integrate": _integrate,
    "differentiate": _differentiate,
    "limit": _limit,
    "evaluate": _evaluate,
    "equal": _equal,
}


def _with_number(value: Any) -> str:
    """Return a value as text; a number that does not look like one is followed by its digits."""
    text = str(value)
    if not getattr(value, "is_number", False) or re.fullmatch(r"-?\w+", text):
        return text
    return f"{text} ≈ {sympy.N(value, _DIGITS)}"
