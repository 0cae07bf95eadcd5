"""Sizes of models, from the package's own table or from a config.json on this machine; no weights are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from agentrl_cli.config.schema import LoraConfig

BUILTIN = "builtin:"
_KEYS = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The sizes of a dense decoder with a gated MLP (Qwen2, Qwen3, Llama)."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    ties_embeddings: bool
    has_qk_norm: bool = False
    """Qwen3: queries and keys are normalised by head."""
    has_qkv_bias: bool = False
    """Qwen2."""

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each linear module of a layer, by its name inside the layer."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "self_attn.q_proj": (hidden, self.query_size),
            "self_attn.k_proj": (hidden, self.kv_size),
            "self_attn.v_proj": (hidden, self.kv_size),
            "self_attn.o_proj": (self.query_size, hidden),
            "mlp.gate_proj": (hidden, inner),
            "mlp.up_proj": (hidden, inner),
            "mlp.down_proj": (inner, hidden),
        }

    @property
    def num_parameters(self) -> int:
        """All parameters: linears, two norms a layer, embeddings (twice unless tied) and the last norm."""
        layer = sum(inputs * outputs for inputs, outputs in self.linears.values()) + 2 * self.hidden_size
        layer += 2 * self.head_dim if self.has_qk_norm else 0
        layer += self.query_size + 2 * self.kv_size if self.has_qkv_bias else 0
        embeddings = self.vocab_size * self.hidden_size * (1 if self.ties_embeddings else 2)
        return self.num_layers * layer + embeddings + self.hidden_size

    def num_adapter_parameters(self, lora: LoraConfig) -> int:
        """Parameters of the adapters: r times inputs plus outputs of each module that is adapted."""
        adapted = [sum(shape) for name, shape in self.linears.items() if _is_adapted(name, lora.target_modules)]
        return self.num_layers * lora.r * sum(adapted)


KNOWN: Mapping[str, ModelFacts] = {
    # huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct, config.json (Llama)
    "HuggingFaceTB/SmolLM2-135M-Instruct": ModelFacts(30, 576, 1536, 9, 3, 64, 49152, True),
    # huggingface.co/Qwen/Qwen3-4B-Instruct-2507, config.json
    "Qwen/Qwen3-4B-Instruct-2507": ModelFacts(36, 2560, 9728, 32, 8, 128, 151936, True, has_qk_norm=True),
    # huggingface.co/Qwen/Qwen2.5-7B-Instruct, config.json
    "Qwen/Qwen2.5-7B-Instruct": ModelFacts(28, 3584, 18944, 28, 4, 128, 152064, False, has_qkv_bias=True),
    # huggingface.co/Qwen/Qwen3-32B, config.json
    "Qwen/Qwen3-32B": ModelFacts(64, 5120, 25600, 64, 8, 128, 151936, False, has_qk_norm=True),
}
"""Models of the presets, so that a plan needs neither network nor download."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """What is known about the model that the settings name."""

    facts: ModelFacts | None
    """None: neither in the table nor described by a config.json here, or of another architecture."""
    is_here: bool
    """Its weights are on this machine."""


def is_local_path(path: str) -> bool:
    """Whether a model's name can only mean a folder: a Hugging Face id is NAME or ORG/NAME."""
    first, *rest = path.split("/")
    return first in ("", ".", "..", "~") or len(rest) > 1 or (bool(rest) and Path(first).is_dir())


def find_model(path: str, *, hub_cache: Path) -> FoundModel:
    """Look a model up by what `model.path` says: a folder, a model of the package, or a Hugging Face id."""
    folder = _local_folder(path, hub_cache)
    if folder is None:
        return FoundModel(KNOWN.get(path), is_here=False)
    base = _read_json(folder / "adapter_config.json").get("base_model_name_or_path")
    if isinstance(base, str) and base != path:
        return find_model(base, hub_cache=hub_cache)
    facts = KNOWN.get(path) or read_facts(folder / "config.json")
    return FoundModel(facts, is_here=any(folder.glob("*.safetensors")))


def read_facts(path: Path) -> ModelFacts | None:
    """Return what a config.json says, or None if it is missing or not of a dense decoder."""
    values = _read_json(path)
    if not all(isinstance(values.get(key), int) for key in _KEYS) or "num_experts" in values:
        return None
    layers, hidden, inner, heads, vocab = (int(values[key]) for key in _KEYS)
    kind = values.get("model_type")
    return ModelFacts(
        num_layers=layers,
        hidden_size=hidden,
        intermediate_size=inner,
        num_heads=heads,
        num_kv_heads=int(values.get("num_key_value_heads") or heads),
        head_dim=int(values.get("head_dim") or hidden // heads),
        vocab_size=vocab,
        ties_embeddings=bool(values.get("tie_word_embeddings", False)),
        has_qk_norm=kind == "qwen3",
        has_qkv_bias=kind == "qwen2",
    )


def _local_folder(path: str, hub_cache: Path) -> Path | None:
    """Return the folder that holds a model here, if any does."""
    if path.startswith(BUILTIN):
        # the package is unpacked wherever agentrl runs from
        return Path(str(resources.files("agentrl_cli") / "assets" / path.removeprefix(BUILTIN)))
    if Path(path).is_dir():
        return Path(path)
    snapshots = hub_cache / f"models--{path.replace('/', '--')}" / "snapshots"
    folders = sorted(snapshots.iterdir()) if snapshots.is_dir() else []
    return next((folder for folder in folders if any(folder.glob("*.safetensors"))), None)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _is_adapted(name: str, targets: str | list[str]) -> bool:
    """Whether peft adapts a module: by a list of name endings, a pattern over the whole name, or all of them."""
    if isinstance(targets, list):
        return any(name == target or name.endswith(f".{target}") for target in targets)
    return targets == "all-linear" or re.fullmatch(targets, f"model.layers.0.{name}") is not None
