"""Every setting by its full name: what the loader, `presets explain` and docs/settings.md look up."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from agentrl_cli.config.elsewhere import known_elsewhere
from agentrl_cli.config.schema import Config
from agentrl_cli.errors import ConfigError

REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting or one section of settings."""

    path: str
    """Full dotted name."""
    annotation: Any
    default: Any
    """Value without preset, file and --set; REQUIRED if there is none."""
    doc: str
    is_section: bool = False
    variant: str = ""
    """For settings of one variant only: the condition, such as "sampler.type = openai"."""

    @property
    def takes_text(self) -> bool:
        """The value may be free text, so what looks like a number may be meant as text."""
        return str in _alternatives(self.annotation)


@cache
def catalog() -> Mapping[str, Setting]:
    """Return all settings and sections by full name, in the order of the schema."""
    return {setting.path: setting for setting in _walk(Config, Config(), prefix="", variant="")}


def resolve_key(key: str) -> str:
    """Return the full name of a setting; leading sections may be left out while the rest is unique.

    Raises:
        ConfigError: no setting ends in `key`, or several do.
    """
    known = catalog()
    if key in known:
        return key
    matches = [path for path in known if path.endswith("." + key)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f"{key!r} is ambiguous: {', '.join(matches)}", hint=f"write it in full, such as {matches[0]}")
    raise unknown_key(key)


def unknown_key(key: str, *, where: str = "") -> ConfigError:
    """Return the error for a name that no setting has, with the nearest one that exists."""
    near, section = known_elsewhere(key) or nearest(key), key.rpartition(".")[0]
    if near:
        hint = f"did you mean {near}?"
    elif section in catalog():
        hint = f"[{section}] has {', '.join(_leaf(child.path) for child in children(section))}"
    else:
        hint = f"the sections are {', '.join(child.path for child in children(''))}"
    return ConfigError(f"unknown setting {key!r}{where}", hint=hint)


def nearest(key: str) -> str:
    """Return the full name nearest to `key`, or an empty string if nothing is near.

    A sibling in the section that was named comes first, then any full name, then any last part.
    """
    section, leaf = key.rpartition(".")[0], _leaf(key)
    paths = [setting.path for setting in catalog().values() if not setting.is_section]
    siblings = {_leaf(child.path): child.path for child in children(section)} if section in catalog() else {}
    by_leaf = {_leaf(path): path for path in reversed(paths)}
    for word, names in ((leaf, siblings), (key, {path: path for path in paths}), (leaf, by_leaf)):
        close = difflib.get_close_matches(word, list(names), n=1, cutoff=0.75)
        if close:
            return names[close[0]]
    return ""


def children(section: str) -> list[Setting]:
    """Return the settings directly below a section ("" for the top)."""
    prefix = section + "." if section else ""
    return [
        setting
        for path, setting in catalog().items()
        if path.startswith(prefix) and "." not in path[len(prefix) :] and path != section
    ]


def choices(annotation: Any) -> list[str]:
    """Return the words that a setting may take, or an empty list if it is not a choice."""
    return [str(word) for part in _alternatives(annotation) if get_origin(part) is Literal for word in get_args(part)]


def toml_text(value: Any) -> str:
    """Write a value as it would stand in TOML ("none" for unset)."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_text(item) for item in value) + "]"
    if isinstance(value, BaseModel):
        return toml_text(value.model_dump())
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_text(item)}" for key, item in value.items()) + "}"
    return repr(value)


def _walk(section: type[BaseModel], defaults: BaseModel | None, *, prefix: str, variant: str) -> Iterator[Setting]:
    """Yield the fields of a section in order, each followed by what lies below it."""
    for name, field in section.model_fields.items():
        path = prefix + name
        own = REQUIRED if field.is_required() else field.default
        default = getattr(defaults, name) if defaults is not None else own
        below = [part for part in _alternatives(field.annotation) if _is_section(part)]
        doc = " ".join(field.description.split()) if field.description else "".join(map(_summary, below[:1]))
        if field.discriminator:
            yield from _walk_variants(path, str(field.discriminator), below, default)
            continue
        yield Setting(
            path=path,
            annotation=field.annotation,
            default=default,
            doc=doc,
            is_section=bool(below),
            variant=variant,
        )
        for part in below:
            values = default if isinstance(default, part) else None
            yield from _walk(part, values, prefix=path + ".", variant=variant)


def _walk_variants(path: str, tag: str, variants: list[type[BaseModel]], default: Any) -> Iterator[Setting]:
    """Yield a section whose settings depend on one of them, the tag."""
    names = [variant.model_fields[tag].default for variant in variants]
    doc = " ".join(f"{name}: {_summary(variant)}" for name, variant in zip(names, variants, strict=True))
    yield Setting(path=path, annotation=type(default), default=default, doc=doc, is_section=True)
    yield Setting(path=f"{path}.{tag}", annotation=Literal[tuple(names)], default=getattr(default, tag), doc=doc)
    for name, variant in zip(names, variants, strict=True):
        values = default if isinstance(default, variant) else None
        for setting in _walk(variant, values, prefix=path + ".", variant=f"{path}.{tag} = {name}"):
            if setting.path != f"{path}.{tag}":
                yield setting


def _leaf(path: str) -> str:
    """Return the last part of a dotted name."""
    return path.rpartition(".")[2]


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation alone."""
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _summary(section: type[BaseModel]) -> str:
    """Return the docstring of a section in one line."""
    return " ".join((section.__doc__ or "").split())
