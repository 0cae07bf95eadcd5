"""Names of the chain that its command line needs before anything else is loaded."""

from __future__ import annotations

from enum import StrEnum

DEFAULT_TEACHER = "scripted"
DEFAULT_BENCHMARK = "generated"


class Stage(StrEnum):
    """The stages, in their order."""

    COLLECT = "collect"
    FILTER = "filter"
    SFT = "sft"
    RL = "rl"
    EVAL = "eval"
    DIAGNOSE = "diagnose"
