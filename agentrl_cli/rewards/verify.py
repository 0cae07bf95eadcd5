r"""Decides whether a response is right: reads the last box, compares it with the gold by the gold's kind.

Integers, decimals, choices and words are compared exactly and at once (`plain`); only expressions go to
math-verify, in a process of their own (`math_pool`). Statuses:

| status | means |
|---|---|
| `ok` | an answer was read and compared |
| `no_answer` | no box in the final text, or its last box is empty or never closes |
| `truncated` | the trajectory was cut at the token limit, whatever stands in it |
| `unparsed` | the box holds no answer of this kind, or its expression crashes the verifier again and again |
| `timeout` | comparing took longer than the limit |
| `infra_error` | the verifier failed on known-good input too: says nothing about the answer |

All but `ok` are wrong answers, except `infra_error`, which must never be scored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from agentrl_cli.errors import DataError
from agentrl_cli.rewards.answers import read_answer
from agentrl_cli.rewards.math_pool import MathPool, Reply, WorkerDied, WorkerTimeout, shared_pool
from agentrl_cli.rewards.plain import (
    MAX_CHARS,
    clean,
    has_changing_words,
    is_words,
    read_based,
    read_choice,
    read_number,
    read_words,
    strip_units,
)
from agentrl_cli.types import AnswerKind, Ending, Problem, Verdict, VerdictStatus

_ATTEMPTS = 2
_SAME = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_ROOT = re.compile(r"\\?sqrt\s*\(([^()]*)\)")
_PERCENT = re.compile(r"\\?%")


@dataclass(frozen=True, slots=True)
class Response:
    """A final text to be verified against its problem."""

    text: str
    problem: Problem
    ending: Ending = Ending.ANSWERED


def check_gold(problem: Problem, *, where: str) -> None:
    """Refuse a problem whose gold answer can't be compared.

    Raises:
        DataError: the gold is not of its kind, or the kind is `code`.
    """
    gold, kind = problem.answer, problem.kind
    if kind is AnswerKind.CODE:
        raise DataError(
            f"{where}: answers of kind 'code' can't be verified yet",
            hint="give problems of kind integer, decimal, math or choice",
        )
    number = read_number(gold)
    readable = {
        AnswerKind.INTEGER: number is not None and number.value.denominator == 1,
        AnswerKind.DECIMAL: number is not None,
        AnswerKind.MATH: bool(clean(gold)) and len(gold) <= MAX_CHARS,
        AnswerKind.CHOICE: read_choice(gold) is not None,
    }
    if not readable[kind]:
        raise DataError(f"{where}: the gold answer {gold!r} is no {kind.value} answer")


def verify(
    text: str, problem: Problem, *, ending: Ending = Ending.ANSWERED, timeout_s: float, pool: MathPool | None = None
) -> Verdict:
    """Return the verdict on one final text; see `verify_all`."""
    return verify_all([Response(text, problem, ending)], timeout_s=timeout_s, pool=pool)[0]


def verify_all(responses: Sequence[Response], *, timeout_s: float, pool: MathPool | None = None) -> list[Verdict]:
    """Return the verdict on each response, in order; equal expressions are compared once.

    Args:
        timeout_s: Wall-clock limit of comparing one expression.
        pool: Processes that compare expressions; None takes those shared by this process.

    Raises:
        DataError: a gold answer can't be read.
    """
    verdicts = [_at_once(response) for response in responses]
    pending = [_Task.of(response) for response, verdict in zip(responses, verdicts, strict=True) if verdict is None]
    found = _compare(pending, timeout_s=timeout_s, pool=pool)
    tasks = iter(pending)
    return [found[next(tasks)] if verdict is None else verdict for verdict in verdicts]


def vote_keys(
    answers: Sequence[str], kind: AnswerKind, *, timeout_s: float, pool: MathPool | None = None
) -> dict[str, str]:
    """Map each extracted answer to a text that equal answers share, whether they are right or wrong."""
    keys = {answer: _plain_key(answer, kind) for answer in answers}
    pending = [answer for answer, found in keys.items() if found is None]
    if pending:
        workers = pool or shared_pool()
        with ThreadPoolExecutor(workers.size) as threads:
            found = threads.map(lambda answer: _math_key(answer, timeout_s=timeout_s, pool=workers), pending)
            keys.update(zip(pending, found, strict=True))
    return {answer: found or _squeezed(answer) for answer, found in keys.items()}


@dataclass(frozen=True, slots=True)
class _Task:
    """An expression to be compared in a worker."""

    gold: str
    box: str

    @classmethod
    def of(cls, response: Response) -> _Task:
        box = read_answer(response.text)
        assert box is not None, response
        return cls(response.problem.answer, box)


def _at_once(response: Response) -> Verdict | None:
    """Return the verdict, or None if two expressions have to be compared in a worker."""
    ending, problem = response.ending, response.problem
    assert ending.is_valid, f"{ending} is never verified"
    check_gold(problem, where=f"problem {problem.id!r}")
    box = read_answer(response.text)
    if ending is Ending.MAX_TOKENS:
        return Verdict(False, VerdictStatus.TRUNCATED, box or "")
    if box is None or ending in (Ending.MAX_TURNS, Ending.TOOL_LIMIT):
        return Verdict(False, VerdictStatus.NO_ANSWER)
    if len(box) > MAX_CHARS:
        return Verdict(False, VerdictStatus.UNPARSED, box[:MAX_CHARS])
    if problem.kind is AnswerKind.MATH:
        return _math_at_once(problem.answer, box)
    if problem.kind is AnswerKind.CHOICE:
        letter = read_choice(box)
        return _verdict(letter == read_choice(problem.answer), box, is_read=letter is not None)
    number, gold = read_number(box), read_number(problem.answer)
    is_equal = number is not None and gold is not None and number.value == gold.value
    return _verdict(is_equal, box, is_read=number is not None)


def _verdict(is_correct: bool, box: str, *, is_read: bool = True) -> Verdict:
    return Verdict(is_correct, VerdictStatus.OK if is_read else VerdictStatus.UNPARSED, box)


def _math_at_once(gold: str, box: str) -> Verdict | None:
    if _squeezed(gold) == _squeezed(box):
        return _verdict(True, box)
    if is_words(gold):
        return _verdict(read_words(gold) == read_words(box), box)
    if has_changing_words(box) and not has_changing_words(gold):
        return _verdict(False, box, is_read=False)
    wanted, given = read_number(gold), read_number(box)
    # An equation is more than the number on its right.
    if wanted and given and "=" not in gold:
        # A percent sign may be left out, as any unit, or worked out.
        is_share = wanted.is_percent and not given.is_percent and wanted.value == 100 * given.value
        return _verdict(wanted.value == given.value or is_share, box)
    based_gold, based_box = read_based(gold), read_based(box)
    if based_gold or based_box:
        return _verdict(_same_base(gold, box), box)
    return None


def _same_base(gold: str, box: str) -> bool:
    """Whether two numerals agree, where the base may be left out in the answer."""
    wanted, given = read_based(gold), read_based(box)
    if wanted is None:
        return given is not None and given[1] == "10" and given[0] == clean(gold)
    return given == wanted if given else clean(box).upper() == wanted[0]


def _compare(tasks: Sequence[_Task], *, timeout_s: float, pool: MathPool | None) -> Mapping[_Task, Verdict]:
    unique = list(dict.fromkeys(tasks))
    if not unique:
        return {}
    workers = pool or shared_pool()
    if len(unique) == 1:
        return {unique[0]: _compare_one(unique[0], timeout_s=timeout_s, pool=workers)}
    with ThreadPoolExecutor(workers.size) as threads:
        verdicts = threads.map(lambda task: _compare_one(task, timeout_s=timeout_s, pool=workers), unique)
        return dict(zip(unique, verdicts, strict=True))


def _compare_one(task: _Task, *, timeout_s: float, pool: MathPool) -> Verdict:
    """Compare in a worker; a crash is tried again, then blamed on the input if known-good input passes."""
    for _ in range(_ATTEMPTS):
        try:
            reply = pool.ask(_expression(task.box), gold=_expression(task.gold), timeout_s=timeout_s)
        except WorkerTimeout:
            return Verdict(False, VerdictStatus.TIMEOUT, task.box)
        except WorkerDied:
            continue
        return Verdict(reply.is_equal, reply.status, task.box)
    is_healthy = pool.passes_control(timeout_s=timeout_s)
    return Verdict(False, VerdictStatus.UNPARSED if is_healthy else VerdictStatus.INFRA_ERROR, task.box)


def _expression(text: str) -> str:
    """Return what the parser is given: without percent signs, full stop and units in text commands."""
    plain = _ROOT.sub(r"\\sqrt{\1}", _PERCENT.sub("", clean(text)))
    return strip_units(plain.rstrip(". "), bare_words=False)


def _squeezed(text: str) -> str:
    return "".join(_SAME.sub(r"\\frac", clean(text)).split())


def _plain_key(answer: str, kind: AnswerKind) -> str | None:
    """Return the key of an answer that needs no worker, else None."""
    if kind is AnswerKind.CHOICE:
        return read_choice(answer) or _squeezed(answer)
    number = read_number(answer)
    if number is not None:
        return str(number.value)
    if kind is not AnswerKind.MATH:
        return _squeezed(answer)
    return read_words(answer) if is_words(answer) else None


def _math_key(answer: str, *, timeout_s: float, pool: MathPool) -> str:
    try:
        reply: Reply = pool.ask(_expression(answer), gold=None, timeout_s=timeout_s)
    except (WorkerTimeout, WorkerDied):
        return ""
    return reply.key
