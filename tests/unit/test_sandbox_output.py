"""Bounded and safe text, and answers that an interpreter may have faked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_cli.sandbox.cell import read_answer
from agentrl_cli.sandbox.output import BoundedText, cut_bytes, cut_middle, make_safe


@given(st.lists(st.binary(max_size=12), max_size=12), st.integers(min_value=1, max_value=20))
def test_bounded_text_equals_cutting_the_whole(chunks: list[bytes], max_chars: int) -> None:
    """However the bytes arrive, the text is that of the whole stream, cut in the middle."""
    stream = BoundedText(max_chars)
    for chunk in chunks:
        stream.add(chunk)
    stream.add(b"", final=True)
    whole = b"".join(chunks).decode("utf-8", "backslashreplace")
    assert stream.text() == make_safe(cut_middle(whole, max_chars))
    assert stream.is_cut == (len(whole) > max_chars)


def test_bounded_text_takes_bounded_memory() -> None:
    """100 MB of stream leave two ends of 10 characters."""
    stream = BoundedText(10)
    for _ in range(100):
        stream.add(b"x" * 1_000_000)
    assert len(stream._head) + len(stream._tail) == 20
    assert stream.text() == "xxxxx\n… 99999990 characters cut …\nxxxxx"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])), st.integers(min_value=64, max_value=200))
def test_cut_bytes_holds_its_bound(text: str, max_bytes: int) -> None:
    """The result fits, and what fits is left alone."""
    cut = cut_bytes(text, max_bytes)
    assert len(cut.encode()) <= max_bytes
    assert cut == text or len(text.encode()) > max_bytes


@given(st.text(alphabet=st.characters()))
def test_safe_text_can_be_stored(text: str) -> None:
    """Whatever the text held, it is valid UTF-8 afterwards and has no control characters."""
    safe = make_safe(text)
    safe.encode("utf-8")
    assert not any((ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 for c in safe)


GOOD: dict[str, Any] = {
    "kind": "ok",
    "value": "1",
    "is_cut": False,
    "exception": "",
    "is_spent": False,
    "cpu_s": 0.1,
    "peak_mib": 60.0,
}


def test_sound_answer_is_read() -> None:
    """An answer with all its fields is taken over."""
    answer = read_answer(json.dumps(GOOD).encode(), 10)
    assert answer is not None
    assert (answer.value, answer.cpu_s, answer.peak_mib) == ("1", 0.1, 60.0)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "sandbox_error"},
        {"value": 1},
        {"value": "x" * 51},
        {"is_cut": 0},
        {"cpu_s": True},
        {"cpu_s": float("nan")},
        {"peak_mib": float("inf")},
        {"peak_mib": 10**400},
        {"extra": 1},
    ],
)
def test_unsound_fields_are_no_answer(change: dict[str, Any]) -> None:
    """A wrong type, an unknown kind or field, a number that is none: all of it is refused."""
    assert read_answer(json.dumps(GOOD | change).encode(), 10) is None


@pytest.mark.parametrize("frame", [b"", b"garbage", b"\xff", b"[]", b"[" * 100_000, b"null", b'{"kind": "ok"}'])
def test_garbage_is_no_answer(frame: bytes) -> None:
    """What is not an answer at all is refused without an exception."""
    assert read_answer(frame, 10) is None
