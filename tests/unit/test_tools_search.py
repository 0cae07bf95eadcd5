"""The search tool: what a folder of texts becomes, what is found in it, and what is refused."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from agentrl_cli.agent.tools import build_toolbox
from agentrl_cli.config.load import load_config
from agentrl_cli.config.schema import SandboxConfig, SearchConfig, ToolsConfig
from agentrl_cli.data.corpus import cache_folder, open_index, split_text, split_words
from agentrl_cli.errors import ConfigError, DataError
from agentrl_cli.sandbox.local import LocalSandbox
from agentrl_cli.types import ToolCall, ToolResult, ToolStatus

TEXTS = {
    "rivers.txt": "The Nile flows north.\n\nThe Danube flows east.",
    "notes/Hills.md": "# Hills\n\nA hill is lower than a mountain.",
    "facts.jsonl": '{"id": "f1", "title": "Gold", "text": "Gold melts at 1064 degrees."}\n\n'
    '{"text": "Silver melts at 962 degrees."}\n{"id": 7, "text": "The Nile is 6650 km long."}\n',
    "ignored.csv": "Nile",
    ".hidden/secret.txt": "Nile",
}


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a cache folder of its own, and the library that the extra brings."""
    pytest.importorskip("bm25s")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of a few texts."""
    folder = tmp_path / "corpus"
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def found(folder: Path, query: str, *, top_k: int = 9, max_chars: int = 1000) -> list[str]:
    """Return the ids of what a query finds."""
    return [passage.id for passage in open_index(str(folder), max_chars=max_chars).search(query, top_k)]


def ask(search: SearchConfig, *queries: str) -> list[ToolResult]:
    """Call the tool in one session."""

    async def play() -> list[ToolResult]:
        limits = SandboxConfig(pool_size=1)
        sandbox = LocalSandbox(limits)
        session = build_toolbox(ToolsConfig(names=["search"], search=search), sandbox, limits).open()
        results = [await session.call(ToolCall("1", "search", json.dumps({"query": query}))) for query in queries]
        await session.close()
        await sandbox.close()
        return results

    return asyncio.run(play())


def test_passages_come_with_id_and_title(corpus: Path) -> None:
    """The best first; files that are no texts and hidden ones are not searched."""
    results = ask(SearchConfig(corpus=str(corpus)), "How long is the NILE?", "gold", "zebra", "?!", "")
    assert {result.status for result in results} == {ToolStatus.OK}
    # "nile", "is" and "the" are in the row with id 7; "nile" and "the" in rivers.txt; "is" in notes/Hills.md
    assert results[0].content == (
        "[7]\nThe Nile is 6650 km long.\n\n"
        "[rivers.txt] rivers\nThe Nile flows north.\n\nThe Danube flows east.\n\n"
        "[notes/Hills.md] Hills\n# Hills\n\nA hill is lower than a mountain."
    )
    assert results[1].content == "[f1] Gold\nGold melts at 1064 degrees."
    assert [result.content for result in results[2:]] == ["nothing was found"] * 3


def test_rows_without_an_id_are_named_by_their_line(corpus: Path) -> None:
    """Blank lines count, as in an editor."""
    assert found(corpus, "silver") == ["facts.jsonl:3"]


def test_titles_are_searched_too(corpus: Path) -> None:
    """A file's title is its name."""
    assert found(corpus, "rivers") == ["rivers.txt"]


def test_top_k_bounds_the_answer(corpus: Path) -> None:
    """Equal passages come in the order of their files."""
    (corpus / "same").mkdir()
    for name in "cab":
        (corpus / "same" / f"{name}.txt").write_text("zebra")
    for top_k in (1, 2, 9):
        assert found(corpus, "zebra", top_k=top_k) == [f"same/{name}.txt" for name in "abc"][:top_k]


def test_long_texts_are_divided(tmp_path: Path) -> None:
    """A passage ends with a paragraph, else a line, a sentence or a word, in the second half of what it may hold."""
    assert split_text("", 100) == split_text(" \n ", 100) == []
    assert split_text("a" * 100, 100) == ["a" * 100]
    assert split_text("a" * 101, 100) == ["a" * 100, "a"]
    assert split_text("a" * 60 + "\n\n" + "b" * 60, 100) == ["a" * 60, "b" * 60]
    # the paragraph ends in the first half, so the sentence is taken
    text = "a" * 20 + "\n\n" + "b" * 40 + ". " + "c" * 60
    assert split_text(text, 100) == ["a" * 20 + "\n\n" + "b" * 40 + ".", "c" * 60]
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "long.txt").write_text("word " * 30 + "zebra")
    # 100 characters hold 20 of the words
    assert found(tmp_path / "corpus", "zebra", max_chars=100) == ["long.txt#2"]
    assert found(tmp_path / "corpus", "zebra", max_chars=200) == ["long.txt"]


def test_words_are_letters_and_digits_of_any_script() -> None:
    """Case does not count, one letter is a word too."""
    assert split_words("Straße, C 3.5 наука_x") == ["strasse", "c", "3", "5", "наука_x"]


def test_the_index_is_kept_until_a_text_changes(corpus: Path) -> None:
    """Equal content takes the kept one; other content, another name or another length makes a new one."""
    kept = cache_folder() / "search"

    def indexes() -> int:
        return len(list(kept.iterdir()))

    assert found(corpus, "gold") == found(corpus, "gold") == ["f1"]
    assert indexes() == 1
    (only,) = kept.iterdir()
    # the kept index is what answers: a passage that is changed in it is seen
    passages = only / "passages.jsonl"
    passages.write_text(passages.read_text().replace('"f1"', '"kept"'))
    assert found(corpus, "gold") == ["kept"]
    (corpus / "rivers.txt").write_text("The Rhine.")
    assert found(corpus, "rhine") == ["rivers.txt"]
    assert indexes() == 2
    (corpus / "rivers.txt").rename(corpus / "streams.txt")
    assert found(corpus, "rhine") == ["streams.txt"]
    assert found(corpus, "rhine", max_chars=500) == ["streams.txt"]
    assert indexes() == 4
    assert not [path for path in kept.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("damage", ["empty", "cut", "missing", "rows"])
def test_a_damaged_index_is_made_again(damage: str, corpus: Path) -> None:
    """Whatever is wrong with the kept files, the answer is right."""
    found(corpus, "gold")
    (folder,) = (cache_folder() / "search").iterdir()
    for file in folder.iterdir():
        if damage == "missing":
            file.unlink()
        elif damage != "rows":
            file.write_bytes(b"" if damage == "empty" else file.read_bytes()[:-5])
    if damage == "rows":
        passages = folder / "passages.jsonl"
        passages.write_text("".join(passages.read_text().splitlines(keepends=True)[1:]))
    assert found(corpus, "gold") == ["f1"]
    assert len((folder / "passages.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    "name", ["", "nowhere", "../nowhere", "a\0b", "~nobody/texts", "corpus/rivers.txt", "/dev/null"]
)
def test_a_corpus_that_is_no_folder_is_refused(
    name: str, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stands for the working directory, and a file is no folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is no folder") as caught:
        open_index(name, max_chars=1000)
    assert "give a folder" in caught.value.hint


def test_a_folder_may_be_named_from_here_and_from_home(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path, one with dots, one behind a link and one in the home folder are the same corpus."""
    monkeypatch.chdir(corpus.parent)
    monkeypatch.setenv("HOME", str(corpus.parent))
    (corpus.parent / "link").symlink_to(corpus)
    for name in ("corpus", "./corpus/../corpus/", "link", "~/corpus"):
        assert found(Path(name), "gold") == ["f1"]


def test_a_link_out_of_the_folder_is_refused(corpus: Path, tmp_path: Path) -> None:
    """It would show what nobody put there; a link to a text or folder inside, or in a circle, does no harm."""
    (corpus / "again.txt").symlink_to(corpus / "rivers.txt")
    (corpus / "loop.txt").symlink_to(corpus / "loop.txt")
    (corpus / "folder.txt").symlink_to(corpus / "notes")
    (corpus / "outside").symlink_to(tmp_path)
    assert found(corpus, "danube") == ["again.txt", "rivers.txt"]
    (tmp_path / "secret").write_text("key")
    (corpus / "secret.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(DataError, match=r"secret\.txt' leads out of the folder"):
        found(corpus, "key")


def test_a_pipe_is_left_alone(corpus: Path) -> None:
    """Reading it would wait for ever."""
    os.mkfifo(corpus / "pipe.txt")
    assert found(corpus, "gold") == ["f1"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2 of '.*bad.jsonl' is not JSON"),
        ('{"text": "cut o', "line 2 of '.*bad.jsonl' is not JSON"),
        ("[1]", "line 2 of '.*bad.jsonl' is list, not a JSON object"),
        ("[" * 100_000, "line 2 of '.*bad.jsonl' is not JSON"),
        ("{}", "line 2 of '.*bad.jsonl' has no text"),
        ('{"text": 5}', "line 2 of '.*bad.jsonl' has no text"),
        ('{"text": "x", "title": 5}', "line 2 of '.*bad.jsonl' has a title or an id that is no text"),
        ('{"text": "x", "id": [1]}', "line 2 of '.*bad.jsonl' has a title or an id that is no text"),
    ],
)
def test_broken_rows_are_named(row: str, message: str, corpus: Path) -> None:
    """With file, line and what a row looks like; a torn last line is broken too."""
    (corpus / "bad.jsonl").write_text(f'{{"text": "fine"}}\n{row}')
    with pytest.raises(DataError, match=message) as caught:
        found(corpus, "fine")
    assert caught.value.hint.startswith('rows are {"text"')


def test_texts_that_are_no_text_are_refused(corpus: Path) -> None:
    """A file in another encoding would be searched as something else."""
    (corpus / "latin.txt").write_bytes("Über".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.txt' is not UTF-8"):
        found(corpus, "gold")


@pytest.mark.parametrize(("name", "message"), [("a.csv", "holds no texts"), ("a.txt", "holds no words")])
def test_a_folder_with_nothing_to_find_is_refused(name: str, message: str, tmp_path: Path) -> None:
    """No file of ours, or only empty ones."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / name).write_text(" \n")
    with pytest.raises(ConfigError, match=message):
        found(tmp_path / "corpus", "x")


def test_control_characters_and_long_labels_are_harmless(tmp_path: Path) -> None:
    """What a terminal acts on is shown as an escape; a title has at most 200 characters; a byte order mark is none."""
    (tmp_path / "corpus").mkdir()
    row = {"text": "zebra \x1b[2J\0 \ud800", "title": "t" * 5000, "id": "i" * 5000}
    (tmp_path / "corpus" / "a.jsonl").write_text(json.dumps(row))
    (tmp_path / "corpus" / "b.txt").write_bytes(b"\xef\xbb\xbfhorse")
    zebra, horse = ask(SearchConfig(corpus=str(tmp_path / "corpus")), "zebra", "horse")
    assert zebra.content == f"[{'i' * 200}] {'t' * 200}\nzebra \\x1b[2J\\x00 \\ud800"
    assert horse.content == "[b.txt] b\nhorse"


def test_a_query_is_bounded(corpus: Path) -> None:
    """A megabyte is refused; strange characters find nothing."""
    results = ask(SearchConfig(corpus=str(corpus)), "gold " * 250_000, "\0\ud800\u0663", "gold " * 200)
    assert [result.status for result in results] == [ToolStatus.INVALID, ToolStatus.OK, ToolStatus.OK]
    assert results[1].content == "nothing was found"
    assert results[2].content.startswith("[f1] Gold")


def test_a_cache_that_can_not_be_written_is_said(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variable that moves it."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="the index can't be kept in") as caught:
        found(corpus, "gold")
    assert "XDG_CACHE_HOME" in caught.value.hint


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (['tools.names=["search"]'], "tools.search.corpus names no folder"),
        (["tools.search.corpus=x"], "names has no 'search'"),
        (['tools.names=["python", "python"]'], "a tool is named twice"),
        (['tools.names=["search"]', "tools.search.corpus=x", "tools.search.max_chars=99"], "max_chars"),
        (['tools.names=["serch"]'], "tools.names"),
    ],
)
def test_settings_that_do_not_fit_are_refused(texts: list[str], message: str) -> None:
    """A tool without its folder, a folder without its tool, a tool twice."""
    with pytest.raises(ConfigError, match=message):
        load_config("tiny", None, texts)
