"""A folder of texts as passages that can be searched by their words (BM25).

Texts are `.txt` and `.md` files, and `.jsonl` files with a row `{"text": …, "title"?: …, "id"?: …}` a text. The index
is kept in the user's cache folder under a digest of what it was made of, so it is never stale.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from agentrl_cli.errors import ConfigError, DataError
from agentrl_cli.files import RowReader, atomic_dir, write_rows

SETTING = "tools.search.corpus"
_SUFFIXES = (".txt", ".md", ".jsonl")
_ROW_HINT = 'rows are {"text": "…", "title"?: "…", "id"?: "…"}'
_BREAKS = ("\n\n", "\n", ". ", " ")
"""Where a text is best divided."""
_LABEL_CHARS = 200
"""Longest id and title that are shown."""
_FORMAT = 1
"""Of the cached index; part of its digest."""
_PASSAGES = "passages.jsonl"
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Passage:
    """Part of a text, short enough to show."""

    id: str
    """The row's id, or the file's path in the folder, with #2 and so on for the later parts of a long text."""
    title: str
    text: str


class SearchIndex:
    """Passages by their words."""

    def __init__(self, passages: Sequence[Passage], ranker: Any) -> None:
        """Take passages and the bm25s ranker that was made of them."""
        self._passages = passages
        self._ranker = ranker

    def __len__(self) -> int:
        return len(self._passages)

    def save(self, folder: Path) -> None:
        """Write passages and ranker into a folder."""
        self._ranker.save(folder, show_progress=False)
        write_rows(folder / _PASSAGES, (asdict(passage) for passage in self._passages))

    def search(self, query: str, top_k: int) -> list[Passage]:
        """Return the passages that share words with the query, the best first; equal ones in the corpus's order."""
        known = [word for word in split_words(query) if word in self._ranker.vocab_dict]
        if not known:
            return []
        scores = self._ranker.get_scores(known)
        best = np.argsort(-scores, kind="stable")[:top_k]
        return [self._passages[number] for number in best if scores[number] > 0]


def open_index(corpus: str, *, max_chars: int) -> SearchIndex:
    """Return the index of a folder, from the cache if it was made before.

    Args:
        corpus: The folder.
        max_chars: Longest passage.

    Raises:
        ConfigError: there is no such folder, it holds no texts, the library is missing, or the cache can't be written.
        DataError: a file can't be read.
    """
    _require_library()
    folder = corpus_folder(corpus)
    files = list(_text_files(folder))
    if not files:
        raise ConfigError(f"{SETTING}={corpus!r} holds no texts", hint=f"put {', '.join(_SUFFIXES)} files there")
    made_of = f"{_FORMAT} {max_chars} {importlib.metadata.version('bm25s')} {_digest(folder, files)}"
    cached = cache_folder() / "search" / hashlib.sha256(made_of.encode()).hexdigest()
    index = _load(cached)
    if index is None:
        index = _build(folder, files, max_chars)
        _store(index, cached)
    return index


def corpus_folder(corpus: str) -> Path:
    """Return the folder that the setting names.

    Raises:
        ConfigError: it is none.
    """
    folder = Path(os.path.expanduser(corpus))
    if not corpus or not folder.is_dir():
        raise ConfigError(f"{SETTING}={corpus!r} is no folder", hint=f"give a folder of {', '.join(_SUFFIXES)} files")
    return folder.resolve()


def corpus_digest(corpus: str) -> str:
    """Return the SHA-256 of all texts of a folder, with their names, in hex."""
    folder = corpus_folder(corpus)
    return _digest(folder, list(_text_files(folder)))


def cache_folder() -> Path:
    """Return where the user's cache is: $XDG_CACHE_HOME/agentrl, by default ~/.cache/agentrl."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base or os.path.expanduser("~/.cache")) / "agentrl"


def split_words(text: str) -> list[str]:
    """Return the words of a text as they are indexed: letters and digits, without regard to case."""
    return _WORD.findall(text.casefold())


def split_text(text: str, max_chars: int) -> list[str]:
    """Divide a text into parts of at most `max_chars` characters, none of them empty.

    A part ends with a paragraph, else a line, a sentence or a word, if one ends in its second half.
    """
    text = text.strip()
    parts, start = [], 0
    while start < len(text):
        end = start + max_chars
        if end < len(text):
            places = (text.rfind(mark, start + max_chars // 2, end) for mark in _BREAKS)
            end = next((place + 1 for place in places if place >= 0), end)
        parts.append(text[start:end].strip())
        start = end
    return [part for part in parts if part]


def _require_library() -> None:
    try:
        importlib.metadata.version("bm25s")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            "the tool search needs the package bm25s, which is not installed", hint="pip install 'agentrl[search]'"
        ) from error


def _text_files(folder: Path) -> Iterator[Path]:
    """Yield the texts of a folder and the folders in it, in order; hidden ones are left out.

    Raises:
        DataError: a link leads out of the folder, so the model could read what nobody put there.
    """
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix.lower() not in _SUFFIXES or any(part.startswith(".") for part in inside.parts):
            continue
        if not Path(os.path.realpath(path)).is_relative_to(folder):
            raise DataError(f"{str(path)!r} leads out of the folder", hint=f"copy the file into {SETTING}")
        if path.is_file():
            yield path


def _digest(folder: Path, files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        with _readable(path), path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(f"{content} {path.relative_to(folder)}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _build(folder: Path, files: Sequence[Path], max_chars: int) -> SearchIndex:
    texts = [text for path in files for text in _texts(path, str(path.relative_to(folder)))]
    passages = [passage for text in texts for passage in _divide(text, max_chars)]
    words = [split_words(f"{passage.title} {passage.text}") for passage in passages]
    if not any(words):
        raise ConfigError(f"{SETTING}={str(folder)!r} holds no words", hint="its files are empty")
    ranker = _library().BM25(backend="numpy", csc_backend="numpy")
    ranker.index(words, show_progress=False)
    return SearchIndex(passages, ranker)


def _texts(path: Path, name: str) -> Iterator[Passage]:
    """Yield the texts of a file, whole.

    Args:
        name: Path in the folder.
    """
    if path.suffix.lower() != ".jsonl":
        yield Passage(name, Path(name).stem, _read_text(path))
        return
    for line in RowReader(path, on_bad=_refuse_line):
        yield _row_text(line.row, f"line {line.number} of {str(path)!r}", f"{name}:{line.number}")


def _refuse_line(error: DataError) -> NoReturn:
    raise DataError(error.message, hint=_ROW_HINT) from error


def _row_text(row: dict[str, Any], place: str, name: str) -> Passage:
    text, title, identity = row.get("text"), row.get("title", ""), row.get("id", name)
    if not isinstance(text, str):
        raise DataError(f"{place} has no text", hint=_ROW_HINT)
    if not isinstance(title, str) or not isinstance(identity, str | int):
        raise DataError(f"{place} has a title or an id that is no text", hint=_ROW_HINT)
    return Passage(str(identity)[:_LABEL_CHARS], title[:_LABEL_CHARS], text)


def _divide(text: Passage, max_chars: int) -> Iterator[Passage]:
    for number, part in enumerate(split_text(text.text, max_chars), start=1):
        yield Passage(text.id if number == 1 else f"{text.id}#{number}", text.title, part)


def _read_text(path: Path) -> str:
    try:
        with _readable(path):
            return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{str(path)!r} is not UTF-8: {error.reason}", hint="convert it, or move it away") from error


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Within this block, name the file that can't be read."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{str(path)!r} can't be read: {error.strerror}") from error


def _load(folder: Path) -> SearchIndex | None:
    """Return a cached index, or None if there is none or it is damaged."""
    if not folder.is_dir():
        return None
    try:
        passages = [Passage(**json.loads(line)) for line in (folder / _PASSAGES).read_bytes().split(b"\n")[:-1]]
        ranker = _library().BM25.load(folder, show_progress=False)
    except Exception:  # whatever the library makes of a damaged file: the index is made again
        return None
    return SearchIndex(passages, ranker) if ranker.scores["num_docs"] == len(passages) else None


def _store(index: SearchIndex, folder: Path) -> None:
    try:
        with atomic_dir(folder) as partial:
            index.save(partial)
    except OSError as error:
        if folder.is_dir():
            return  # another process was first
        hint = "set XDG_CACHE_HOME to a folder that can be written"
        raise ConfigError(f"the index can't be kept in {str(folder)!r}: {error.strerror}", hint=hint) from error


def _library() -> Any:
    import bm25s

    return bm25s
