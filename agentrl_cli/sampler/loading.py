"""Loads a policy: model, tokenizer, chat template, adapters, and what identifies them in config.json."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import logging

from agentrl_cli.config.plan_models import is_local_path
from agentrl_cli.config.schema import LoraConfig, ModelConfig
from agentrl_cli.errors import ConfigError, ModelError, explain_out_of_memory

logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # their bars would tear the progress of a run
BUILTIN = "builtin:"
CausalLM = Any
"""A transformers model with a head, or peft's wrapper around one: they share no type."""
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl"}
"""Suffixes of weight files that can run code when they are loaded."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")
_LESS_MEMORY = "its size: take a smaller model, or model.dtype=bfloat16 with adapters (model.lora)"
_ASSETS = resources.files("agentrl_cli") / "assets"


@dataclass(frozen=True, slots=True)
class Policy:
    """A model that generates and trains, with its tokenizer and the facts that identify both."""

    model: CausalLM
    tokenizer: PreTrainedTokenizerBase
    identity: dict[str, str]
    """What config.json records: path, revision or digests of weights, tokenizer and template."""

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return torch.device(next(self.model.parameters()).device)


def load_policy(config: ModelConfig, *, path: str | None = None, trainable: bool = False) -> Policy:
    """Load the policy that the settings name.

    Args:
        config: The [model] section.
        path: A checkpoint to load instead of `config.path` (a run's checkpoint, an `--model`).
        trainable: Attach fresh adapters and recompute activations, where the settings ask for them;
            otherwise adapters found in a checkpoint folder are still loaded.

    Raises:
        ModelError: something of it is missing or can't be used; the hint says how to get it.
    """
    source = resolve_path(path or config.path)
    tokenizer = _load_tokenizer(source, config)
    if config.chat_template:
        tokenizer.chat_template = read_template(config.chat_template)
    with explain_out_of_memory(f"loading {source!r}", lower=_LESS_MEMORY):
        model = _load_weights(source, config)
    _require_finite(model, source)
    if trainable and config.lora is not None and not hasattr(model, "peft_config"):
        model = _add_adapters(model, config.lora)
    if trainable and config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    return Policy(model, tokenizer, _identity(source, config, tokenizer, model))


def resolve_path(path: str) -> str:
    """Return a folder or Hugging Face id for a model name of ours."""
    if not path.startswith(BUILTIN):
        return path
    folder = _ASSETS / path.removeprefix(BUILTIN)
    if not folder.is_dir():
        raise ConfigError(f"unknown model {path!r}", hint="the package holds one: builtin:tiny")
    return str(folder)


def is_adapter_checkpoint(path: str) -> bool:
    """The folder holds peft adapters that name their base model, not full weights."""
    return (Path(resolve_path(path)) / "adapter_config.json").is_file()


def read_template(name: str) -> str:
    """Return the text of a chat template: a Jinja file, or `builtin:NAME`."""
    if name.startswith(BUILTIN):
        file = _ASSETS / "templates" / f"{name.removeprefix(BUILTIN)}.jinja"
        if not file.is_file():
            known = sorted(f"{BUILTIN}{f.name.removesuffix('.jinja')}" for f in (_ASSETS / "templates").iterdir())
            raise ConfigError(f"unknown chat template {name!r}", hint=f"known: {', '.join(known)}, or a Jinja file")
        return file.read_text(encoding="utf-8")
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"model.chat_template={name!r} can't be read: {error.strerror}") from error


def _load_tokenizer(source: str, config: ModelConfig) -> PreTrainedTokenizerBase:
    folder = Path(source)
    if not folder.is_dir() and is_local_path(source):
        raise ModelError(f"there is no folder {source!r}", hint="give a checkpoint folder, a run, or a Hugging Face id")
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        # transformers would make one without a vocabulary
        raise ModelError(
            f"no tokenizer in {source!r}: none of {', '.join(_TOKENIZER_FILES)} is there",
            hint="copy the tokenizer's files of the model that it was made from into the folder",
        )
    try:
        return AutoTokenizer.from_pretrained(
            source, revision=config.revision or None, trust_remote_code=config.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise _missing(source, "tokenizer", error) from error


def _load_weights(source: str, config: ModelConfig) -> CausalLM:
    _refuse_pickles(source)
    dtype = getattr(torch, config.dtype)
    options: dict[str, Any] = {
        "revision": config.revision or None,
        "trust_remote_code": config.trust_remote_code,
        "dtype": dtype,
    }
    try:
        if is_adapter_checkpoint(source):
            from peft import AutoPeftModelForCausalLM

            return AutoPeftModelForCausalLM.from_pretrained(source, is_trainable=True, **options)
        return AutoModelForCausalLM.from_pretrained(source, **options, use_safetensors=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise _missing(source, "weights", error) from error


def _add_adapters(model: CausalLM, config: LoraConfig) -> CausalLM:
    from peft import LoraConfig as PeftLoraConfig
    from peft import get_peft_model

    adapters = PeftLoraConfig(
        task_type="CAUSAL_LM",
        r=config.r,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=config.target_modules,
    )
    return get_peft_model(model, adapters)


def _require_finite(model: CausalLM, source: str) -> None:
    """Refuse weights that would make every later number meaningless."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise ModelError(
                f"the weights of {source!r} are broken: {name!r} has values that are not finite",
                hint="the run that made them diverged, or the file is damaged: take an earlier checkpoint",
            )


def _missing(source: str, part: str, error: Exception) -> ModelError:
    if Path(source).is_dir():
        return ModelError(f"no usable {part} in {source!r}: {error}", hint="give a Hugging Face checkpoint folder")
    return ModelError(
        f"can't load the {part} of {source!r}: neither a folder here nor a model that could be fetched",
        hint=f"fetch it where there is a network: hf download {source} --local-dir DIR, then --set model.path=DIR",
    )


def _refuse_pickles(source: str) -> None:
    """Refuse a folder whose weights are a pickle: loading one runs whatever it says."""
    folder = Path(source)
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return
    for file in sorted(folder.iterdir()):
        if file.suffix in PICKLES:
            raise ModelError(
                f"{source!r} holds its weights as a pickle ({file.name}), which can run code when it is loaded",
                hint="take a copy in safetensors; where you trust the file, load it with transformers and save it",
            )


def _identity(source: str, config: ModelConfig, tokenizer: PreTrainedTokenizerBase, model: CausalLM) -> dict[str, str]:
    commit = getattr(model.config, "_commit_hash", None)
    template = str(tokenizer.chat_template or "")
    return {
        "path": config.path if resolve_path(config.path) == source else source,
        "revision": commit or config.revision,
        "weights_sha256": weights_digest(model),
        "tokenizer_sha256": _sha256("\n".join(f"{t}\t{i}" for t, i in sorted(tokenizer.get_vocab().items()))),
        "template_sha256": _sha256(template),
        "trust_remote_code": str(config.trust_remote_code).lower(),
    }


def weights_digest(model: torch.nn.Module) -> str:
    """Return the sha256 over names and bytes of all weights, in name order."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
