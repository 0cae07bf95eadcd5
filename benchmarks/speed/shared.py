"""What both sides of the comparison use: the tool in process, its schema, and the answer check.

Imports the standard library alone, since the two sides live in different environments.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import time

PYTHON_SCHEMA = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run Python code and return its output.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "the code"}},
            "required": ["code"],
        },
        "return": {"type": "string"},
    },
}
"""As TRL derives it from the signature and docstring of `python`."""

CALL_S: list[float] = []
"""Seconds of each call of `python` so far."""

_BOX = re.compile(r"\\boxed\{([^{}]*)\}")


def python(code: str) -> str:
    """Run Python code and return its output.

    Args:
        code: the code
    """
    start = time.perf_counter()
    try:
        return _run(code)
    finally:
        CALL_S.append(time.perf_counter() - start)


def _run(code: str) -> str:
    out = io.StringIO()
    try:
        tree = ast.parse(code)
        names: dict[str, object] = {}
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(out):
            exec(compile(tree, "<cell>", "exec"), names)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
                if value is not None:
                    print(repr(value))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return out.getvalue().strip() or "(no output)"


def is_right(text: str, answer: str) -> bool:
    """The last box holds the answer, to the letter."""
    found = _BOX.findall(text)
    return bool(found) and found[-1].strip() == answer
