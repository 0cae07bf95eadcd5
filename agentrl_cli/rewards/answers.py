"""Finds the answer in what a model wrote: the last box of the text after its think block."""

from __future__ import annotations

import re

from agentrl_cli.types import AnswerKind

_BOX = re.compile(r"\\boxed(?![A-Za-z@*])\s*\{")
_CODE_BLOCK = re.compile(r"```[A-Za-z0-9_+-]*[ \t]*\n.*?\n?```", re.DOTALL)
_BLANK = re.compile(r"(?:[\s{}~$\x00\ufffd]|\\[,;:! ]|\\quad|\\qquad)*")
_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"


def final_text(text: str) -> str:
    """Return the text after the last think block; a think block that never closes hides all that follows it."""
    after = text.rpartition(_THINK_CLOSE)[2]
    return after.partition(_THINK_OPEN)[0]


def last_box(text: str) -> str | None:
    r"""Return the content of the last `\boxed{…}`, or None if there is none, it is empty or it never closes.

    Escaped braces (`\{`) do not count for the balance. No other command is a box: `\fbox` is not.
    """
    start = None
    for match in _BOX.finditer(text):
        start = match.end()
    if start is None:
        return None
    content = _balanced(text, start)
    if content is None or _BLANK.fullmatch(content):
        return None
    return content.strip()


def read_answer(text: str) -> str | None:
    """Return the content of the last box outside think blocks, or None."""
    return last_box(final_text(text))


def last_code_block(text: str) -> str | None:
    """Return the last fenced block outside think blocks, fences included, or None."""
    blocks = _CODE_BLOCK.findall(final_text(text))
    return blocks[-1] if blocks else None


def has_answer(text: str | None, kind: AnswerKind) -> bool:
    """Whether a final message holds an answer: a fenced block for code, a box for everything else."""
    if not text:
        return False
    found = last_code_block(text) if kind is AnswerKind.CODE else read_answer(text)
    return found is not None


def _balanced(text: str, start: int) -> str | None:
    """Return `text` from `start` up to the brace that closes the group opened just before, or None."""
    depth, position = 1, start
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 2
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return text[start:position]
        position += 1
    return None
