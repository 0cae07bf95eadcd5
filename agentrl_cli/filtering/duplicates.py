"""Finds trajectories that say what an earlier one said: equal ones, and near ones by MinHash signatures.

A trajectory is compared by its problem and the arguments of its calls, cut into words and signs. Two are
near where the Jaccard similarity of their 5-grams, estimated from signatures of 128 hashes (standard
error at most 0.045), reaches the threshold; locality-sensitive hashing finds the candidates.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

from datasketch import MinHash, MinHashLSH

from agentrl_cli.filtering.samples import Call, Sample

_NUM_HASHES = 128
_NGRAM = 5
_MAX_MISSES = 0.01
"""Share of the pairs at the threshold that may be no candidates. False candidates are checked, misses are not."""
_WORD = re.compile(r"\w+|[^\w\s]")


class DuplicateFinder:
    """Remembers the samples that were kept; the first of its like stays."""

    def __init__(self, threshold: float) -> None:
        """Prepare for near-duplicates from `threshold` on; 1 finds only equal ones."""
        self._threshold = threshold
        self._exact: set[bytes] = set()
        self._signatures: list[MinHash] = []
        self._index = MinHashLSH(num_perm=_NUM_HASHES, params=bands(threshold)) if threshold < 1.0 else None

    def check(self, sample: Sample) -> str | None:
        """Return `duplicate` or `near_duplicate` if a kept sample is like this one, else remember it as kept."""
        words = words_of(sample)
        digest = hashlib.sha256("\x1f".join(words).encode("utf-8", "surrogatepass")).digest()
        if digest in self._exact:
            return "duplicate"
        if self._index is not None:
            signature = signature_of(words)
            if any(self._is_near(signature, name) for name in self._index.query(signature)):
                return "near_duplicate"
            self._index.insert(len(self._signatures), signature)
            self._signatures.append(signature)
        self._exact.add(digest)
        return None

    def _is_near(self, signature: MinHash, name: int) -> bool:
        return bool(signature.jaccard(self._signatures[name]) >= self._threshold)


def bands(threshold: float) -> tuple[int, int]:
    """Return number and size of the bands into which a signature is cut; a pair that agrees in one is a candidate.

    A pair of similarity s is missed with probability (1 - s^size)^number: the largest bands are taken
    that miss few enough at the threshold, since large ones bring few false candidates.
    """
    for size in range(_NUM_HASHES // 2, 1, -1):
        number = _NUM_HASHES // size
        if (1 - threshold**size) ** number <= _MAX_MISSES:
            return number, size
    return _NUM_HASHES, 1


def words_of(sample: Sample) -> list[str]:
    """Return the words and signs of problem and calls, without case."""
    return [word for text in _texts(sample) for word in _WORD.findall(text.casefold())]


def signature_of(words: list[str]) -> MinHash:
    """Return the MinHash signature of the 5-grams of a text; a shorter one is one gram."""
    grams = {"\x1f".join(words[i : i + _NGRAM]) for i in range(max(1, len(words) - _NGRAM + 1))}
    signature = MinHash(num_perm=_NUM_HASHES)
    signature.update_batch([gram.encode("utf-8", "surrogatepass") for gram in sorted(grams)])
    return signature


def _texts(sample: Sample) -> Iterator[str]:
    yield sample.problem.prompt
    for call in sample.calls:
        yield call.name
        yield from _argument_texts(call)


def _argument_texts(call: Call) -> Iterator[str]:
    """Yield the values of the arguments, so that code counts as code and not as JSON with escapes."""
    arguments = json.loads(call.arguments)
    for name in sorted(arguments):
        value = arguments[name]
        yield value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
