"""Data sets by name: what a source means, pinned content, and the cache of the hub without a network."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl_cli.config.schema import ColumnsConfig
from agentrl_cli.data.catalog import CATALOG, content_digest, difference, find_dataset
from agentrl_cli.data.sources import Reading, read_file, read_source
from agentrl_cli.errors import DataError
from agentrl_cli.types import Problem

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "f" * 40


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let datasets look for what it fetched earlier in an empty folder, without a network."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return tmp_path


def cache(folder: Path, repo: str, *, subset: str, split: str, rows: list[dict[str, str]]) -> None:
    """Lay rows down where datasets keeps a data set that it has fetched at COMMIT."""
    import datasets

    org, _, name = repo.partition("/")
    home = folder / f"{org}___{name}" / subset / "0.0.0" / COMMIT
    table = datasets.Dataset.from_list(rows)
    home.mkdir(parents=True)
    with datasets.arrow_writer.ArrowWriter(path=str(home / f"{name}-{split}.arrow")) as writer:
        writer.write_table(table.data.table)
        writer.finalize()
    splits = {split: {"name": split, "num_examples": len(rows), "num_bytes": 1, "dataset_name": name}}
    info = {"config_name": subset, "dataset_name": name, "splits": splits, "features": table.features.to_dict()}
    (home / "dataset_info.json").write_text(json.dumps(info), encoding="utf-8")


def test_sources_that_name_data_sets() -> None:
    """Names may carry a revision and a split; another split of a pinned set is not held to the pin."""
    gsm8k = CATALOG["gsm8k"]
    assert find_dataset("gsm8k") == gsm8k
    assert find_dataset("gsm8k@abc") == replace(gsm8k, revision="abc")
    assert find_dataset("gsm8k@abc:train") == replace(gsm8k, revision="abc", split="train", num_problems=0, digest="")
    hub = find_dataset("hub:org/name/part@v1.0:train[:10]")
    assert hub is not None
    assert (hub.repo, hub.subset, hub.revision, hub.split) == ("org/name", "part", "v1.0", "train[:10]")
    hub = find_dataset("hub:org/name")
    assert hub is not None
    assert (hub.name, hub.repo, hub.subset, hub.revision, hub.split) == ("name", "org/name", "", "", "train")
    assert [find_dataset(text) for text in ("gsm8k.jsonl", "./gsm8k", "data/gsm8k", "")] == [None] * 4


@pytest.mark.parametrize("source", ["hub:", "hub:name", "hub:/name", "hub:a/b/c/d", "hub:a/b@", "hub:a/b:"])
def test_a_misspelt_hub_source_is_an_error(source: str) -> None:
    """The message shows how such a source is written."""
    with pytest.raises(DataError, match="can't read the source") as error:
        find_dataset(source)
    assert "hub:ORG/NAME" in error.value.hint


def test_digest_sees_content_alone() -> None:
    """Order, ids, spacing and the writing of integers don't matter; words and values do."""
    raw = [Problem("1", "One\n two", "025"), Problem("2", "Three", "1,200")]
    clean = [Problem("x", "Three ", "1200"), Problem("y", "One two", "25")]
    assert content_digest(raw) == content_digest(clean)
    # SHA-256 of the text [["One two", "25"], ["Three", "1200"]], taken with sha256sum
    assert content_digest(raw) == "6913f4320be16356ba5ab6c1c142fc38a4f02b14b4fd996d3f428906e1ed18a4"
    assert content_digest([raw[0], replace(raw[1], answer="1,201")]) != content_digest(clean)
    assert content_digest([raw[0], replace(raw[1], prompt="three")]) != content_digest(clean)


def test_a_copy_of_a_pinned_set_is_compared(public_data: Path, tmp_path: Path) -> None:
    """A copy as published (leading zeros) is the same set; one that misses a row or changes a gold is not."""
    rows = [json.loads(line) for line in (public_data / "aime2024.jsonl").read_text(encoding="utf-8").splitlines()]
    file = tmp_path / "aime.json"
    aime = CATALOG["aime2024"]

    def warnings(rows: list[dict[str, str]]) -> tuple[str, ...]:
        file.write_text(json.dumps(rows), encoding="utf-8")
        return read_file(file, Reading(), dataset=aime).warnings

    published = [{"Problem": row["problem"] + "\n", "Answer": row["answer"].zfill(3)} for row in rows]
    assert warnings(published) == ()
    assert warnings(published[:29]) == (
        "aime2024: 29 problems in place of 30: this is not the set that published figures are about",
    )
    published[3]["Answer"] = "999"
    (warning,) = warnings(published)
    assert "another wording or other answers" in warning


def test_a_limit_does_not_hide_the_pin(public_data: Path) -> None:
    """The first problems of a pinned set come without a warning: the whole set was compared."""
    loaded = read_file(public_data / "aime2025.jsonl", Reading(limit=2), dataset=CATALOG["aime2025"])
    assert (len(loaded.problems), loaded.warnings) == (2, ())


def test_sets_without_a_digest_are_not_compared() -> None:
    """Nothing is claimed about the content of the training sets."""
    assert [name for name, dataset in CATALOG.items() if not dataset.digest] == [
        "dapo-math-17k",
        "open-agentrl-30k",
        "skywork-or1-math",
    ]
    assert difference(CATALOG["dapo-math-17k"], [Problem("1", "?", "1")]) == ""


def test_the_cache_is_used_without_network(hub_cache: Path) -> None:
    """What was fetched before is read from the cache, with the commit that it is of."""
    rows = [{"Frage": "Wie viele?", "answer": "7"}, {"Frage": "Wo?", "answer": ""}]
    cache(hub_cache, "org/name", subset="default", split="test", rows=rows)
    reading = Reading(columns=ColumnsConfig(problem="Frage"))
    loaded = read_source("hub:org/name:test", reading)
    assert [(p.prompt, p.answer, p.source) for p in loaded.problems] == [("Wie viele?", "7", "name")]
    assert "org/name (test), row 2: 'answer' is missing" in loaded.warnings[0]
    assert loaded.revision == COMMIT
    assert read_source(f"hub:org/name@{COMMIT}:test", reading).problems == loaded.problems


def test_a_name_of_the_catalog_reads_its_own_layout(hub_cache: Path) -> None:
    """A column map is for other sources: one for the training file does not break a benchmark beside it."""
    for subset, gold in (("socratic", 6), ("main", 7)):
        rows = [{"question": "?", "answer": f"1+1=2\n#### {gold}"}]
        cache(hub_cache, "openai/gsm8k", subset=subset, split="test", rows=rows)
    loaded = read_source("gsm8k", Reading(columns=ColumnsConfig(problem="Frage")))
    assert [problem.answer for problem in loaded.problems] == ["7"]
    assert loaded.warnings == (
        "gsm8k: 1 problems in place of 1319: this is not the set that published figures are about",
    )


def test_another_commit_in_the_cache_is_refused(hub_cache: Path) -> None:
    """Without a network, a pinned commit is that commit or an error."""
    cache(hub_cache, "org/name", subset="default", split="train", rows=[{"problem": "?", "answer": "7"}])
    with pytest.raises(DataError, match=f"the cache holds commit {COMMIT} of org/name, not {OTHER_COMMIT}"):
        read_source(f"hub:org/name@{OTHER_COMMIT}", Reading())


@pytest.mark.usefixtures("hub_cache")
def test_without_network_and_cache_the_error_says_what_to_do() -> None:
    """The steps by hand name the set, its commit and its split."""
    with pytest.raises(DataError, match=r"can't load gsm8k from openai/gsm8k \(test\)") as error:
        read_source("gsm8k@v1", Reading())
    command = "hf download openai/gsm8k --repo-type dataset --revision v1 --local-dir gsm8k"
    assert command in error.value.hint
    assert "the file of its test split with --data FILE" in error.value.hint


def test_the_page_lists_the_sets(repo_root: Path) -> None:
    """docs/data.md names each set with its place, its split, and whether it is pinned."""
    page = (repo_root / "docs" / "data.md").read_text(encoding="utf-8")
    for dataset in CATALOG.values():
        subset = f" ({dataset.subset})" if dataset.subset else ""
        pinned = f"{dataset.num_problems} problems, by content" if dataset.digest else "no"
        assert f"| `{dataset.name}` | {dataset.repo}{subset} | {dataset.split} | {pinned} |" in page
