"""Files that survive kills: what a reader sees after a writer died at any point."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_cli.errors import DataError
from agentrl_cli.files import (
    RowReader,
    RowWriter,
    atomic_dir,
    atomic_file,
    clean_leftovers,
    encode_row,
    read_rows,
    remove_dir,
    write_atomic,
    write_rows,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
HALF_PAIRS = st.text(st.sampled_from("a\ud800\u2028\x00"))


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_write_atomic_replaces_the_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    """Text and bytes are written, folders are made, and no temporary file stays."""
    file = tmp_path / "a" / "x.json"
    write_atomic(file, "é")
    assert file.read_bytes() == b"\xc3\xa9"
    write_atomic(file, b"\x00")
    assert file.read_bytes() == b"\x00"
    assert names(file.parent) == ["x.json"]


def test_a_failed_write_keeps_the_old_content(tmp_path: Path) -> None:
    """An error while writing leaves the file as it was."""
    file = tmp_path / "x"
    write_atomic(file, "old")
    with pytest.raises(ZeroDivisionError), atomic_file(file) as handle:
        handle.writelines(b"%d" % (1 // left) for left in (1, 0))
    assert file.read_text() == "old"
    assert names(tmp_path) == ["x"]


def test_files_get_the_permissions_of_ordinary_files(tmp_path: Path) -> None:
    """Others may read what the umask lets them read, unlike temporary files."""
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "x", "")
        with atomic_dir(tmp_path / "d"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640  # 666 less 027
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o750  # 777 less 027


def test_atomic_dir_is_all_or_nothing(tmp_path: Path) -> None:
    """A folder gets its name when it is complete, replaces an old one, and vanishes if filling it fails."""
    folder = tmp_path / "step-000001"
    with atomic_dir(folder) as partial:
        (partial / "sub").mkdir()
        (partial / "sub" / "a").write_text("1")
        assert not folder.exists()
    with pytest.raises(FileExistsError), atomic_dir(folder) as partial:
        [(partial / "b").mkdir() for _ in range(2)]
    assert (folder / "sub" / "a").read_text() == "1"
    with atomic_dir(folder) as partial:
        (partial / "c").write_text("3")
    assert names(folder) == ["c"]
    assert names(tmp_path) == ["step-000001"]


KILLED = """
import os, signal, sys
from pathlib import Path
from agentrl_cli.files import atomic_dir, atomic_file
with atomic_dir(Path(sys.argv[1]) / "step-000001") as folder, atomic_file(Path(sys.argv[1]) / "x[1]") as file:
    (folder / "a").write_text("half")
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_leftovers_of_a_kill_have_no_name_and_are_cleaned(tmp_path: Path) -> None:
    """A writer killed half-way leaves neither file nor folder of the name, and cleaning takes the rest away."""
    write_atomic(tmp_path / "x[1]", "old")
    write_atomic(tmp_path / ".hidden", "")
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "x[1]").read_text() == "old"
    assert not (tmp_path / "step-000001").exists()
    assert len(names(tmp_path)) == 4  # the file, the hidden one, two leftovers
    clean_leftovers(tmp_path, of="x[1]")
    assert len(names(tmp_path)) == 3
    clean_leftovers(tmp_path)
    assert names(tmp_path) == [".hidden", "x[1]"]


def test_remove_dir_takes_all_of_a_folder(tmp_path: Path) -> None:
    """Nothing stays of the folder; one that is not there is no error."""
    (tmp_path / "d" / "e").mkdir(parents=True)
    remove_dir(tmp_path / "d")
    remove_dir(tmp_path / "d")
    assert names(tmp_path) == []


@settings(deadline=None, max_examples=50)
@given(rows=st.lists(st.dictionaries(st.text() | HALF_PAIRS, JSON | HALF_PAIRS, max_size=4), max_size=5))
def test_rows_come_back_as_they_were_written(tmp_path_factory: pytest.TempPathFactory, rows: list[dict]) -> None:
    """Any JSON row survives a file, half surrogate pairs and line separators included, one line each."""
    file = tmp_path_factory.mktemp("rows") / "x.jsonl"
    with RowWriter(file) as writer:
        for row in rows:
            writer.write(row)
    assert read_rows(file) == (rows, False)
    assert file.read_bytes().count(b"\n") == len(rows)
    write_rows(file, rows)
    assert read_rows(file) == (rows, False)


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_torn_last_line_is_left_out_and_then_cut_off(tmp_path: Path, cut: int) -> None:
    """Wherever the last row is torn, readers go without it and the next writer begins a line of its own."""
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'{"a":1}\n' + b'{"b":2}'[:cut])
    is_whole = cut == 7
    expected = [{"a": 1}, {"b": 2}] if is_whole else [{"a": 1}]
    assert read_rows(file) == (expected, not is_whole)
    with RowWriter(file) as writer:
        writer.write({"c": 3})
    assert read_rows(file) == ([*expected, {"c": 3}], False)


def test_a_long_torn_line_is_cut_off(tmp_path: Path) -> None:
    """The cut finds the last newline however far back it is, also where the only line is torn."""
    file = tmp_path / "x.jsonl"
    for whole in (b'{"a":1}\n', b""):
        file.write_bytes(whole + b'{"b":"' + b"x" * 200_000)
        with RowWriter(file) as writer:
            writer.write({"c": 3})
        assert read_rows(file)[0] == [*([{"a": 1}] if whole else []), {"c": 3}]


@pytest.mark.parametrize("middle", [b"{", b"[1]", b"\xff", b"[" * 200_000])
def test_a_broken_line_elsewhere_is_an_error_with_its_number(tmp_path: Path, middle: bytes) -> None:
    """Only the last line can be torn; any other is named. Blank lines are skipped but counted."""
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'{"a":1}\n\n' + middle + b'\n{"b":2}\n')
    with pytest.raises(DataError, match=r"line 3 of .*x\.jsonl"):
        read_rows(file)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """The message names the file and the reason."""
    with pytest.raises(DataError, match=r"no\.jsonl' can't be read: No such file"):
        read_rows(tmp_path / "no.jsonl")


def test_lines_know_their_place(tmp_path: Path) -> None:
    """Number, byte offset and raw bytes of a line let its row be copied unchanged."""
    file = tmp_path / "x.jsonl"
    file.write_bytes(b'{"a": 1}\n\n{"b":2}\r\n{"c"')
    reader = RowReader(file)
    lines = list(reader)
    # the first line has 9 bytes, the blank one 1
    assert [(line.number, line.offset, line.raw) for line in lines] == [(1, 0, b'{"a": 1}'), (3, 10, b'{"b":2}')]
    assert reader.torn


def test_rows_refuse_numbers_that_json_lacks() -> None:
    """NaN is an error at the writer, not at some later reader."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_row({"a": float("nan")})


WRITER = """
import sys, time
from pathlib import Path
from agentrl_cli.files import RowWriter
writer = RowWriter(Path(sys.argv[1]), exclusive=True)
print("open", flush=True)
time.sleep(60)
"""


def test_an_exclusive_file_has_one_writer_and_a_kill_frees_it(tmp_path: Path) -> None:
    """A second process is refused while the first lives, and let in once it was killed."""
    file = tmp_path / "x.jsonl"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(file)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(DataError, match="another process writes"):
            RowWriter(file, exclusive=True)
        other.kill()
    with RowWriter(file, exclusive=True) as writer:
        writer.write({"a": 1})
    assert json.loads(file.read_text()) == {"a": 1}
