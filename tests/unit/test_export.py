"""Exports load with transformers alone, give the same numbers, and overwrite nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from agentrl_cli.config.load import load_config
from agentrl_cli.errors import ConfigError, ModelError, RunError
from agentrl_cli.export.huggingface import export_checkpoint
from agentrl_cli.files import write_atomic
from agentrl_cli.reporting import NullReporter
from agentrl_cli.runs import RunFolder
from agentrl_cli.sampler.loading import Policy, load_policy, resolve_path
from agentrl_cli.training.checkpoint import TrainerState, save_checkpoint
from agentrl_cli.training.optimizer import build_optimizer

TINY = Path(resolve_path("builtin:tiny"))
IDS = torch.tensor([[1, 5, 9, 200, 635, 17, 3]])


def export(model: Path | str, out: Path, *, layout: str = "hf", merge: bool | None = None) -> dict:
    return export_checkpoint(str(model), out, layout=layout, merge=merge, reporter=NullReporter())


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def train_nothing(path: Path, *settings: str) -> Policy:
    """Write a run of one step whose checkpoint holds the policy as the settings make it; adapters are not zero."""
    config = load_config("tiny", None, ["run.steps=3", *settings])
    with RunFolder.create(config, kind="rl", out=path, digest="d") as run:
        policy = load_policy(config.model, trainable=True)
        run.record_identity(policy.identity)
        generator = torch.Generator().manual_seed(0)
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.data = 0.1 * torch.randn(weight.shape, generator=generator)
        optimizer = build_optimizer(policy.model, config.optim)
        save_checkpoint(run.checkpoint_path(1), policy, optimizer, TrainerState(1, 1, 1, {}))
    return policy


def test_full_weights_come_out_bit_by_bit(tmp_path: Path) -> None:
    """Logits, tokenizer, chat template and generation settings equal those of the original."""
    result = export(TINY, tmp_path / "out")
    before, after = (AutoModelForCausalLM.from_pretrained(folder) for folder in (TINY, tmp_path / "out"))
    assert after.dtype is torch.bfloat16
    assert torch.equal(logits(before), logits(after))
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in (TINY, tmp_path / "out")]
    messages = [{"role": "user", "content": "What is 6*7?"}]
    assert tokenizers[0].chat_template == tokenizers[1].chat_template != ""
    assert len({t.apply_chat_template(messages, tokenize=False) for t in tokenizers}) == 1
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == 635
    digest = hashlib.sha256((TINY / "model.safetensors").read_bytes()).hexdigest()
    assert result["weights_sha256"] == {"model.safetensors": digest}
    assert (result["merged"], result["files"]) == (False, names(tmp_path / "out"))
    assert "No run is known" in (tmp_path / "out" / "README.md").read_text()


def test_a_run_stands_for_its_newest_checkpoint_without_trainer_state(tmp_path: Path) -> None:
    """What only a resumed run needs stays behind."""
    policy = train_nothing(tmp_path / "run", "model.chat_template=builtin:smollm2-tools")
    result = export(tmp_path / "run", tmp_path / "out")
    assert result["source"] == str(tmp_path / "run" / "checkpoints" / "step-000001")
    assert names(tmp_path / "out") == [
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "out")), logits(policy.model))
    template = AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    assert template == (TINY.parent / "templates" / "smollm2-tools.jinja").read_text()


def test_a_missing_generation_config_is_made_from_the_model(tmp_path: Path) -> None:
    """Otherwise a loaded model would not know where its turns end."""
    shutil.copytree(TINY, tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").unlink()
    export(tmp_path / "model", tmp_path / "out")
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == 635


def test_adapters_are_merged_into_their_base(tmp_path: Path) -> None:
    """The merged model is a plain one with the adapted model's logits, which are not the base's."""
    policy = train_nothing(tmp_path / "run", "model.lora.r=4")
    result = export(tmp_path / "run", tmp_path / "out")
    assert result["merged"]
    assert [name for name in result["files"] if "adapter" in name or "optimizer" in name] == []
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(merged).__name__ == "Qwen3ForCausalLM"
    torch.testing.assert_close(logits(merged), logits(policy.model), atol=1e-4, rtol=0)
    base = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    assert (logits(merged) - logits(base)).abs().max() > 0.1
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template == policy.tokenizer.chat_template
    assert "merged into their base" in (tmp_path / "out" / "README.md").read_text()


def test_adapters_can_stay_adapters(tmp_path: Path) -> None:
    """With merge switched off the folder holds what peft loads, to the same logits."""
    from peft import AutoPeftModelForCausalLM

    policy = train_nothing(tmp_path / "run", "model.lora.r=4")
    result = export(tmp_path / "run", tmp_path / "out", merge=False)
    assert not result["merged"]
    assert list(result["weights_sha256"]) == ["adapter_model.safetensors"]
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    assert torch.equal(logits(loaded), logits(policy.model))
    assert (tmp_path / "out" / "README.md").read_text().startswith("---\nlibrary_name: peft\n")


def test_the_card_says_how_the_model_was_made(tmp_path: Path) -> None:
    """Command, steps, start, settings off their defaults, and figures of this very checkpoint alone."""
    shutil.copytree(TINY, tmp_path / "start")
    run = tmp_path / "my-run"
    train_nothing(run, f"model.path={tmp_path / 'start'}", "grpo.epsilon_high=0.3")
    for step, accuracy in ((0, 0.25), (1, 0.5), (2, 0.75)):
        figures = {"step": step, "accuracy": accuracy, "accuracy_greedy": 0.125, "stderr": 0.0625, "n": 8, "k": 4}
        write_atomic(run / "eval" / f"step-{step:06d}.json", json.dumps(figures))
    for name, checkpoint in (("gsm8k", "step-000001"), ("aime2025", "step-000002")):
        model = str(run / "checkpoints" / checkpoint)
        row = {"benchmark": name, "model": model, "n": 5, "k": 2, "avg_at_k": 0.5, "temperature": 1.0}
        write_atomic(run / "eval" / name / "result.json", json.dumps(row))
    export(run, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "# my-run, step 1\n" in card
    assert "- command: `agentrl rl` of agentrl" in card
    assert "- steps: 1 of 3\n" in card
    assert "- start path: `start`\n" in card
    assert "- `grpo.epsilon_high`: `0.3`\n" in card
    assert "sft." not in card
    assert "step 0: accuracy 0.250 (standard error 0.062), greedy 0.125; 8 problems x 4 samples" in card
    assert "step 1: accuracy 0.500" in card
    assert "step 2" not in card
    assert "- gsm8k: avg@2 0.500, 5 problems, temperature 1\n" in card
    assert "aime2025" not in card
    assert str(tmp_path) not in card


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A folder with anything in it and a file are refused; an empty folder is taken."""
    write_atomic(tmp_path / "full" / "mine.txt", "mine")
    for out in (tmp_path / "full", tmp_path / "full" / "mine.txt"):
        with pytest.raises(RunError, match="overwrites nothing"):
            export(TINY, out)
    assert names(tmp_path / "full") == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    export(TINY, tmp_path / "empty")
    assert "model.safetensors" in names(tmp_path / "empty")


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    """The folder appears under its name only when it is complete."""
    train_nothing(tmp_path / "run", "model.lora.r=4")
    config = tmp_path / "run" / "checkpoints" / "step-000001" / "adapter_config.json"
    config.write_text(config.read_text().replace(str(TINY), str(tmp_path / "gone")))
    with pytest.raises(ModelError):
        export(tmp_path / "run", tmp_path / "out" / "model")
    assert names(tmp_path / "out") == []


def test_adapters_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    """A merge would spread NaN over the base."""
    policy = train_nothing(tmp_path / "run", "model.lora.r=4")
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            weight.data.fill_(float("nan"))
    policy.model.save_pretrained(tmp_path / "run" / "checkpoints" / "step-000001")
    with pytest.raises(ModelError, match="not finite"):
        export(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_can_not_be_exported_is_named(tmp_path: Path) -> None:
    """No folder, no weights, pickles, a run without checkpoint, another layout, --merge without adapters."""
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "pytorch_model.bin").touch()
    RunFolder.create(load_config("tiny", None, []), kind="rl", out=tmp_path / "young", digest="d").close()
    for model, error, words in (
        (tmp_path / "no", ModelError, "no folder"),
        (tmp_path, ModelError, "holds no safetensors weights"),
        (tmp_path / "pickled", ModelError, r"pickles are never loaded \(pytorch_model.bin\)"),
        (tmp_path / "young", RunError, "has no checkpoint yet"),
    ):
        with pytest.raises(error, match=words) as caught:
            export(model, tmp_path / "out")
        assert caught.value.hint
    with pytest.raises(ConfigError, match="--to 'gguf' is unknown"):
        export(TINY, tmp_path / "out", layout="gguf")
    for merge in (True, False):
        with pytest.raises(ConfigError, match="merge is for adapters"):
            export(TINY, tmp_path / "out", merge=merge)
    assert not (tmp_path / "out").exists()
