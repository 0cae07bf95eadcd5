"""The families of generated problems: wording, numbers, and two independent ways to the answer.

Each family stands for one thing that an agent with a Python tool has to get right:

- which operations, in which order (`total`, `left`, `scale`, `pairs`, `share`, `percent`);
- a second call that depends on what the first one printed (`parity`, `last_digits`);
- recovery after an error or an odd output (`fence`, `packs`, `arrange` need an import, `padded` has
  numbers that are no Python literals, `comma` has numbers that Python reads as tuples);
- a wording that the cold start never shows (`left_bags`).

Answers are products of numbers with two or three digits, so that they can't be guessed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

Params = dict[str, int]
"""Numbers of one problem by their name in the wording."""

TAIL = " Then add {z}."
"""Appended to the wording at the highest level: one more operation on the result."""


_RATIOS = ((2, 5), (2, 7), (3, 5), (3, 7), (3, 8), (4, 7), (4, 9), (5, 7), (5, 8), (7, 9))


@dataclass(frozen=True, slots=True)
class Family:
    """One kind of problem.

    `phrasings` are format strings over the parameters and `{name}`, `{thing}`; `draw` picks the
    parameters of a level; `reference` is a Python expression over the parameters, `solve` the same
    answer computed another way. The generator executes both and requires them to agree.
    """

    name: str
    phrasings: tuple[str, ...]
    draw: Callable[[random.Random, int], Params]
    reference: str
    solve: Callable[[Params], int]
    in_sft: bool = True
    """False keeps the family out of split `sft`: it is met for the first time in RL."""


def _small(rng: random.Random, level: int) -> int:
    """A number of two digits; of up to three at the highest level."""
    return rng.randint(12, 99 if level < 3 else 299)


def _large(rng: random.Random, level: int) -> int:
    """A number of two digits at level 1, of three above."""
    return rng.randint(12, 99) if level == 1 else rng.randint(101, 999)


def _abc(rng: random.Random, level: int) -> Params:
    return {"a": _small(rng, level), "b": _small(rng, level), "c": _large(rng, level)}


def _draw_pairs(rng: random.Random, level: int) -> Params:
    return {
        "a": _small(rng, level),
        "b": _small(rng, level),
        "c": rng.randint(12, 99),
        "d": _large(rng, level),
    }


def _draw_left(rng: random.Random, level: int) -> Params:
    """`c` stays below `a`, so that taking away `c` bags would be possible too."""
    c = _small(rng, level)
    return {"a": c + rng.randint(12, 99 if level == 1 else 499), "b": _small(rng, level), "c": c}


def _draw_share(rng: random.Random, level: int) -> Params:
    """`c` divides `a`, so that the division is exact."""
    c = rng.randint(3, 9)
    return {"a": c * rng.randint(12, 32 if level == 1 else 99), "b": _small(rng, level), "c": c}


def _draw_percent(rng: random.Random, level: int) -> Params:
    """`a` is a multiple of 20 and `c` of 5, so that the price after the discount is whole."""
    a = 20 * rng.randint(1 if level == 1 else 6, 4 if level == 1 else 49)
    return {"a": a, "b": _small(rng, level), "c": 5 * rng.randint(2, 19)}


def _draw_parity(rng: random.Random, level: int) -> Params:
    """Even and odd products are equally frequent."""
    wants_even = rng.random() < 0.5
    while True:
        params = _abc(rng, level)
        if (params["a"] * params["b"] % 2 == 0) == wants_even:
            return params


def _draw_last_digits(rng: random.Random, level: int) -> Params:
    """The last two digits of the product make a number of two digits."""
    while True:
        params = _abc(rng, level)
        if params["a"] * params["b"] % 100 >= 10:
            return params


def _draw_fence(rng: random.Random, level: int) -> Params:
    """A side of three digits whose square has five."""
    root = rng.randint(101, 199) if level == 1 else rng.randint(201, 316)
    return {"n": root * root, "c": rng.randint(12, 99)}


def _draw_packs(rng: random.Random, level: int) -> Params:
    """The numbers are in a coprime ratio whose difference is no 1, so that `b - a` is not the divisor."""
    divisor = _small(rng, 1)
    first, second = rng.choice(_RATIOS)
    return {"a": divisor * first, "b": divisor * second, "c": _large(rng, level)}


def _draw_arrange(rng: random.Random, level: int) -> Params:
    return {"n": rng.randint(4, 7) if level == 1 else rng.randint(5, 9), "c": _large(rng, max(level, 2))}


def _draw_comma(rng: random.Random, level: int) -> Params:
    return {"a": rng.randint(1100, 9899), "b": _small(rng, level), "c": _large(rng, level)}


def _solve_parity(p: Params) -> int:
    half, rest = divmod(p["a"] * p["b"], 2)
    return p["a"] * p["b"] + p["c"] if rest else half


def _solve_fence(p: Params) -> int:
    return 4 * round(math.sqrt(p["n"])) * p["c"]


def _solve_packs(p: Params) -> int:
    a, b = p["a"], p["b"]
    while b:
        a, b = b, a % b
    return a * p["c"]


_FAMILIES = (
    Family(
        "total",
        (
            "{name} has {a} bags of {b} {thing} and {c} loose {thing}. How many {thing} in all?",
            "A shop gets {a} boxes with {b} {thing} each and {c} single {thing}. How many {thing}?",
            "On a table are {a} bags of {b} {thing} and {c} more {thing}. Count all {thing}.",
        ),
        _abc,
        "a*b+c",
        lambda p: sum([p["b"]] * p["a"], p["c"]),
    ),
    Family(
        "left",
        (
            "{name} has {a} bags of {b} {thing} and loses {c} {thing}. How many {thing} are left?",
            "From {a} boxes with {b} {thing} each, {name} takes {c} {thing}. How many {thing} stay?",
            "{name} had {a} bags of {b} {thing} and sold {c} {thing}. How many {thing} are left?",
        ),
        _draw_left,
        "a*b-c",
        lambda p: sum([p["b"]] * p["a"], -p["c"]),
    ),
    Family(
        "left_bags",
        (
            "{name} has {a} bags of {b} {thing} and loses {c} bags. How many {thing} are left?",
            "From {a} boxes with {b} {thing} each, {name} takes {c} boxes. How many {thing} stay?",
            "{name} had {a} bags of {b} {thing} and sold {c} bags. How many {thing} are left?",
        ),
        _draw_left,
        "(a-c)*b",
        lambda p: p["a"] * p["b"] - p["c"] * p["b"],
        in_sft=False,
    ),
    Family(
        "scale",
        (
            "Add {a} and {b}, then multiply by {c}.",
            "{name} reads {a} pages in May, {b} in June, and {c} times both together in July. How many in July?",
            "What is the sum of {a} and {b}, times {c}?",
        ),
        _abc,
        "(a+b)*c",
        lambda p: p["a"] * p["c"] + p["b"] * p["c"],
    ),
    Family(
        "pairs",
        (
            "{name} buys {a} bags of {b} {thing} and {c} boxes of {d} {thing}. How many {thing}?",
            "A shop has {a} rows of {b} {thing} and {c} rows of {d} {thing}. How many {thing}?",
            "Count the {thing} in {a} bags of {b} and {c} bags of {d}.",
        ),
        _draw_pairs,
        "a*b+c*d",
        lambda p: sum([p["b"]] * p["a"]) + sum([p["d"]] * p["c"]),
    ),
    Family(
        "share",
        (
            "{name} splits {a} bags of {b} {thing} evenly among {c} friends. How many {thing} for each?",
            "{a} boxes with {b} {thing} each are shared by {c} teams. How many {thing} does a team get?",
            "{c} children share {a} bags of {b} {thing}. How many {thing} does each get?",
        ),
        _draw_share,
        "a*b//c",
        lambda p: p["a"] // p["c"] * p["b"],
    ),
    Family(
        "percent",
        (
            "A coat costs {a} coins. {name} buys {b} coats at {c} percent off. What is the price?",
            "{b} tickets for {a} coins each, {c} percent discount on all. How much to pay?",
            "{name} sells {b} lamps for {a} coins each but lowers the price by {c} percent. What comes in?",
        ),
        _draw_percent,
        "a*b*(100-c)//100",
        lambda p: p["a"] // 20 * (20 - p["c"] // 5) * p["b"],
    ),
    Family(
        "parity",
        (
            "Multiply {a} by {b}. If the result is even, halve it, otherwise add {c}.",
            "Take {a} times {b}. Add {c} to an odd result, but halve an even one.",
            "Find {a} times {b}. An even result is halved, to an odd one {c} is added.",
        ),
        _draw_parity,
        "a*b//2 if a*b%2==0 else a*b+c",
        _solve_parity,
    ),
    Family(
        "last_digits",
        (
            "Multiply {a} by {b}. Take the last two digits of the result times {c}.",
            "The last two digits of {a} times {b} make a number. Multiply it by {c}.",
            "Find {a} times {b} and keep only its last two digits. What is that times {c}?",
        ),
        _draw_last_digits,
        "a*b%100*c",
        lambda p: int(str(p["a"] * p["b"])[-2:]) * p["c"],
    ),
    Family(
        "fence",
        (
            "A square field has an area of {n}. A fence around it costs {c} for each unit. What is the cost?",
            "{name} puts a fence around a square field of area {n}, at {c} coins for each unit. How much to pay?",
            "What is {c} times the distance around a square of area {n}?",
        ),
        _draw_fence,
        "4*isqrt(n)*c",
        _solve_fence,
    ),
    Family(
        "packs",
        (
            "{name} puts {a} red and {b} blue {thing} into as many equal packs as possible, {c} coins each. "
            "What is the price of all packs?",
            "What is the greatest common divisor of {a} and {b}, times {c}?",
            "As many equal packs as possible are made of {a} pens and {b} cups. A pack weighs {c}. What do all weigh?",
        ),
        _draw_packs,
        "gcd(a,b)*c",
        _solve_packs,
    ),
    Family(
        "arrange",
        (
            "In how many ways can {n} books stand in a row, with {c} ways to pick the shelf?",
            "{n} children line up in front of one of {c} doors. How many ways are there?",
            "Count the orders of {n} {thing} and multiply by {c}.",
        ),
        _draw_arrange,
        "factorial(n)*c",
        lambda p: math.prod(range(1, p["n"] + 1)) * p["c"],
    ),
    Family(
        "padded",
        (
            "Multiply the ticket number {a:04d} by {b} and add {c}.",
            "{name} has ticket {a:04d}. What is its number times {b}, plus {c}?",
            "The meter shows {a:04d}. Multiply by {b}, then add {c}.",
        ),
        _abc,
        "a*b+c",
        lambda p: sum([p["b"]] * p["a"], p["c"]),
    ),
    Family(
        "comma",
        (
            "A hall with {a:,} seats is full on {b} days, and {c} more people come. How many people?",
            "{name} earns {a:,} coins in each of {b} weeks and finds {c}. How many coins?",
            "Multiply {a:,} by {b} and add {c}.",
        ),
        _draw_comma,
        "a*b+c",
        lambda p: sum([p["a"]] * p["b"], p["c"]),
    ),
)

FAMILIES: dict[str, Family] = {family.name: family for family in _FAMILIES}
"""All families by name, in the order of their listing."""
