"""How the scripted teacher goes about each family: the right way, and the mistakes it makes on purpose.

A plan is a list of tool calls and a final message. Calls are format strings over the numbers of the
problem and `{out}`, the output of the call before; `+{z}`, the operation that the highest level adds,
goes to the end of the last call by itself. A plan whose later call is wanted only after an error
repeats the failing first call, so that plans with a common beginning branch where the teacher
really decides: after it has seen the output.

The mistakes are of the kind that reinforcement learning can undo: the wrong operation, the wrong
order, stopping half-way, giving in after an error. In about half of the families the commonest plan
is a wrong one, so a model that imitates the teacher is wrong there even when it decodes greedily.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

Call = str | Callable[[Mapping[str, int], int], str]
"""A format string, or a function of the numbers and the last output (an integer) to one."""

GIVE_UP = "I could not solve this."


@dataclass(frozen=True, slots=True)
class Plan:
    """One way through a problem; `weight` is its share among the plans of the family."""

    weight: float
    calls: tuple[Call, ...]
    is_right: bool = False
    gives_up: bool = False
    """Ends without an answer instead of boxing the last output."""
    skips_tail: bool = False
    """Leaves out the operation that the highest level adds."""


def _right(weight: float, *calls: Call) -> Plan:
    return Plan(weight, calls, is_right=True)


def _wrong(weight: float, *calls: Call) -> Plan:
    return Plan(weight, calls)


def _early(weight: float, *calls: Call) -> Plan:
    """The plan stops half-way and boxes what it has."""
    return Plan(weight, calls, skips_tail=True)


def _give_up(weight: float, *calls: Call) -> Plan:
    return Plan(weight, calls, gives_up=True)


def _halve_or_add(params: Mapping[str, int], product: int) -> str:
    return "{out}+{c}" if product % 2 else "{out}//2"


def _add_or_halve(params: Mapping[str, int], product: int) -> str:
    """The two cases mixed up."""
    return _halve_or_add(params, product + 1)


def _last_two(params: Mapping[str, int], product: int) -> str:
    return f"{product % 100:02d}*{{c}}"


def _first_two(params: Mapping[str, int], product: int) -> str:
    return f"{str(product)[:2]}*{{c}}"


def _needs_import(name: str, *, bare: str, fallback: str, weights: tuple[float, float, float, float]) -> list[Plan]:
    """Return plans of a family whose obvious call fails for want of an import.

    Args:
        name: Function of module math.
        bare: The call without its import; `math.` is put before `name` where the import is there.
        fallback: What the teacher computes instead when it gives in after the error.
        weights: Of the import at once, repair, fallback and giving up.
    """
    imported = "import math;" + bare.replace(name, f"math.{name}")
    at_once, repair, fall_back, give_up = weights
    return [
        _right(at_once, imported),
        _right(repair, bare, imported),
        _wrong(fall_back, bare, fallback),
        _give_up(give_up, bare),
    ]


PLANS: dict[str, list[Plan]] = {
    "total": [
        _right(0.35, "{a}*{b}+{c}"),
        _wrong(0.50, "{a}*({b}+{c})"),
        _early(0.15, "{a}*{b}"),
    ],
    "left": [
        _right(0.55, "{a}*{b}-{c}"),
        _wrong(0.30, "({a}-{c})*{b}"),
        _wrong(0.15, "{a}*{b}+{c}"),
    ],
    "left_bags": [
        _right(1.00, "({a}-{c})*{b}"),
    ],
    "scale": [
        _right(0.35, "({a}+{b})*{c}"),
        _wrong(0.50, "{a}+{b}*{c}"),
        _wrong(0.15, "{a}*{b}*{c}"),
    ],
    "pairs": [
        _right(0.65, "{a}*{b}+{c}*{d}"),
        _wrong(0.35, "({a}+{c})*({b}+{d})"),
    ],
    "share": [
        _right(0.35, "{a}*{b}//{c}"),
        _wrong(0.50, "{a}*{b}-{c}"),
        _wrong(0.15, "{a}//{c}"),
    ],
    "percent": [
        _right(0.35, "{a}*{b}*(100-{c})//100"),
        _wrong(0.50, "{a}*{b}*{c}//100"),
        _wrong(0.15, "{a}*{b}-{c}"),
    ],
    "parity": [
        _right(0.40, "{a}*{b}", _halve_or_add),
        _early(0.45, "{a}*{b}"),
        _wrong(0.15, "{a}*{b}", _add_or_halve),
    ],
    "last_digits": [
        _right(0.55, "{a}*{b}", _last_two),
        _early(0.25, "{a}*{b}"),
        _wrong(0.20, "{a}*{b}", _first_two),
    ],
    "fence": _needs_import("isqrt", bare="4*isqrt({n})*{c}", fallback="4*{n}*{c}", weights=(0.15, 0.30, 0.45, 0.10)),
    "packs": _needs_import("gcd", bare="gcd({a},{b})*{c}", fallback="({b}-{a})*{c}", weights=(0.15, 0.30, 0.45, 0.10)),
    "arrange": _needs_import(
        "factorial", bare="factorial({n})*{c}", fallback="{n}*{c}", weights=(0.15, 0.40, 0.35, 0.10)
    ),
    "padded": [
        _right(0.15, "{a}*{b}+{c}"),
        _right(0.30, "{a:04d}*{b}+{c}", "{a}*{b}+{c}"),
        _wrong(0.45, "{a:04d}*{b}+{c}", "{b}+{c}"),
        _give_up(0.10, "{a:04d}*{b}+{c}"),
    ],
    "comma": [
        _right(0.20, "{a}*{b}+{c}"),
        _right(0.30, "{a:,}*{b}+{c}", "{a}*{b}+{c}"),
        _wrong(0.50, "{a:,}*{b}+{c}"),
    ],
}
"""Plans of each family; the weights of a family add up to 1."""


def render_call(plan: Plan, index: int, params: Mapping[str, int], last_output: str) -> str | None:
    """Return the code of a plan's call, or None if it builds on an output that is no integer."""
    call = plan.calls[index]
    needs_number = callable(call) or "{out}" in call
    if needs_number and not last_output.isdecimal():
        return None
    template = call(params, int(last_output)) if callable(call) else call
    is_last = index == len(plan.calls) - 1
    adds_tail = "z" in params and not plan.skips_tail and (is_last or (index == 0 and _is_retried(plan)))
    return (template + ("+{z}" if adds_tail else "")).format(**params, out=last_output)


def _is_retried(plan: Plan) -> bool:
    """The second call replaces the first one rather than building on it."""
    return len(plan.calls) > 1 and isinstance(plan.calls[1], str) and "{out}" not in plan.calls[1]
