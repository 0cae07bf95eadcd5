"""The two ends of `make starter` that no command covers: a fresh tiny model, and the checkpoint that ships.

python -m agentrl_cli.training.starter fresh ROWS.jsonl FOLDER     tokenizer trained on rows, random weights
python -m agentrl_cli.training.starter ship CHECKPOINT FOLDER      the same weights in bfloat16, without trainer state
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentrl_cli.agent.tools import PYTHON_SCHEMA
from agentrl_cli.data.tiny_model import build_model, build_tokenizer
from agentrl_cli.files import atomic_dir, read_rows
from agentrl_cli.sampler.loading import read_template

TEMPLATE = "builtin:tiny-tools"
VOCAB_SIZE = 640
NUM_TOKENIZER_ROWS = 3000
SEED = 0


def make_fresh(rows: Path, folder: Path) -> None:
    """Write an untrained model of preset `tiny` with a tokenizer trained on the first rows of a file."""
    conversations = [row["messages"] for row in read_rows(rows)[0][:NUM_TOKENIZER_ROWS]]
    tokenizer = build_tokenizer(
        conversations, tools=[PYTHON_SCHEMA], chat_template=read_template(TEMPLATE), vocab_size=VOCAB_SIZE
    )
    with atomic_dir(folder) as partial:
        build_model(tokenizer, seed=SEED).save_pretrained(partial)
        tokenizer.save_pretrained(partial)


def ship(checkpoint: Path, folder: Path) -> None:
    """Write a checkpoint's weights in bfloat16 with its tokenizer."""
    with atomic_dir(folder) as partial:
        AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).save_pretrained(partial)
        AutoTokenizer.from_pretrained(checkpoint).save_pretrained(partial)


def main() -> None:
    """Run one of the two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["fresh", "ship"])
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    action = make_fresh if options.what == "fresh" else ship
    action(options.source, options.folder)


if __name__ == "__main__":
    main()
