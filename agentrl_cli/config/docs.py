"""Writes docs/settings.md from the schema: `python -m agentrl_cli.config.docs > docs/settings.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from agentrl_cli.config.catalog import REQUIRED, Setting, catalog, children, choices, toml_text
from agentrl_cli.config.elsewhere import ELSEWHERE

_HEAD = """\
# Settings

Generated from the schema by `python -m agentrl_cli.config.docs > docs/settings.md`; edit \
`agentrl_cli/config/schema.py` instead.

Precedence: preset, then `--config FILE` (TOML), then `--set key=value`. A key may leave out its leading \
sections while the rest is unique (`--set steps=2`). Defaults below are those of the schema; presets override \
some of them (`agentrl presets show NAME`), and `--dry-run` prints what a run would use. Where a setting can be \
unset, the text `"none"` unsets it.
"""


def render() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for section in children(""):
        rows = [setting for path, setting in catalog().items() if path.startswith(section.path + ".")]
        parts += [f"## {section.path}\n\n{section.doc}\n", _table(["key", "default", "meaning"], map(_row, rows))]
    names = [[f"`{path}`", _code(trl), _code(verl)] for path, (trl, verl) in ELSEWHERE.items()]
    parts += [
        "## Names elsewhere\n\nThe nearest setting of other trainers (TRL 1.16 `GRPOConfig`, verl 0.9; `actor` is"
    ]
    parts[-1] += " `actor_rollout_ref.actor`, `rollout` is `actor_rollout_ref.rollout`). Units may differ.\n"
    parts.append(_table(["agentrl", "TRL", "verl"], names))
    return "\n".join(parts)


def _row(setting: Setting) -> list[str]:
    """Return the cells of one setting; sections have no default of their own."""
    if setting.is_section:
        return [f"**`{setting.path}`**", "none" if setting.default is None else "", setting.doc]
    options = choices(setting.annotation)
    meaning = setting.doc + (f" One of {', '.join(map(_code, options))}." if len(options) > 1 else "")
    meaning += f" Only with {setting.variant}." if setting.variant else ""
    default = REQUIRED if setting.default == REQUIRED else _code(toml_text(setting.default))
    return [f"`{setting.path}`", default, meaning]


def _table(head: list[str], rows: Iterable[list[str]]) -> str:
    """Return a Markdown table, with a line break after it."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def _code(text: str) -> str:
    """Set names in code type; remarks in parentheses stay plain."""
    if text.startswith("("):
        return text
    return f"`{text}`" if text else "-"


if __name__ == "__main__":
    sys.stdout.write(render())
