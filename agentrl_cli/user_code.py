"""Loads Python files that users write: a reward, or tools.

The file is run once, in this process, with all of its rights: it is the user's own code, as a script
would be. What a model writes never comes here; it runs in the sandbox.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from agentrl_cli.errors import ConfigError


def load_user_module(file: str, *, setting: str) -> ModuleType:
    """Run a user's Python file and return it as a module.

    Its folder is importable from it, as for a script.

    Args:
        file: Path of the file.
        setting: Name of the setting that gives it, for messages.

    Raises:
        ConfigError: there is no such file, or running it failed; the message names the line.
    """
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"{setting}={file!r}: there is no such file", hint="give the path of a Python file")
    name = f"agentrl_user_{path.stem}_{digest_of(file)[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{setting}={file!r} is no Python file", hint="its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ConfigError(f"{setting}={file!r} can't be loaded: {describe(error, path)}") from error
    return module


def digest_of(file: str) -> str:
    """Return the SHA-256 of a file's content in hex, or "missing"."""
    path = Path(file)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"


def describe(error: BaseException, path: Path) -> str:
    """Return an exception in one line, with the last line of the user's file that it passed through."""
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{message} (line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).name == path.name]
    return f"{message} (line {lines[-1]})" if lines else message
