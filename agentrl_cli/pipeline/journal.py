"""What a pipeline was asked for and which of its stages are finished, in FOLDER/pipeline.json.

One process works in a folder at a time. A stage that was cut off is not in the file, and goes on; what it
has made is guarded by itself. Settings may change as long as no finished stage has read them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl_cli import __version__
from agentrl_cli.config.digest import MAY_CHANGE, changed_settings
from agentrl_cli.config.load import resolved_dump
from agentrl_cli.errors import RunError
from agentrl_cli.files import clean_leftovers, try_lock, write_atomic
from agentrl_cli.pipeline.names import Stage
from agentrl_cli.pipeline.stages import Order
from agentrl_cli.runs import encode_metric
from agentrl_cli.runs_index.facts import read_json

SCHEMA = 1
_FILE = "pipeline.json"
_LOCK = ".pipeline-lock"
_MAY_CHANGE = (MAY_CHANGE - {"collect", "filter"}) | {"collect.concurrency"}
"""Settings that change nothing about what any stage writes."""
_FIRST_READER = {
    "filter": Stage.FILTER,
    "sft": Stage.SFT,
    "model.path": Stage.SFT,
    "model.lora": Stage.SFT,
    "model.gradient_checkpointing": Stage.SFT,
    "grpo.overlong": Stage.COLLECT,
    "grpo": Stage.RL,
    "optim": Stage.RL,
    "eval": Stage.RL,
    "run.steps": Stage.RL,
    "data.eval": Stage.RL,
    "data.max_prompt_length": Stage.RL,
    "--benchmark": Stage.EVAL,
}
"""The first stage that a setting or section matters to, the narrower name first; all others matter to collect."""


class Journal:
    """The finished stages of one folder with their results."""

    def __init__(self, folder: Path, order: Order) -> None:
        """Read what is there, or begin with nothing; writes nothing.

        Raises:
            RunError: the folder is in use for something else, or its pipeline was asked for something else.
        """
        self._file = folder / _FILE
        self._asked = _asked(order)
        self._results: dict[str, Any] = {}
        if self._file.exists():
            self._read(folder)
        elif folder.exists() and (not folder.is_dir() or any(_foreign(folder))):
            raise RunError(
                f"{str(folder)!r} exists, is not empty, and holds no pipeline",
                hint="give another --out; a folder that is not there is made",
            )

    def result(self, stage: Stage) -> dict[str, Any] | None:
        """Return what a finished stage came to, or None if it is not finished."""
        result: dict[str, Any] | None = self._results.get(stage)
        return result

    def record(self, stage: Stage, result: Mapping[str, Any]) -> dict[str, Any]:
        """Note on disk that a stage is finished, and return its result as JSON can hold it."""
        kept = {name: encode_metric(value) if isinstance(value, float) else value for name, value in result.items()}
        self._results[stage] = kept
        self.write()
        return kept

    def write(self) -> None:
        """Write the file."""
        content = {"schema": SCHEMA, "agentrl": __version__, "asked": self._asked, "stages": self._results}
        write_atomic(self._file, json.dumps(content, allow_nan=False, indent=1) + "\n")

    def _read(self, folder: Path) -> None:
        content = read_json(self._file, needs=("schema", "agentrl", "asked", "stages"))
        if content["schema"] != SCHEMA:
            raise RunError(
                f"{str(self._file)!r} was written by agentrl {content['agentrl']} (schema {content['schema']!r}, "
                f"this one reads {SCHEMA})",
                hint="use that version for it, or give another --out",
            )
        self._results = content["stages"]
        changed = [name for name in _changes(content["asked"], self._asked) if _first_reader(name) in self._results]
        if changed:
            raise RunError(
                f"stages of the pipeline in {str(folder)!r} are finished, and since then changed: {', '.join(changed)}",
                hint="leave that as it was, or give another --out",
            )
        files = {**content["asked"]["files_sha256"], **self._asked["files_sha256"]}
        self._asked = {**self._asked, "files_sha256": files}


@contextmanager
def open_journal(folder: Path, order: Order) -> Iterator[Journal]:
    """Take a folder for a pipeline, and let go of it at the end; a process that was killed has let go.

    Raises:
        RunError: as `Journal`, or another process has it.
    """
    Journal(folder, order)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise RunError(f"can't make the pipeline {str(folder)!r}: {error.strerror}") from error
    try:
        if not try_lock(descriptor):
            raise RunError(
                f"another process runs the pipeline in {str(folder)!r}", hint="wait for it, or give another --out"
            )
        clean_leftovers(folder)
        journal = Journal(folder, order)
        journal.write()
        yield journal
    finally:
        os.close(descriptor)


def _asked(order: Order) -> dict[str, Any]:
    """Return everything that the stages depend on, by the names that the user knows."""
    config = order.config
    files = {
        "--problems": order.problems,
        "--benchmark": order.benchmark,
        "data.train": config.data.train,
        "data.eval": config.data.eval,
        "rewards.module": config.rewards.module,
        "tools.module": config.tools.module,
    }
    options = {"--teacher": order.teacher, "--problems": order.problems, "--benchmark": order.benchmark}
    return {
        "settings": {**resolved_dump(config), **options},
        "files_sha256": {name: _digest(Path(file)) for name, file in files.items() if file and Path(file).is_file()},
    }


def _changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the names of what differs, in itself or in its file; a file that is gone or new does not count."""
    names = [name for name in changed_settings(then["settings"], now["settings"]) if name not in _MAY_CHANGE]
    before = then["files_sha256"]
    files = [name for name, digest in now["files_sha256"].items() if before.get(name, digest) != digest]
    return names + [f"{name} (content of the file)" for name in files if name not in names]


def _first_reader(change: str) -> Stage:
    """Return the first stage that a change matters to; its text begins with the name of a setting or option."""
    name = change.partition(" ")[0]
    return next((stage for key, stage in _FIRST_READER.items() if f"{name}.".startswith(f"{key}.")), Stage.COLLECT)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _foreign(folder: Path) -> Iterator[Path]:
    """Yield what is in a folder beside what a pipeline that was killed at its first moment leaves."""
    return (entry for entry in folder.iterdir() if not entry.name.startswith((_LOCK, f".{_FILE}")))
