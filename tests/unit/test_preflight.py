"""What is said before a run that can't begin: device, model and data, each with the command that gets it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentrl_cli.config.load import load_config
from agentrl_cli.config.plan_machine import Gpu, Machine
from agentrl_cli.errors import ConfigError
from agentrl_cli.preflight import find_missing, require_possible

SOURCES = ("data.train", "data.eval")


def machine(folder: Path) -> Machine:
    """A laptop that may download."""
    return Machine(gpus=(), ram_bytes=2**34, num_cores=2, free_disk_bytes=2**36, hub_cache=folder, is_offline=False)


def with_gpu(folder: Path, *, is_offline: bool = False) -> Machine:
    """A machine with a device for any model."""
    return replace(machine(folder), gpus=(Gpu("H200", 140 * 2**30),), is_offline=is_offline)


def missing(here: Machine, *overrides: str, preset: str = "4b") -> list[tuple[str, bool]]:
    """What is missing, and whether the command could not get it by itself."""
    found = find_missing(load_config(preset, None, overrides), sources=SOURCES, machine=here)
    return [(part.what, part.is_fatal) for part in found]


def test_only_what_cannot_be_fetched_stands_in_the_way(tmp_path: Path) -> None:
    """Without a GPU 4b can't begin; with one, and a network, model and data are fetched; offline they can't be."""
    data = [("data.train", False), ("data.eval", False)]
    assert missing(machine(tmp_path)) == [("GPU", True), ("model", False), *data]
    assert missing(with_gpu(tmp_path)) == [("model", False), *data]
    assert missing(with_gpu(tmp_path, is_offline=True)) == [(what, True) for what in ("model", *SOURCES)]
    assert missing(machine(tmp_path), preset="tiny") == []


def test_what_is_here_is_not_missing(tmp_path: Path) -> None:
    """Data sets in the hub's cache, files and local model folders are found."""
    (tmp_path / "datasets--HuggingFaceH4--aime_2024").mkdir()
    (tmp_path / "mine.jsonl").touch()
    (tmp_path / "model").mkdir()
    overrides = (f"data.train={tmp_path}/mine.jsonl", f"model.path={tmp_path}/model")
    assert missing(with_gpu(tmp_path, is_offline=True), *overrides) == []


def test_the_error_names_everything_and_the_commands(tmp_path: Path) -> None:
    """Whoever types `agentrl rl --preset 4b` on a laptop reads what is missing and what to type."""
    config = load_config("4b", None, [])
    with pytest.raises(ConfigError) as caught:
        require_possible(config, command="rl", sources=SOURCES, machine=machine(tmp_path))
    message, hint = caught.value.message, caught.value.hint
    assert message.startswith("rl can't begin on this machine; missing:\n  GPU: no CUDA device was found;")
    assert "model: Qwen/Qwen3-4B-Instruct-2507 is not on this machine (7.5 GiB to download)" in message
    assert "hf download Qwen/Qwen3-4B-Instruct-2507 --local-dir DIR, then --set model.path=DIR" in hint
    assert "hf download Gen-Verse/Open-AgentRL-30K --repo-type dataset --local-dir DIR" in hint
    require_possible(config, command="rl", sources=SOURCES, machine=with_gpu(tmp_path))
