"""How varied a set of trajectories is: Shannon entropy in bits over cells of domain, level and tool pattern.

Eight even cells are 3 bits; 2.5 bits and more are a varied set. This is a property of the data, not the
policy entropy in nats per token that training reports.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from agentrl_cli.filtering.samples import Sample

LOW_ENTROPY_BITS = 2.5
_MANY_CALLS = 4


def cell_of(sample: Sample) -> str:
    """Return the cell of a sample as DOMAIN/LEVEL/PATTERN, such as `fence/2/python x2 recovered`.

    The domain is the family, or the source where there is none. The pattern is the tools used, the
    number of calls (4 stands for more too), and whether a call after a failed one succeeded.
    """
    problem, calls = sample.problem, sample.calls
    tools = "+".join(sorted({call.name for call in calls}))
    pattern = f"{tools} x{min(len(calls), _MANY_CALLS)}" if calls else "no tools"
    first_failure = next((i for i, call in enumerate(calls) if call.is_failed), len(calls))
    if any(not call.is_failed for call in calls[first_failure:]):
        pattern += " recovered"
    return f"{problem.family or problem.source or 'unknown'}/{problem.level}/{pattern}"


def entropy_bits(counts: Iterable[int]) -> float:
    """Return the Shannon entropy of counts in bits; 0 where there are none."""
    kept = [count for count in counts if count > 0]
    total = sum(kept)
    return sum(count / total * math.log2(total / count) for count in kept)
