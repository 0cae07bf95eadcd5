"""Text from hostile code: bounded while it is read, and safe to show, store and tokenise.

Standard library only: the interpreters use it too.
"""

from __future__ import annotations

import codecs
import re

MAX_MARKER_CHARS = 40
"""The most that the marker of a cut text adds to it."""
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal or a bidirectional renderer acts on, and lone surrogates, which UTF-8 can't hold."""


def make_safe(text: str) -> str:
    """Turn carriage returns into newlines and show other control characters and lone surrogates as escapes."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def cut_middle(text: str, max_chars: int) -> str:
    """Return `text`, or its two ends with a marker between them that says how many characters are missing."""
    if len(text) <= max_chars:
        return text
    return _join(text, text[-_tail_chars(max_chars) :], max_chars, len(text))


def cut_bytes(text: str, max_bytes: int) -> str:
    """Return `text` cut in the middle so that it takes at most `max_bytes` (at least 64) in UTF-8."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= max_bytes:
        return data.decode("utf-8")
    half = (max_bytes - len("\n…\n".encode())) // 2
    return f"{data[:half].decode('utf-8', 'ignore')}\n…\n{data[-half:].decode('utf-8', 'ignore')}"


class BoundedText:
    """The two ends of a stream of UTF-8 bytes and the count of its characters; takes no more memory than that."""

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._decode = codecs.getincrementaldecoder("utf-8")("backslashreplace").decode
        self._head = ""
        self._tail = ""
        self._num_chars = 0

    def add(self, data: bytes, *, final: bool = False) -> None:
        """Take in more of the stream."""
        text = self._decode(data, final)
        self._num_chars += len(text)
        self._head += text[: self._max_chars - len(self._head)]
        self._tail = (self._tail + text[-self._max_chars :])[-self._max_chars :]

    @property
    def is_cut(self) -> bool:
        """Some of it is missing from `text`."""
        return self._num_chars > self._max_chars

    def text(self) -> str:
        """Return what was kept, safe to show."""
        if not self.is_cut:
            return make_safe(self._head)
        return make_safe(_join(self._head, self._tail, self._max_chars, self._num_chars))


def _tail_chars(max_chars: int) -> int:
    return (max_chars + 1) // 2


def _join(head: str, tail: str, max_chars: int, num_chars: int) -> str:
    missing = num_chars - max_chars
    return f"{head[: max_chars // 2]}\n… {missing} characters cut …\n{tail[-_tail_chars(max_chars) :]}"
