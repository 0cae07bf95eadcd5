"""From preset, file and --set to one checked `Config`; later ones win, key by key."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentrl_cli.config.catalog import Setting, catalog, resolve_key, unknown_key
from agentrl_cli.config.messages import to_config_error
from agentrl_cli.config.schema import Config
from agentrl_cli.errors import ConfigError

DEFAULT_PRESET = "tiny"

Table = dict[str, Any]


def load_config(preset: str | None, config_file: Path | None, overrides: Sequence[str]) -> Config:
    """Return the settings of a preset (tiny unless named), changed by a file, changed by `key=value` texts.

    Args:
        config_file: TOML, or the config.json of a run.
        overrides: TOML values, plain text where no TOML fits; a key may drop its leading sections while unique.

    Raises:
        ConfigError: something is unknown, unreadable, out of range or contradictory.
    """
    name = preset or DEFAULT_PRESET
    layers = {f"preset {name}": _read_preset(name)}
    if config_file is not None:
        layers[str(config_file)] = _read_file(config_file)
    return _build({**layers, "--set": _read_overrides(overrides)})


def load_run_config(run_dir: Path, overrides: Sequence[str]) -> Config:
    """Return the settings that a run was made with, changed by `key=value` texts.

    Raises:
        ConfigError: the folder holds no config.json, or a text is wrong.
    """
    path = run_dir / "config.json"
    return _build({str(path): _read_file(path), "--set": _read_overrides(overrides)})


def preset_names() -> list[str]:
    """Return the names of the presets that come with the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _presets().iterdir() if entry.name.endswith(".toml"))


def preset_text(name: str) -> str:
    """Return a preset as it is written, comments included.

    Raises:
        ConfigError: there is no such preset.
    """
    names = preset_names()
    if name not in names:
        close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        meant = f"did you mean {close[0]}? " if close else ""
        hint = f"{meant}presets are {', '.join(names)}; a file of your own goes to --config"
        raise ConfigError(f"unknown preset {name!r}", hint=hint)
    return (_presets() / f"{name}.toml").read_text(encoding="utf-8")


def resolved_dump(config: Config) -> Table:
    """Return all settings as JSON-able values, as config.json and --dry-run show them."""
    return config.model_dump(mode="json")


def _presets() -> Traversable:
    return resources.files("agentrl_cli") / "presets"


def _read_preset(name: str) -> Table:
    return _parse_toml(preset_text(name), f"preset {name}")


def _read_file(path: Path) -> Table:
    """Read TOML, or JSON as runs store it (with or without what surrounds the settings there)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"can't be read: {error}"
        raise ConfigError(
            f"config file {str(path)!r} {reason}", hint="give a TOML file or a run's config.json"
        ) from error
    if path.suffix != ".json":
        return _parse_toml(text, str(path))
    try:
        values = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is not valid JSON: {error}") from error
    table = values.get("config", values) if isinstance(values, dict) else values
    if not isinstance(table, dict):
        raise ConfigError(f"{str(path)!r} must hold a JSON object of settings, got {type(table).__name__}")
    _refuse_unknown(table, str(path))
    return table


def _parse_toml(text: str, name: str) -> Table:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        hint = 'write text in quotes and sections as [grpo], such as: epsilon_high = 0.3, path = "my/model"'
        raise ConfigError(f"{name} is not valid TOML: {error}", hint=hint) from error
    _refuse_unknown(table, name)
    return table


def _read_overrides(overrides: Sequence[str]) -> Table:
    """Turn `key=value` texts into one nested table; the last one wins where a key stands twice."""
    table: Table = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"--set needs key=value, got {override!r}", hint="such as --set grpo.epsilon_high=0.3")
        path = resolve_key(key)
        *sections, leaf = path.split(".")
        node = table
        for section in sections:
            below = node.get(section)
            node[section] = below if isinstance(below, dict) else {}
            node = node[section]
        node[leaf] = _parse_value(text.strip(), catalog()[path])
    _refuse_unknown(table, "--set")
    return table


def _parse_value(text: str, setting: Setting) -> Any:
    """Read a value as TOML; what is no TOML is text, and so is what looks like a number where text is wanted."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError as error:
        if text.startswith(("[", "{")):
            hint = 'lists are written ["a", "b"] and tables {r = 8}, both in one pair of shell quotes'
            raise ConfigError(f"{setting.path}: {text!r} is not valid TOML: {error}", hint=hint) from error
        return text
    value = table["value"]
    if len(table) > 1 or (setting.takes_text and not isinstance(value, str | list)):
        return text
    return value


def _refuse_unknown(table: Mapping[str, Any], name: str, prefix: str = "") -> None:
    """Raise for the first key that no setting has."""
    for key, value in table.items():
        path = prefix + key
        if path not in catalog():
            raise unknown_key(path, where=f" in {name}")
        if isinstance(value, Mapping) and catalog()[path].is_section:
            _refuse_unknown(value, name, prefix=path + ".")


def _build(layers: Mapping[str, Table]) -> Config:
    """Merge the layers in order and check the outcome."""
    values: Table = {"sampler": {"type": catalog()["sampler.type"].default}}
    for layer in layers.values():
        values = _merge(values, layer)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise to_config_error(error, layers) from error


def _merge(base: Table, over: Table) -> Table:
    """Return `base` with `over` on top; a table with another `type` replaces the old one, whose keys mean nothing."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if (
            isinstance(below, dict)
            and isinstance(value, dict)
            and value.get("type", below.get("type")) == below.get("type")
        ):
            merged[key] = _merge(below, value)
        else:
            merged[key] = value
    return merged
