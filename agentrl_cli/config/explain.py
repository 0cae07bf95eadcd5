"""What `agentrl presets` says of presets and settings."""

from __future__ import annotations

import re
from typing import Any

from agentrl_cli.config.catalog import REQUIRED, Setting, catalog, children, choices, resolve_key, toml_text
from agentrl_cli.config.load import load_config, preset_names, preset_text


def describe_presets() -> str:
    """Return a line a preset: its name and what it is for."""
    width = max(map(len, preset_names()))
    return "\n".join(f"{name:<{width}}  {_headline(name)}" for name in preset_names())


def explain(key: str) -> str:
    """Return what a setting means, its choices, its default and the presets' values; for a section, its settings.

    Raises:
        ConfigError: no setting ends in `key`, or several do.
    """
    setting = catalog()[resolve_key(key)]
    lines = [setting.path, f"  {setting.doc}"]
    if setting.is_section:
        lines += [f"  {child.path}{_default(child)}: {child.doc}" for child in children(setting.path)]
        return "\n".join(lines)
    options = choices(setting.annotation)
    lines += [f"  choices: {', '.join(options)}"] if options else []
    lines += [f"  default: {setting.default if setting.default == REQUIRED else toml_text(setting.default)}"]
    lines += [f"  only with {setting.variant}"] if setting.variant else []
    values = {name: _value(name, setting.path) for name in preset_names()}
    if not setting.variant and any(value != setting.default for value in values.values()):
        lines.append("  presets: " + ", ".join(f"{name} {toml_text(value)}" for name, value in values.items()))
    return "\n".join(lines)


def _headline(name: str) -> str:
    """Return how the comment at the top of a preset begins."""
    comment = preset_text(name).split("\n\n")[0].replace("\n#", "").lstrip("# ")
    return re.split(r"[:.] |, after", comment, maxsplit=1)[0]


def _default(setting: Setting) -> str:
    if setting.is_section:
        return ""
    return f" ({setting.default if setting.default == REQUIRED else toml_text(setting.default)})"


def _value(preset: str, path: str) -> Any:
    """Return a preset's value of a setting; None where the section that has it is not in use."""
    value: Any = load_config(preset, None, [])
    for name in path.split("."):
        value = getattr(value, name, None)
    return value
