"""The public data sets that have a name here: where they are, how answers compare, and what they must hold.

Benchmarks are pinned by content: the number of problems and a digest over texts and golds, taken from copies
that are in wide use. Sets without a digest are not pinned; name a commit for them (`NAME@COMMIT`).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentrl_cli.data.layouts import infer_kind
from agentrl_cli.errors import DataError
from agentrl_cli.types import AnswerKind, Problem

HUB = "hub:"
_REFERENCE = re.compile(r"(?P<name>[^@:]+)(@(?P<revision>[^@:]+))?(:(?P<split>.+))?")


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set on the Hugging Face hub."""

    name: str
    """What people type, and the source of its problems."""
    repo: str
    """ORG/NAME."""
    split: str
    subset: str = ""
    """Configuration of the data set; empty takes its only one."""
    revision: str = ""
    """Commit, tag or branch; empty takes the default branch."""
    kind: AnswerKind | None = None
    """Kind of all its answers; None reads or infers it row by row."""
    num_problems: int = 0
    """How many there must be; 0 if not pinned."""
    digest: str = ""
    """`content_digest` that its problems must have; empty if not pinned."""


_BENCHMARKS = (
    DataSet(
        "aime2024",
        "HuggingFaceH4/aime_2024",
        "train",
        kind=AnswerKind.INTEGER,
        num_problems=30,
        digest="714565810a95b18bf697e4dee4ed6198735d7431784404fb4b648d74cd719db3",
    ),
    DataSet(
        "aime2025",
        "math-ai/aime25",
        "test",
        kind=AnswerKind.INTEGER,
        num_problems=30,
        digest="dc844b5aa8fe5f8d07c001af5646fcd64cd29e03cc41ae8018cfd48ad327911c",
    ),
    DataSet(
        "math500",
        "HuggingFaceH4/MATH-500",
        "test",
        kind=AnswerKind.MATH,
        num_problems=500,
        digest="b7ae8c0d85309c603d2c5156547fc72bc0cd92688f451fa89bd9baa1a61b4ef3",
    ),
    DataSet(
        "gsm8k",
        "openai/gsm8k",
        "test",
        subset="main",
        kind=AnswerKind.DECIMAL,
        num_problems=1319,
        digest="46194e9be395a1c7dcfca76bba00ea9424c1fd55138613684efb5ec7698590be",
    ),
)
_TRAINING_SETS = (
    DataSet("dapo-math-17k", "BytedTsinghua-SIA/DAPO-Math-17k", "train"),
    DataSet("open-agentrl-30k", "Gen-Verse/Open-AgentRL-30K", "train"),
    DataSet("skywork-or1-math", "Skywork/Skywork-OR1-RL-Data", "math"),
)

BENCHMARKS: Mapping[str, DataSet] = {dataset.name: dataset for dataset in _BENCHMARKS}
CATALOG: Mapping[str, DataSet] = {dataset.name: dataset for dataset in (*_BENCHMARKS, *_TRAINING_SETS)}


def find_dataset(source: str) -> DataSet | None:
    """Return the data set that a source names, or None if it names none.

    Args:
        source: `NAME[@REVISION][:SPLIT]` with a name of the catalog, or `hub:ORG/NAME[/SUBSET][@REVISION][:SPLIT]`.

    Raises:
        DataError: it begins with `hub:` but is not written so.
    """
    match = _REFERENCE.fullmatch(source.removeprefix(HUB))
    if source.startswith(HUB):
        parts = match["name"].split("/") if match else []
        if match is None or len(parts) not in (2, 3) or not all(parts):
            raise DataError(
                f"can't read the source {source!r}", hint=f"write {HUB}ORG/NAME[/SUBSET][@REVISION][:SPLIT]"
            )
        return DataSet(
            name=parts[1],
            repo="/".join(parts[:2]),
            subset="/".join(parts[2:]),
            revision=match["revision"] or "",
            split=match["split"] or "train",
        )
    known = CATALOG.get(match["name"]) if match else None
    if match is None or known is None:
        return None
    known = replace(known, revision=match["revision"] or known.revision)
    if match["split"] in (None, known.split):
        return known
    return replace(known, split=match["split"], num_problems=0, digest="")


def nearest_name(name: str) -> str:
    """Return the name in the catalog that was probably meant, or an empty string."""
    return next(iter(difflib.get_close_matches(name.lower(), CATALOG, n=1, cutoff=0.5)), "")


def content_digest(problems: Sequence[Problem]) -> str:
    """Return the SHA-256 over the texts and golds of problems, in hex; order, ids and spacing don't matter.

    Nor does how an integer is written: 025 is 25 and 1,200 is 1200.
    """
    pairs = sorted([" ".join(problem.prompt.split()), _plain_gold(problem.answer)] for problem in problems)
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def difference(dataset: DataSet, problems: Sequence[Problem]) -> str:
    """Return what is not as it must be about the problems of a pinned set, or an empty string."""
    if not dataset.digest:
        return ""
    if len(problems) != dataset.num_problems:
        found = f"{len(problems)} problems in place of {dataset.num_problems}"
        return f"{dataset.name}: {found}: this is not the set that published figures are about"
    if content_digest(problems) != dataset.digest:
        found = "another wording or other answers than in the copy that is pinned"
        return f"{dataset.name}: {found}: this may not be the set that published figures are about"
    return ""


def _plain_gold(gold: str) -> str:
    text = " ".join(gold.split())
    return str(int(text.replace(",", ""))) if infer_kind(text) is AnswerKind.INTEGER else text
