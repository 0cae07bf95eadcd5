"""The result of `agentrl runs compare` for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentrl_cli.runs_index.facts import NOT_SET

Row = Mapping[str, Any]


def render_comparison(result: Row) -> str:
    """Return the comparison as text, a paragraph for each part."""
    parts = [
        ["", *(f"{side.upper()}  {_headline(result[side])}" for side in ("a", "b"))],
        ["settings that differ", *_changes(result["settings"])],
        ["versions and model that differ", *_changes(result["identity"])],
        ["held-out problems", *_held_out(result["a"], result["b"])],
        ["metrics: mean ± standard error of the last steps that both have", *_metrics(result["metrics"])],
        ["the same problems, paired: B - A ± standard error", *_evaluations(result["evaluations"])],
    ]
    return "\n\n".join("\n".join(lines if len(lines) > 1 else [*lines, "  none"]) for lines in parts).lstrip("\n")


def _headline(run: Row) -> str:
    return f"{run['run']}  ({run['kind']}, {run['steps']} steps, created {run['created'][:16]})"


def _changes(rows: Sequence[Row]) -> list[str]:
    return [f"  {row['name']}: {_short(row['a'])} -> {_short(row['b'])}" for row in rows]


def _short(value: Any) -> str:
    """Return a setting as text; digests are told apart by their beginning."""
    if value == NOT_SET:
        return NOT_SET
    is_digest = isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
    return f"{value[:12]}…" if is_digest else repr(value)


def _held_out(a: Row, b: Row) -> Iterator[str]:
    for when in ("before", "after"):
        if a[when] or b[when]:
            yield f"  {when:<6}  A {_figures(a[when])}  B {_figures(b[when])}"


def _figures(figures: Row | None) -> str:
    if figures is None:
        return "not measured"
    stderr = "" if figures.get("stderr") is None else f" ± {figures['stderr']:.3f}"
    return f"{figures['accuracy']:.3f}{stderr} (step {figures['step']}, {figures['n']} problems x {figures['k']})"


def _metrics(rows: Sequence[Row]) -> Iterator[str]:
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        a, b = _number(row["a"], row["a_stderr"]), _number(row["b"], row["b_stderr"])
        difference = _number(row["difference"], row["difference_stderr"], sign="+")
        span = f"steps {row['first_step']}-{row['last_step']}"
        yield f"  {row['name']:<{width}}  A {a}  B {b}  B - A {difference}  ({span})"


def _evaluations(rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        if "not_comparable" in row:
            yield f"  {row['name']}: not comparable: {row['not_comparable']}"
        else:
            yield (
                f"  {row['name']}: {_number(row['difference'], row['stderr'], sign='+')}, 95% interval "
                f"{row['low']:+.3f} to {row['high']:+.3f}, p = {row['p_value']:.2g}  ({row['n']} problems x {row['k']})"
            )


def _number(value: float, stderr: float | None, *, sign: str = "") -> str:
    return f"{value:{sign}.4g}" + ("" if stderr is None else f" ± {stderr:.2g}")
