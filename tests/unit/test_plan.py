"""What --dry-run works out: sizes of models, memory, disk, time, and what stands against a run."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import torch

from agentrl_cli.config.load import load_config
from agentrl_cli.config.plan import UNKNOWN_MODEL, make_plan
from agentrl_cli.config.plan_cost import checkpoint_bytes, run_bytes, step_seconds, token_budget, trajectory_bytes
from agentrl_cli.config.plan_machine import Gpu, Machine, read_machine
from agentrl_cli.config.plan_memory import GIB, HEAD_CHUNK_TOKENS, MAX_KEPT_LOGITS, rl_memory, sft_memory
from agentrl_cli.config.plan_models import KNOWN, ModelFacts, find_model, read_facts
from agentrl_cli.config.schema import Config, LoraConfig
from agentrl_cli.sampler.loading import load_policy
from agentrl_cli.training import forward

SMOL = KNOWN["HuggingFaceTB/SmolLM2-135M-Instruct"]
QWEN_4B = KNOWN["Qwen/Qwen3-4B-Instruct-2507"]
HUB_4B = "Qwen/Qwen3-4B-Instruct-2507"


def settings(preset: str, *overrides: str) -> Config:
    """Return a preset with changes."""
    return load_config(preset, None, overrides)


def tiny_facts() -> ModelFacts:
    """Return the sizes of the package's own model."""
    facts = find_model("builtin:tiny", hub_cache=Path("nowhere")).facts
    assert facts is not None
    return facts


def a_machine(
    folder: Path, *, gpu_bytes: int = 0, ram_bytes: int = 64 * GIB, disk_bytes: int = 10**15, is_offline: bool = False
) -> Machine:
    """A machine with two cores, whose model cache is `folder`."""
    gpus = (Gpu("GPU", gpu_bytes),) if gpu_bytes else ()
    return Machine(gpus, ram_bytes, 2, disk_bytes, folder, is_offline)


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 134_515_008),
        ("Qwen/Qwen3-4B-Instruct-2507", 4_022_468_096),
        ("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512),
        ("Qwen/Qwen3-32B", 32_762_123_264),
    ],
)
def test_sizes_give_the_published_number_of_parameters(path: str, parameters: int) -> None:
    """The number that each model's page states follows from the sizes in the table."""
    assert KNOWN[path].num_parameters == parameters


def test_sizes_of_a_local_model_come_from_its_config() -> None:
    """The package's model: embeddings 640 x 128 (tied), four layers of 246,144 and a norm of 128.

    A layer: q and o 2 x 128 x 256, k and v 2 x 128 x 128, MLP 3 x 128 x 384, two norms 256, two head norms 128.
    """
    facts = tiny_facts()
    assert facts.num_parameters == 81_920 + 4 * 246_144 + 128 == 1_066_624
    model = load_policy(settings("tiny").model).model
    assert facts.num_parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("targets", "per_layer"),
    [
        # q and o 576 + 576, k and v 576 + 192, three MLP modules 576 + 1536
        ("all-linear", 2 * 1152 + 2 * 768 + 3 * 2112),
        (["q_proj", "v_proj"], 1152 + 768),
        (r".*\.mlp\..*", 3 * 2112),
    ],
)
def test_adapters_are_counted_by_what_they_adapt(targets: str | list[str], per_layer: int) -> None:
    """r x (inputs + outputs) of each adapted module in each of 30 layers."""
    assert SMOL.num_adapter_parameters(LoraConfig(r=16, target_modules=targets)) == 16 * 30 * per_layer


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hidden_size": 8}'])
def test_a_config_that_says_too_little_is_no_model(text: str, tmp_path: Path) -> None:
    """A missing, torn or foreign config.json gives no sizes rather than wrong ones."""
    file = tmp_path / "config.json"
    file.write_text(text)
    assert read_facts(file) is None
    assert read_facts(tmp_path / "none.json") is None


def test_a_mixture_of_experts_is_no_dense_model(tmp_path: Path) -> None:
    """Its parameters do not follow from the sizes of one MLP."""
    values = {
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "vocab_size": 32,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(values))
    assert read_facts(file) is not None
    file.write_text(json.dumps({**values, "num_experts": 4}))
    assert read_facts(file) is None


def test_a_checkpoint_of_adapters_has_the_sizes_of_its_base(tmp_path: Path) -> None:
    """adapter_config.json names the base model."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": HUB_4B}))
    assert find_model(str(tmp_path), hub_cache=tmp_path).facts == QWEN_4B


def test_a_model_in_the_cache_is_here(tmp_path: Path) -> None:
    """A snapshot with weights counts; a cache entry without does not."""
    snapshot = tmp_path / "models--Qwen--Qwen3-4B-Instruct-2507" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    assert not find_model(HUB_4B, hub_cache=tmp_path).is_here
    (snapshot / "model.safetensors").touch()
    assert find_model(HUB_4B, hub_cache=tmp_path).is_here


def test_memory_of_tiny_part_by_part() -> None:
    """1,066,624 parameters in float32, 128 rows of 192 tokens with 16 prompts of 512, mini-batches of 4 groups."""
    memory = rl_memory(settings("tiny"), tiny_facts())
    assert memory.weights == memory.gradients == 4 * 1_066_624
    assert memory.adam == 2 * 4 * 1_066_624
    assert memory.reference == 0
    # 2 x 4 layers x 128 x 4 bytes = 4096 a token; 128 x 192 + 16 x 512 = 32,768 tokens
    assert memory.kv_cache == 4096 * 32_768
    # 4 groups of 8 x 192 + 512 = 2048 tokens (16,384 would take 8, a mini-batch has 4); a layer keeps
    # 6 x 128 + 5 x 256 + 6 x 128 + 4 x 384 = 4352 values
    assert memory.activations == 4 * 2048 * 4 * 4352 * 4
    # a chunk of 4096 three times, and the 6144 generated tokens once: 4096 x 640 < 2^22
    assert memory.head == (3 * 4096 + 6144) * 640 * 4


def test_the_peak_of_tiny_is_near_what_was_measured() -> None:
    """`agentrl rl --preset tiny` peaked at 0.85 to 0.92 GiB on two CPU cores; the bound is within twice that."""
    peak = rl_memory(settings("tiny"), tiny_facts()).peak / GIB
    assert 0.92 / 2 < peak < 0.85 * 2


def test_activations_are_near_what_a_forward_pass_keeps() -> None:
    """What autograd saves of one group of tiny, counted by storage, is within a fifth of the formula."""
    config = settings("tiny", "problems_per_step=4")
    model = load_policy(config.model).model.train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        pointer = tensor.untyped_storage().data_ptr()
        if pointer not in weights:
            kept[pointer] = tensor
        return tensor

    batch = forward.GroupBatch(
        prompt_ids=torch.ones(1, 512, dtype=torch.int64),
        prompt_length=torch.tensor([512]),
        prompt_index=torch.zeros(8, dtype=torch.int64),
        ids=torch.ones(8, 192, dtype=torch.int64),
        length=torch.full((8,), 192),
        mask=torch.ones(8, 192, dtype=torch.bool),
    )
    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        forward.score_tokens(model, batch, temperature=1.0)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    memory = rl_memory(config, tiny_facts())
    assert memory.activations == pytest.approx(measured, rel=0.2)


def test_constants_of_the_head_are_those_of_training() -> None:
    """The estimate cuts the head's work as training does."""
    assert inspect.signature(forward.score_tokens).parameters["chunk_tokens"].default == HEAD_CHUNK_TOKENS
    assert MAX_KEPT_LOGITS == forward.MAX_KEPT_LOGITS


def test_checkpointing_keeps_one_layer_and_the_borders() -> None:
    """Four layers keep their input of 128; one keeps its 4352 values while it is computed again."""
    memory = rl_memory(settings("tiny", "gradient_checkpointing=true"), tiny_facts())
    assert memory.activations == 8192 * (4 * 128 + 4352) * 4


def test_a_group_is_never_cut() -> None:
    """micro_batch_tokens below a group changes nothing: 16 x 20,480 + 2560 tokens of 4b pass at once."""
    small = rl_memory(settings("4b", "grpo.micro_batch_tokens=1"), QWEN_4B)
    assert small.activations == rl_memory(settings("4b"), QWEN_4B).activations
    layer = 6 * 2560 + 5 * 4096 + 6 * 1024 + 4 * 9728
    assert small.activations == (16 * 20_480 + 2560) * (36 * 2560 + layer) * 4


def test_the_cache_of_4b_at_full_length() -> None:
    """2 x 36 layers x 1024 x 4 bytes a token; 64 rows of 20,480 tokens and 4 prompts of 2560."""
    assert rl_memory(settings("4b"), QWEN_4B).kv_cache == 294_912 * (64 * 20_480 + 4 * 2560)


def test_adapters_change_weights_gradients_and_optimizer() -> None:
    """In bfloat16, weights take 2 bytes; adapters, their gradients and both moments stay in float32."""
    config = settings("4b", "model.dtype=bfloat16", "lora.r=8")
    adapters = 8 * 36 * (2 * (2560 + 4096) + 2 * (2560 + 1024) + 3 * (2560 + 9728))
    memory = rl_memory(config, QWEN_4B)
    assert memory.weights == 2 * 4_022_468_096 + 4 * adapters
    assert memory.gradients == 4 * adapters
    assert memory.adam == 8 * adapters
    assert memory.kv_cache == rl_memory(settings("4b"), QWEN_4B).kv_cache // 2
    assert checkpoint_bytes(config, QWEN_4B) == 12 * adapters


@pytest.mark.parametrize(
    ("overrides", "copies"),
    [(["beta=0.01"], 1), (["kl_monitor_every=5"], 1), (["beta=0.01", "lora.r=8"], 0), ([], 0)],
)
def test_a_reference_costs_a_copy_of_the_weights(overrides: list[str], copies: int) -> None:
    """Only if something reads it, and not with adapters, which are switched off instead."""
    assert rl_memory(settings("tiny", *overrides), tiny_facts()).reference == copies * 4 * 1_066_624


def test_sft_holds_no_cache_and_its_own_micro_batch() -> None:
    """tiny: 16,384 tokens (24 rows of at most 704 are 16,896) through four layers of 4352 values."""
    memory = sft_memory(settings("tiny"), tiny_facts())
    assert (memory.kv_cache, memory.reference) == (0, 0)
    assert memory.activations == 16_384 * 4 * 4352 * 4


def test_tokens_of_a_step() -> None:
    """tiny: 128 trajectories of 192 tokens, up to 3 rounds; each of 2 passes reads 16 prompts of 512 as well."""
    assert token_budget(settings("tiny")) == {
        "generated_per_step": 24_576,
        "generated_per_step_with_refills": 73_728,
        "prompt_per_step": 8192,
        "trained_per_step": 2 * (24_576 + 8192),
        "evaluation": 200 * 4 * 192,
    }


def test_disk_of_a_run() -> None:
    """Weights and two moments in float32, three checkpoints at once, and 17 bytes a token."""
    config = settings("tiny")
    assert checkpoint_bytes(config, tiny_facts()) == 12 * 1_066_624
    assert trajectory_bytes(config) == 17 * (73_728 + 8192)
    assert run_bytes(config, tiny_facts()) == 3 * 12 * 1_066_624 + 80 * 17 * 81_920
    assert run_bytes(settings("tiny", "keep_trajectories=false"), tiny_facts()) == 36 * 1_066_624


def test_time_of_a_step(tmp_path: Path) -> None:
    """2 N for 32,768 tokens and 6 N (8 N with checkpointing) for 65,536, at 2e10 operations on each of two cores."""
    machine = a_machine(tmp_path)
    plain = step_seconds(settings("tiny"), tiny_facts(), machine)
    assert plain == pytest.approx(1_066_624 * (2 * 32_768 + 6 * 65_536) / 4e10)
    again = step_seconds(settings("tiny", "gradient_checkpointing=true"), tiny_facts(), machine)
    assert again - plain == pytest.approx(1_066_624 * 2 * 65_536 / 4e10)
    assert step_seconds(settings("tiny", "threads=1"), tiny_facts(), machine) == pytest.approx(2 * plain)


def test_nothing_stands_against_tiny(tmp_path: Path) -> None:
    """The embedded default runs anywhere, offline too."""
    assert make_plan(settings("tiny"), a_machine(tmp_path, is_offline=True))["problems"] == []


def test_a_large_model_without_gpu_is_named(tmp_path: Path) -> None:
    """4b on a CPU: the missing device is the problem, whatever the memory."""
    (problem,) = make_plan(settings("4b"), a_machine(tmp_path))["problems"]
    assert problem == "no CUDA device: 4.0 billion parameters need one"


def test_a_device_that_is_too_small_comes_with_what_would_fit(tmp_path: Path) -> None:
    """A row of tiny takes 1 MiB of cache (128 MiB for 128 rows): 28 MiB short leaves room for 100.

    All parts together: 1,198,391,705 bytes, 1.116 GiB.
    """
    peak = rl_memory(settings("tiny"), tiny_facts()).peak
    plan = make_plan(
        settings("tiny", "sft.max_length=64", "sft.micro_batch_tokens=64"),
        a_machine(tmp_path, gpu_bytes=peak - 28 * 2**20),
    )
    (problem,) = plan["problems"]
    assert problem.startswith("rl may need 1.12 GiB on cuda (GPU), which has 1.09 GiB")
    assert problem.endswith("sampler.max_batch=100 would fit")


def test_weights_that_do_not_fit_call_for_adapters(tmp_path: Path) -> None:
    """7b on 80 GiB: four values a parameter and 0.4 GiB are 114 GiB before anything is generated."""
    problems = make_plan(settings("7b"), a_machine(tmp_path, gpu_bytes=80 * GIB))["problems"]
    (rl,) = [problem for problem in problems if problem.startswith("rl ")]
    assert "weights and optimizer alone take 114 GiB" in rl
    assert "model.lora" in rl


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["model.path=some/model"], UNKNOWN_MODEL),
        (["data.train=missing.jsonl"], "data.train='missing.jsonl' does not exist"),
        (["data.eval=missing.jsonl"], "data.eval='missing.jsonl' does not exist"),
        (["model.dtype=bfloat16"], "without model.lora"),
        (["lora.dropout=0.1"], "model.lora.dropout"),
        (["sampler.type=openai", "base_url=http://h/v1", "sampler.model=m"], "rl refuses sampler.type='openai'"),
    ],
)
def test_what_cannot_be_honoured_is_listed(overrides: list[str], expected: str, tmp_path: Path) -> None:
    """Each is one sentence that names the setting."""
    problems = make_plan(settings("tiny", *overrides), a_machine(tmp_path))["problems"]
    assert [problem for problem in problems if expected in problem] == problems != []


def test_offline_and_not_here_is_a_problem(tmp_path: Path) -> None:
    """Online, the plan says how much will be downloaded: 2 bytes a parameter, 0.251 GiB of SmolLM2."""
    online = make_plan(settings("135m"), a_machine(tmp_path))
    assert online["problems"] == []
    assert online["model"]["download_gib"] == 0.251
    (problem,) = make_plan(settings("135m"), a_machine(tmp_path, is_offline=True))["problems"]
    assert "is not on this machine" in problem


def test_a_full_disk_is_a_problem(tmp_path: Path) -> None:
    """tiny may write 150 MB (0.14 GiB)."""
    (problem,) = make_plan(settings("tiny"), a_machine(tmp_path, disk_bytes=10**8))["problems"]
    assert problem.startswith("rl may write 0.14 GiB and 0.0931 GiB are free")


def test_this_machine_is_read() -> None:
    """Memory, cores and disk are there; a GPU only if the driver lists one."""
    machine = read_machine()
    assert machine.ram_bytes > GIB / 4
    assert machine.num_cores >= 1
    assert machine.free_disk_bytes > 0
    assert machine.device == ("cuda" if machine.gpus else "cpu")
    assert machine.device_bytes == (machine.gpus[0].num_bytes if machine.gpus else machine.ram_bytes)
