"""What all tests share: no network, the public data folder, and GPU tests only where there is a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parent.parent

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """Folder that holds pyproject.toml."""
    return ROOT


@pytest.fixture(scope="session")
def public_data() -> Path:
    """Folder of public data sets, named by AGENTRL_TEST_DATA; the test is skipped where there is none."""
    folder = Path(os.environ.get("AGENTRL_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no public data at {folder}: set AGENTRL_TEST_DATA")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked gpu where torch sees no CUDA device; torch is imported only if there are such tests."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A small byte-level tokenizer with the package's tool template, trained on one conversation."""
    from agentrl_cli.agent.tools import PYTHON_SCHEMA
    from agentrl_cli.data.tiny_model import build_tokenizer

    template = (ROOT / "agentrl_cli" / "assets" / "templates" / "tiny-tools.jinja").read_text(encoding="utf-8")
    conversation = [{"role": "user", "content": "What is 6*7?"}, {"role": "assistant", "content": "The answer is 42."}]
    return build_tokenizer([conversation], tools=[PYTHON_SCHEMA], chat_template=template, vocab_size=320)
