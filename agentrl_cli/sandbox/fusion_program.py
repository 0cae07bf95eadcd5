"""The program that a SandboxFusion server runs for every call, made of our own modules.

The server knows nothing of this package, so the sources of `fusion_remote` and of every module of ours
that it imports travel with each request. The program is the same for all calls: what differs is on stdin.
"""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

_ROOT = "agentrl_cli.sandbox.fusion_remote"
_PACKAGE = "agentrl_cli"
_START = """\
import os, sys, types
_settings = {"PYTHONHASHSEED": "0", "TZ": "UTC", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
if os.environ.get("PYTHONHASHSEED") != "0":
    # sets and dictionaries of strings keep their order when cells run again
    _kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    os.execve(sys.executable, [sys.executable, os.path.abspath(__file__)], {**_kept, **_settings})
for _name, _source in _modules:
    _module = sys.modules[_name] = types.ModuleType(_name)
    if not _source:
        _module.__path__ = []
    exec(compile(_source, "<" + _name + ">", "exec", dont_inherit=True), _module.__dict__)
"""


@cache
def build_program() -> str:
    """Return the program's source: ASCII, for Python 3.10 and later with numpy."""
    modules = [(name, "") for name in (_PACKAGE, f"{_PACKAGE}.sandbox")]
    modules += [(name, _source(name)) for name in _needed(_ROOT)]
    lines = ",\n".join(f"    ({name!r}, {source!a})" for name, source in modules)
    return f"_modules = [\n{lines},\n]\n{_START}sys.modules[{_ROOT!r}].main()\n"


def _needed(name: str) -> list[str]:
    """Return a module and all of ours that it imports, those first that others need."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(_source(name))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_PACKAGE}."):
            found |= dict.fromkeys(_needed(node.module or ""))
    return [*found, name]


@cache
def _source(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None, f"no module {name}"
    assert spec.origin is not None, f"no source of {name}"
    return Path(spec.origin).read_text(encoding="utf-8")
