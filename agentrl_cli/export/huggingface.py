"""`agentrl export --to hf`: a checkpoint as a plain Hugging Face folder.

Full weights are copied byte for byte, with configuration, tokenizer and chat template; what only a resumed
run needs stays behind. Adapters are merged into their base model, in the precision that they were trained
in, or copied as adapters. The folder appears under its name once it is complete.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl_cli.config.load import load_run_config
from agentrl_cli.config.schema import ModelConfig
from agentrl_cli.errors import ConfigError, ModelError, RunError
from agentrl_cli.export.card import model_card
from agentrl_cli.files import atomic_dir
from agentrl_cli.reporting import Reporter
from agentrl_cli.runs import RunFolder
from agentrl_cli.runs_index.facts import looks_like_run, size_of
from agentrl_cli.sampler.loading import PICKLES, is_adapter_checkpoint, load_policy, resolve_path

LAYOUTS = ("hf",)
_LEFT_OUT = {"optimizer.pt", "trainer_state.json", "README.md"}
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint folder and the run that it belongs to, if any."""

    folder: Path
    run: Path | None
    is_adapter: bool


def export_checkpoint(model: str, out: Path, *, layout: str, merge: bool | None, reporter: Reporter) -> dict[str, Any]:
    """Write a checkpoint as a folder that other programs load.

    Args:
        model: A run (its best checkpoint is taken), a checkpoint folder, or `builtin:tiny`.
        out: Folder to make; it may exist if it is empty.
        layout: `hf` is the only one.
        merge: Whether adapters are merged into their base; None merges where there are adapters.

    Returns:
        `{out, source, layout, merged, size_bytes, weights_sha256: {file: digest}, files}`.

    Raises:
        ConfigError: the request makes no sense. ModelError: the checkpoint can't be used.
        RunError: the run has no checkpoint, or the folder holds something.
    """
    if layout not in LAYOUTS:
        raise ConfigError(f"--to {layout!r} is unknown", hint=f"one of {', '.join(LAYOUTS)}")
    source = find_source(model)
    if merge is not None and not source.is_adapter:
        name = "--merge" if merge else "--no-merge"
        raise ConfigError(f"{name} is for adapters, and {model!r} has full weights", hint=f"leave {name} out")
    merged = source.is_adapter and merge is not False
    out = out.resolve()
    _require_empty(out)
    reporter.info(f"exporting {source.folder}" + (", adapters merged into their base" if merged else ""))
    with atomic_dir(out) as partial:
        if merged:
            _write_merged(source, partial)
        else:
            _copy(source, partial)
        card = model_card(source.folder, run=source.run, is_merged=merged)
        (partial / "README.md").write_text(card, encoding="utf-8")
        digests = {file.name: _sha256(file) for file in sorted(partial.glob("*.safetensors"))}
        _require_empty(out)
    return {
        "out": str(out),
        "source": str(source.folder),
        "layout": layout,
        "merged": merged,
        "size_bytes": size_of(out),
        "weights_sha256": digests,
        "files": sorted(file.name for file in out.iterdir()),
    }


def find_source(model: str) -> Source:
    """Return the checkpoint that a run, a folder or a name of ours stands for.

    Raises:
        ModelError: it is no checkpoint with safetensors weights.
        RunError: the run has no checkpoint.
    """
    folder = Path(resolve_path(model))
    run = None
    if looks_like_run(folder):
        run = folder
        best = RunFolder.open(folder, read_only=True).best_checkpoint()
        if best is None:
            raise RunError(f"the run {model!r} has no checkpoint yet", hint="wait for its first, or give a folder")
        folder = best
    elif folder.resolve().parent.name == "checkpoints" and looks_like_run(folder.resolve().parent.parent):
        run = folder.resolve().parent.parent
    _require_weights(folder)
    return Source(folder, run, is_adapter_checkpoint(str(folder)))


def _require_weights(folder: Path) -> None:
    if not folder.is_dir():
        raise ModelError(f"no folder {str(folder)!r}", hint="give a run or a checkpoint folder")
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in PICKLES)
    found = f"; pickles are never loaded ({pickles[0]})" if pickles else ""
    raise ModelError(
        f"{str(folder)!r} holds no safetensors weights{found}",
        hint="give a run, or a folder such as RUN/checkpoints/step-000010",
    )


def _require_empty(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{str(out)!r} exists and is not empty; an export overwrites nothing", hint="give another --out")


def _copy(source: Source, target: Path) -> None:
    """Copy what others need of a checkpoint, as it is."""
    for file in sorted(source.folder.iterdir()):
        if file.is_file() and file.name not in _LEFT_OUT and file.suffix not in PICKLES:
            shutil.copyfile(file, target / file.name)
    if not source.is_adapter and not (target / "generation_config.json").exists():
        _write_generation_config(target)


def _write_generation_config(folder: Path) -> None:
    from transformers import AutoConfig, GenerationConfig

    GenerationConfig.from_model_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)


def _write_merged(source: Source, target: Path) -> None:
    """Load base and adapters as training does, merge, and write weights and tokenizer."""
    config = load_run_config(source.run, []).model if source.run else ModelConfig()
    policy = load_policy(config, path=str(source.folder))
    try:
        model = policy.model.merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise ModelError(f"the adapters of {str(source.folder)!r} can't be merged: {error}") from error
    model.save_pretrained(target)
    policy.tokenizer.save_pretrained(target)


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
