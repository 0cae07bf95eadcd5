"""A user's own tools: a Python file that lists functions as `TOOLS`. See docs/extending.md.

Each function has type hints and a docstring with an `Args:` section, from which transformers makes the
schema that the model sees. It may be `async`; a plain one runs in a thread of its own. What it returns is shown to the
model as text; what it raises is a failed call. It runs in this process, with all of its rights.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_cli.agent.arguments import read_arguments, read_checked
from agentrl_cli.errors import ConfigError
from agentrl_cli.types import ToolCall, ToolResult, ToolStatus
from agentrl_cli.user_code import describe, load_user_module

SETTING = "tools.module"
_CONTRACT = "list functions with type hints and a docstring: `TOOLS = [my_tool]`"
_CUT = "\n… (cut)"


def load_tools(file: str, *, timeout_s: float, max_output_chars: int) -> list[UserTool]:
    """Return the tools of a file; those with a sample in its `SAMPLES` are called once.

    Args:
        timeout_s: Wall-clock limit of one call.
        max_output_chars: Most characters of a result.

    Raises:
        ConfigError: the file can't be loaded, a function has no schema, or a sample fails.
    """
    module = load_user_module(file, setting=SETTING)
    functions = getattr(module, "TOOLS", None)
    if not isinstance(functions, list | tuple) or not functions or not all(map(callable, functions)):
        raise ConfigError(f"{SETTING}={file!r} has no list of functions `TOOLS`", hint=_CONTRACT)
    tools = [
        UserTool(function, _schema(function, file), timeout_s=timeout_s, max_output_chars=max_output_chars)
        for function in functions
    ]
    _try_samples(file, tools, getattr(module, "SAMPLES", {}))
    return tools


class UserTool:
    """One function of the user's file."""

    def __init__(
        self, function: Callable[..., Any], schema: Mapping[str, Any], *, timeout_s: float, max_output_chars: int
    ) -> None:
        self.name: str = function.__name__
        self.schema = schema
        self._function = function
        self._file = Path(inspect.getfile(function))
        self._timeout_s = timeout_s
        self._max_output_chars = max_output_chars

    def open(self) -> UserTool:
        """Return the tool itself: it keeps nothing between calls."""
        return self

    async def run(self, call: ToolCall) -> ToolResult:
        """Call the function with the arguments of the call."""
        arguments = read_checked(call)
        start = time.perf_counter()
        status, text = await self._run(arguments)
        return ToolResult(status, text, wall_s=time.perf_counter() - start)

    async def _run(self, arguments: dict[str, Any]) -> tuple[ToolStatus, str]:
        try:
            async with asyncio.timeout(self._timeout_s):
                value = await self._value(arguments)
        except TimeoutError:
            return ToolStatus.TIMEOUT, "Error: timed out"
        except Exception as error:
            return ToolStatus.ERROR, describe(error, self._file)
        text = "(no output)" if value is None else str(value)
        limit = self._max_output_chars
        return ToolStatus.OK, text if len(text) <= limit else text[: limit - len(_CUT)] + _CUT

    async def _value(self, arguments: dict[str, Any]) -> Any:
        call = functools.partial(self._function, **arguments)
        return await call() if inspect.iscoroutinefunction(self._function) else await _in_thread(call)

    async def close(self) -> None:
        """Nothing is held."""


async def _in_thread(call: Callable[[], Any]) -> Any:
    """Return what `call` returns, from a thread of its own: one that hangs holds up no other call, nor the end."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    outcome: list[tuple[Any, Exception | None]] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except Exception as error:
            outcome.append((None, error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name="agentrl-tool", daemon=True).start()
    await done.wait()
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def _schema(function: Callable[..., Any], file: str) -> Mapping[str, Any]:
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        schema: Mapping[str, Any] = get_json_schema(function)
    except Exception as error:  # transformers has several for what is missing
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(f"{SETTING}={file!r}: {name} has no schema: {error}", hint=_CONTRACT) from error
    return schema


def _try_samples(file: str, tools: Sequence[UserTool], samples: Mapping[str, Any]) -> None:
    """Call tools once with the arguments that the file gives for them."""
    by_name = {tool.name: tool for tool in tools}
    for name, arguments in samples.items():
        if name not in by_name:
            raise ConfigError(f"{SETTING}={file!r}: SAMPLES names {name!r}, which is not in TOOLS", hint=_CONTRACT)
        call = ToolCall("sample", name, json.dumps(arguments))
        _, error = read_arguments(call, by_name[name].schema)
        result = None if error else asyncio.run(by_name[name].run(call))
        if result is None or result.status is not ToolStatus.OK:
            reason = error if result is None else result.content
            raise ConfigError(f"{SETTING}={file!r}: {name}({arguments}) fails on its sample: {reason}")
