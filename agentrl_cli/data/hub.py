"""Fetches data sets from the Hugging Face hub, or takes them from its cache when the hub is out of reach."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_cli.data.catalog import DataSet
from agentrl_cli.data.readers import RawRow
from agentrl_cli.errors import DataError

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubRows:
    """The rows of a data set, and the commit that they are from (empty if it can't be told)."""

    rows: Iterator[RawRow]
    commit: str


def hub_rows(dataset: DataSet) -> HubRows:
    """Return the rows of a data set; `HF_HUB_OFFLINE=1` forbids the network, so that only the cache is used.

    Raises:
        DataError: it can't be had, or the cache holds another commit than the one asked for.
    """
    from datasets import load_dataset

    name = f"{dataset.repo} ({dataset.split})"
    try:
        table = load_dataset(
            dataset.repo, dataset.subset or None, split=dataset.split, revision=dataset.revision or None
        )
    except Exception as error:  # datasets and the hub client have dozens of their own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"can't load {dataset.name} from {name}: {reason}", hint=_by_hand(dataset)) from error
    commit = _commit(table)
    if _COMMIT.fullmatch(dataset.revision) and commit and commit != dataset.revision:
        # Out of reach of the hub, datasets takes the newest commit in its cache, whatever was asked for.
        raise DataError(
            f"the cache holds commit {commit} of {dataset.repo}, not {dataset.revision}", hint=_by_hand(dataset)
        )
    return HubRows((RawRow(f"{name}, row {i}", row) for i, row in enumerate(table, start=1)), commit)


def _commit(table: Any) -> str:
    """Return the commit that names the cache folder of a data set, if one does."""
    names = [Path(file["filename"]).parent.name for file in table.cache_files]
    return next((name for name in names if _COMMIT.fullmatch(name)), "")


def _by_hand(dataset: DataSet) -> str:
    from huggingface_hub import is_offline_mode

    off = "downloads are off (--offline or HF_HUB_OFFLINE), so nothing is fetched"
    state = off if is_offline_mode() else "with a connection, run this again"
    revision = f" --revision {dataset.revision}" if dataset.revision else ""
    command = f"hf download {dataset.repo} --repo-type dataset{revision} --local-dir {dataset.name}"
    return (
        f"{state}; to get it by hand, run on a machine with a connection: {command}; "
        f"then give the file of its {dataset.split} split with --data FILE"
    )
