"""Draws distinct problems of a split; which split a problem belongs to follows from its numbers alone."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from agentrl_cli.data.generated.families import FAMILIES, TAIL, Family, Params
from agentrl_cli.errors import ConfigError
from agentrl_cli.seeding import derive_seed
from agentrl_cli.types import AnswerKind, Problem

Split = Literal["sft", "train", "test"]
LEVELS = (1, 2, 3)

_SOURCE = "generated"
_NAMES = ("Tom", "Ana", "Raj", "Mia", "Leo", "Zoe", "Ben", "Eva")
_THINGS = ("pens", "nuts", "cups", "eggs", "cards", "keys", "beads", "stamps")
_SHARES: tuple[tuple[Split, int], ...] = (("test", 2), ("sft", 4), ("train", 4))
"""Tenths of the parameter space of each split."""
_MAX_MISSES = 2000
"""Draws without a new problem after which a cell of family and level counts as used up."""
_FUNCTIONS = {"__builtins__": {}, "isqrt": math.isqrt, "gcd": math.gcd, "factorial": math.factorial}


def generate_problems(
    split: Split, *, count: int, seed: int, families: Sequence[str] | None = None, levels: Sequence[int] = LEVELS
) -> list[Problem]:
    """Return `count` distinct problems, families and levels evenly mixed, in an order drawn from `seed`.

    A problem's split is a hash of its family and numbers, so no problem of one split ever turns up
    in another, whatever the seeds. `meta` holds the numbers, `level` the level they were drawn for.

    Args:
        split: `sft` (cold start), `train` (RL) or `test` (held out).
        families: Names to draw from; None or empty takes all that the split has.
        levels: 1 has small numbers, 2 larger ones, 3 the largest and one more operation at the end.

    Raises:
        ConfigError: unknown family or level, a family that the split does not have, or more problems
            asked for than exist.
    """
    cells = _cells(split, families, levels)
    rng = random.Random(derive_seed("generated", split, seed))
    seen: set[str] = set()
    streams = [
        _stream(FAMILIES[name], level, split, seen=seen, rng=random.Random(rng.getrandbits(63)))
        for name, level in cells
    ]
    problems: list[Problem] = []
    while len(problems) < count:
        order = list(range(len(streams)))
        rng.shuffle(order)
        for index in order[: count - len(problems)]:
            problem = next(streams[index], None)
            if problem is None:
                name, level = cells[index]
                raise ConfigError(
                    f"split {split!r} has too few problems of family {name!r} at level {level} for {count} in all, "
                    f"evenly mixed over {len(cells)} cells; got {len(problems)}",
                    hint="ask for fewer, or for more families and levels",
                )
            problems.append(problem)
    return problems


def split_of(family: str, params: Params) -> Split:
    """Return the split that a problem belongs to: a function of its family and numbers, not of its wording."""
    tenth = int.from_bytes(hashlib.sha256(_key(family, params).encode()).digest()[:8], "big") % 10
    for split, share in _SHARES:
        if tenth < share:
            return split
        tenth -= share
    raise AssertionError(f"shares do not cover {tenth}")


def _key(family: str, params: Params) -> str:
    return json.dumps([family, params], sort_keys=True)


def _cells(split: Split, families: Sequence[str] | None, levels: Sequence[int]) -> list[tuple[str, int]]:
    if split not in get_args(Split):
        raise ConfigError(f"unknown split {split!r}", hint=f"splits are {', '.join(get_args(Split))}")
    offered = [family.name for family in FAMILIES.values() if family.in_sft or split != "sft"]
    names = list(dict.fromkeys(families or offered))
    if unknown := [name for name in names if name not in offered]:
        raise ConfigError(f"split {split!r} has no family {unknown[0]!r}", hint=f"families are {', '.join(offered)}")
    if not levels or any(level not in LEVELS for level in levels):
        raise ConfigError(f"levels must be among {list(LEVELS)}, got {list(levels)}")
    return [(name, level) for name in names for level in sorted(set(levels))]


def _stream(family: Family, level: int, split: Split, *, seen: set[str], rng: random.Random) -> Iterator[Problem]:
    """Yield problems of one family and level that belong to `split` and are not `seen`, until none turn up.

    Levels overlap in their numbers, so `seen` is shared by the levels of a family.
    """
    misses = 0
    while misses < _MAX_MISSES:
        params = family.draw(rng, level)
        if level == max(LEVELS):
            params["z"] = rng.randint(101, 999)
        key = _key(family.name, params)
        if key in seen or split_of(family.name, params) != split:
            misses += 1
            continue
        misses = 0
        seen.add(key)
        yield _problem(family, level, params, rng=rng)


def _problem(family: Family, level: int, params: Params, *, rng: random.Random) -> Problem:
    wording = rng.choice(family.phrasings) + (TAIL if "z" in params else "")
    prompt = wording.format(**params, name=rng.choice(_NAMES), thing=rng.choice(_THINGS))
    digest = hashlib.sha256(f"{family.name}{prompt}".encode()).hexdigest()[:12]
    return Problem(
        id=f"{family.name}-{level}-{digest}",
        prompt=prompt,
        answer=str(_answer(family, params)),
        kind=AnswerKind.INTEGER,
        source=_SOURCE,
        family=family.name,
        level=level,
        meta=params,
    )


def _answer(family: Family, params: Params) -> int:
    """Return the answer after executing the reference expression and checking it against the other way."""
    tail = params.get("z", 0)
    # the expression is ours, from families.py; it sees the numbers and three functions
    expected = eval(family.reference, dict(_FUNCTIONS), dict(params)) + tail
    solved = family.solve(params) + tail
    assert type(expected) is int, (family.name, params, expected)
    assert expected == solved, (family.name, params, expected, solved)
    return expected
