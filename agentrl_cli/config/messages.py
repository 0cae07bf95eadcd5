"""What pydantic found wrong, in words for someone who has never heard of pydantic."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from agentrl_cli.config.catalog import REQUIRED, catalog, choices, toml_text
from agentrl_cli.errors import ConfigError

Detail = Mapping[str, Any]
"""One finding of pydantic: type, loc, input, msg, ctx."""

_EXPECTED = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "model_type": "must be a table of settings",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "union_tag_invalid": "must be one of {expected_tags}",
}
"""pydantic's error types and what to say instead, filled from the error's own context."""


def to_config_error(error: ValidationError, sources: Mapping[str, Mapping[str, Any]]) -> ConfigError:
    """Return one error with a line per wrong setting; `sources` says which file or option set what, last wins."""
    found: dict[str, tuple[list[str], Detail]] = {}
    for finding in error.errors():
        detail: Detail = {**finding}
        path = _setting_path(detail["loc"])
        if detail["type"] == "union_tag_invalid":
            path, detail = f"{path}.type", {**detail, "input": detail["ctx"]["tag"]}
        texts, _ = found.setdefault(path, ([], detail))
        texts.append(_expectation(path, detail))
    lines = [_line(path, texts, detail, sources) for path, (texts, detail) in found.items()]
    if len(lines) > 1:
        return ConfigError("\n  ".join([f"{len(lines)} settings are wrong:", *lines]))
    path, (_, detail) = next(iter(found.items()))
    return ConfigError(lines[0], hint=_hint(path, detail))


def _line(path: str, texts: Sequence[str], detail: Detail, sources: Mapping[str, Mapping[str, Any]]) -> str:
    """Say what is wrong with one setting, what was got and where it came from."""
    text = " or ".join(dict.fromkeys(texts))
    if detail["type"] == "value_error":
        return f"{path}: {text}" if path and not text.startswith(path) else text
    if detail["type"] in ("missing", "extra_forbidden"):
        return f"{path} {text}"
    origin = next((f" ({name})" for name, values in reversed(list(sources.items())) if _holds(values, path)), "")
    return f"{path} {text}, got {_shown(detail['input'])}{origin}"


def _expectation(path: str, detail: Detail) -> str:
    """Say what a setting must be."""
    context = detail.get("ctx", {})
    if detail["type"] == "value_error":
        return str(context["error"])
    setting = catalog().get(path)
    condition = f" ({setting.variant})" if setting and setting.variant else ""
    if detail["type"] == "missing":
        return f"is required{condition}"
    if detail["type"] == "extra_forbidden":
        return f"has no effect here: it belongs to {setting.variant}" if setting else "is no setting"
    template = _EXPECTED.get(detail["type"])
    return template.format(**context) if template else str(detail["msg"]).lower()


def _hint(path: str, detail: Detail) -> str:
    """Say how to fix one wrong setting, or what it means; errors of our own validators say it themselves."""
    setting = catalog().get(path)
    if detail["type"] == "value_error" or setting is None:
        return ""
    if detail["type"] == "extra_forbidden":
        return f"add --set {setting.variant.replace(' ', '')} or leave {path} out"
    close = difflib.get_close_matches(str(detail["input"]), choices(setting.annotation), n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    default = "" if setting.default == REQUIRED or setting.is_section else f" (default {toml_text(setting.default)})"
    return f"{path}: {setting.doc}{default}"


def _setting_path(loc: Sequence[int | str]) -> str:
    """Return the dotted name for pydantic's location, which also names types and variants inside unions."""
    path, in_list = "", False
    for item in loc:
        if isinstance(item, int):
            path, in_list = f"{path}[{item}]", True
        elif in_list or not path or f"{path}.{item}" in catalog():
            path = f"{path}.{item}" if path else item
    return path


def _holds(values: Mapping[str, Any], path: str) -> bool:
    """Whether a nested table sets this dotted name (list positions count as the list)."""
    node: Any = values
    for part in path.split("[")[0].split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False
        node = node[part]
    return True


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
