"""Agentic reinforcement learning of tool-using language models: collect, filter, sft, rl, eval, diagnose."""

from pathlib import Path

__version__ = "0.1.0"

_BROKEN = [name for name in ("commands", "presets") if not (Path(__file__).parent / name).is_dir()]
if _BROKEN:
    raise ImportError(
        f"agentrl_cli/{_BROKEN[0]} is not a folder: this checkout lost its symbolic links (on Windows, set "
        "git config core.symlinks true and check out again), or install the package with pip install ."
    )
