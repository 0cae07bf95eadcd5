"""One number for "the same settings": a run is resumed only under the settings that it began with."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from agentrl_cli.config.load import resolved_dump
from agentrl_cli.config.schema import Config
from agentrl_cli.user_code import digest_of

MAY_CHANGE = frozenset(
    {
        "run.save_every_steps",
        "run.keep_checkpoints",
        "run.keep_trajectories",
        "sandbox.pool_size",
        "sandbox.max_sessions",
        "collect",
        "filter",
    }
)
"""Settings (and whole sections) that change nothing about what a training run computes."""


def config_digest(config: Config, *, exclude: Collection[str] = MAY_CHANGE, inputs: Sequence[Path] = ()) -> str:
    """Return the SHA-256 of the resolved settings and of the content of the files that a run reads, in hex.

    `run.steps` counts only where a schedule stretches over it, so that other runs can be extended.

    Args:
        exclude: full names of settings or sections that are left out.
        inputs: Files that no setting names; their content counts, their names do not.
    """
    left_out = set(exclude) | (set() if depends_on_steps(config) else {"run.steps"})
    values = _without(resolved_dump(config), left_out, prefix="")
    values["files"] = {file: digest_of(file) for file in input_files(config)}
    values["inputs"] = [digest_of(str(file)) for file in inputs]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def input_files(config: Config) -> list[str]:
    """Return the files of the user, named by settings, that decide what a run computes: code, texts and problems."""
    code = [file for file in (config.rewards.module, config.tools.module) if file]
    corpus = config.tools.search.corpus
    texts = (
        sorted(str(path) for path in Path(os.path.expanduser(corpus)).rglob("*") if path.is_file()) if corpus else []
    )
    return [*code, *texts] + [source for source in (config.data.train, config.data.eval) if Path(source).is_file()]


def depends_on_steps(config: Config) -> bool:
    """Whether another number of steps would change the steps before it, by way of a schedule."""
    optim = config.optim
    stretched = optim.schedule != "constant" or optim.warmup_frac > 0
    return stretched or config.grpo.epsilon_high_schedule.kind != "constant"


def changed_settings(old: dict[str, Any], new: dict[str, Any], *, prefix: str = "") -> list[str]:
    """Return the full names at which two resolved dumps differ, for the message of a refused resume."""
    names: list[str] = []
    for key in {**old, **new}:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            names += changed_settings(before, after, prefix=f"{prefix}{key}.")
        elif before != after:
            names.append(prefix + key)
    return names


def _without(values: dict[str, Any], left_out: Collection[str], *, prefix: str) -> dict[str, Any]:
    """Copy a nested table without the named settings."""
    return {
        key: _without(value, left_out, prefix=f"{prefix}{key}.") if isinstance(value, dict) else value
        for key, value in values.items()
        if prefix + key not in left_out
    }
