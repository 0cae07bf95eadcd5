"""`score_tokens` against the plain form: every row on its own through the model, logits of all positions."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentrl_cli.config.schema import TransformersSamplerConfig
from agentrl_cli.sampler.transformers import TransformersSampler
from agentrl_cli.training import forward
from agentrl_cli.training.forward import GroupBatch, build_group_batch, build_row_batch, score_tokens
from agentrl_cli.types import Problem, SamplingParams, SessionKey, Trajectory

VOCAB = 61
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
KINDS = ["qwen3-tied", "qwen3-untied", "qwen2-tied", "qwen2-untied", "llama-tied", "llama-untied"]


def make_model(kind: str) -> PreTrainedModel:
    name, heads = kind.split("-")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if name == "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=heads == "tied"))
        if name == "qwen2":
            return Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=heads == "tied"))
        return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=heads == "tied"))


def add_adapters(model: PreTrainedModel) -> torch.nn.Module:
    """LoRA on all linear layers, with random weights in the half that starts at zero."""
    wrapped = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules="all-linear"))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    return wrapped


def make_trajectories(group_sizes: Sequence[int] = (3, 1, 2), *, seed: int = 0) -> list[Trajectory]:
    """Groups with prompts of different lengths; rows with masked stretches in the middle and at the end."""
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(1, VOCAB) for _ in range(count)]

    trajectories = []
    for g, size in enumerate(group_sizes):
        prompt = tokens(4 + 3 * g)
        for i in range(size):
            mask = [1] * rng.randint(2, 6) + [0] * rng.randint(1, 3) + [1] * rng.randint(1, 5) + [0] * (i % 2) * 2
            problem = Problem(f"p{g}", "", "")
            trajectories.append(
                Trajectory(
                    id=f"{g}-{i}",
                    problem=problem,
                    group_id=f"g{g}",
                    seed=0,
                    messages=[],
                    tools=[],
                    prompt_ids=list(prompt),
                    ids=tokens(len(mask)),
                    mask=mask,
                )
            )
    return trajectories


def plain_scores(
    model: torch.nn.Module, trajectories: Sequence[Trajectory], *, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of all masked tokens, row after row, from each row's full logits."""
    logps, entropies = [], []
    for t in trajectories:
        sequence = torch.tensor([t.prompt_ids + t.ids])
        logits = model(input_ids=sequence).logits[0, len(t.prompt_ids) - 1 : -1].float()
        keep = torch.tensor(t.mask).bool()
        logp = torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(t.ids)[:, None])[:, 0]
        full = torch.log_softmax(logits, -1)
        logps.append(logp[keep])
        entropies.append(-(full.exp() * full).sum(-1)[keep])
    return torch.cat(logps), torch.cat(entropies)


def eager_copy(model: torch.nn.Module) -> torch.nn.Module:
    """A copy that attends the plainest way."""
    other = copy.deepcopy(model)
    base = other.get_base_model() if hasattr(other, "peft_config") else other
    base.set_attn_implementation("eager")
    return other


def assert_same_gradients(model: torch.nn.Module, plain: torch.nn.Module) -> None:
    compared = 0
    for (name, ours), (_, theirs) in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None, name
            continue
        assert ours.grad is not None, name
        scale = theirs.grad.abs().max()
        assert scale > 0, name
        assert (ours.grad - theirs.grad).abs().max() <= 1e-5 * scale.clamp(min=1.0), name
        compared += 1
    assert compared


@pytest.mark.parametrize("adapters", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_equal_the_plain_form(kind: str, adapters: bool) -> None:
    """Log-probabilities at temperature 0.7, entropies at 1, and the gradient of a weighted sum, to 1e-5."""
    model = add_adapters(make_model(kind)) if adapters else make_model(kind)
    plain = eager_copy(model)
    trajectories = make_trajectories()
    batch = build_group_batch(trajectories, pad_id=0)
    scores = score_tokens(model, batch, temperature=0.7, chunk_tokens=7)
    expected_logp, expected_entropy = plain_scores(plain, trajectories, temperature=0.7)
    assert torch.allclose(scores.logp[batch.mask], expected_logp, atol=1e-5)
    assert torch.allclose(scores.entropy[batch.mask], expected_entropy, atol=1e-5)
    weights = torch.linspace(-1.0, 2.0, len(expected_logp))
    (scores.logp[batch.mask] * weights).sum().backward()
    (expected_logp * weights).sum().backward()
    assert_same_gradients(model, plain)


@pytest.mark.parametrize("adapters", [False, True], ids=["full", "lora"])
def test_gradient_checkpointing_changes_nothing(adapters: bool) -> None:
    """Prompts stay shared under gradient checkpointing, and gradients equal the plain form."""
    model = add_adapters(make_model("qwen3-tied")) if adapters else make_model("qwen3-tied")
    plain = eager_copy(model)
    base = model.get_base_model() if adapters else model
    base.gradient_checkpointing_enable()
    if adapters:
        base.enable_input_require_grads()
    model.train()
    trajectories = make_trajectories()
    batch = build_group_batch(trajectories, pad_id=0)
    scores = score_tokens(model, batch, temperature=1.0)
    expected, _ = plain_scores(plain, trajectories, temperature=1.0)
    assert torch.allclose(scores.logp[batch.mask], expected, atol=1e-5)
    scores.logp.sum().backward()
    expected.sum().backward()
    assert_same_gradients(model, plain)


def test_the_heads_chunks_are_recomputed_without_changing_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks whose logits are dropped and computed again give the plain form's gradients."""
    monkeypatch.setattr(forward, "MAX_KEPT_LOGITS", 0)
    model = make_model("qwen3-tied")
    plain = eager_copy(model)
    trajectories = make_trajectories()
    score_tokens(
        model, build_group_batch(trajectories, pad_id=0), temperature=0.7, chunk_tokens=5
    ).logp.sum().backward()
    plain_scores(plain, trajectories, temperature=0.7)[0].sum().backward()
    assert_same_gradients(model, plain)


def test_each_token_is_computed_once_and_only_trainable_ones_reach_the_head() -> None:
    """One prompt per group and no padding pass the decoder; the head sees the trainable tokens, chunk by chunk."""
    model = make_model("qwen3-untied")
    trajectories = make_trajectories()
    seen: dict[str, list[int]] = {"decoder": [], "head": []}
    model.model.embed_tokens.register_forward_hook(lambda m, args, out: seen["decoder"].append(args[0].numel()))
    model.lm_head.register_forward_hook(lambda m, args, out: seen["head"].append(len(args[0])))
    batch = build_group_batch(trajectories, pad_id=0)
    score_tokens(model, batch, temperature=1.0, chunk_tokens=10)
    # prompts of 4, 7 and 10 tokens, and of each row what stands before its last trainable token
    last = [max(i for i, m in enumerate(t.mask) if m) for t in trajectories]
    assert seen["decoder"] == [4 + 7 + 10 + sum(last)]
    total = sum(sum(t.mask) for t in trajectories)
    assert seen["head"] == [10] * (total // 10) + ([total % 10] if total % 10 else [])


def test_nothing_is_scored_outside_the_mask() -> None:
    """Tool tokens and padding have log-probability and entropy 0, and entropy carries no gradient."""
    batch = build_group_batch(make_trajectories(), pad_id=0)
    scores = score_tokens(make_model("qwen3-tied"), batch, temperature=1.0)
    assert not scores.logp[~batch.mask].any()
    assert not scores.entropy[~batch.mask].any()
    assert (scores.logp[batch.mask] < 0).all()
    assert scores.logp.requires_grad
    assert not scores.entropy.requires_grad


def test_padding_does_not_matter() -> None:
    """Wider padding, and other ids in it, leave every number as it was."""
    model = make_model("qwen3-tied")
    batch = build_group_batch(make_trajectories(), pad_id=0)

    def widen(x: torch.Tensor, fill: int, length: torch.Tensor | None) -> torch.Tensor:
        wide = torch.cat([x, torch.full((len(x), 5), fill, dtype=x.dtype)], dim=1)
        if length is not None:
            wide[torch.arange(wide.shape[1]) >= length[:, None]] = fill
        return wide

    wider = GroupBatch(
        prompt_ids=widen(batch.prompt_ids, 9, batch.prompt_length),
        prompt_length=batch.prompt_length,
        prompt_index=batch.prompt_index,
        ids=widen(batch.ids, 7, batch.length),
        length=batch.length,
        mask=widen(batch.mask, 0, None),
    )
    with torch.no_grad():
        narrow = score_tokens(model, batch, temperature=1.0)
        wide = score_tokens(model, wider, temperature=1.0)
    assert torch.equal(wide.logp[:, : batch.ids.shape[1]], narrow.logp)
    assert not wide.logp[:, batch.ids.shape[1] :].any()


def test_rows_do_not_depend_on_their_neighbours() -> None:
    """Scoring every trajectory in a batch of its own gives the numbers of the common batch."""
    model = make_model("qwen3-tied")
    trajectories = make_trajectories((4, 4))
    with torch.no_grad():
        common = score_tokens(model, build_group_batch(trajectories, pad_id=0), temperature=1.0).logp
        for row, trajectory in zip(common, trajectories, strict=True):
            alone = score_tokens(model, build_group_batch([trajectory], pad_id=0), temperature=1.0).logp[0]
            assert torch.allclose(row[: len(alone)], alone, atol=1e-5)


def test_rows_with_prompts_of_their_own_give_the_same_numbers() -> None:
    """SFT rows are a batch in which nothing is shared."""
    model = make_model("qwen3-tied")
    trajectories = make_trajectories()
    rows = build_row_batch([(t.prompt_ids, t.ids, t.mask) for t in trajectories], pad_id=0)
    assert rows.prompt_index.tolist() == [0, 1, 2, 3, 4, 5]
    with torch.no_grad():
        shared = score_tokens(model, build_group_batch(trajectories, pad_id=0), temperature=1.0)
        own = score_tokens(model, rows, temperature=1.0, with_entropy=False)
    assert torch.allclose(own.logp, shared.logp, atol=1e-5)
    assert not own.entropy.any()


def test_only_equal_prompts_of_one_group_are_shared() -> None:
    """Rows of a group with another prompt, and equal prompts of other groups, get prompts of their own."""
    first, second, third = make_trajectories((3,))
    second.prompt_ids = [*second.prompt_ids[:-1], second.prompt_ids[-1] % 50 + 1]
    third.group_id = "other"
    third.prompt_ids = list(second.prompt_ids)
    assert build_group_batch([first, second, third], pad_id=0).prompt_index.tolist() == [0, 1, 2]


def test_a_batch_without_trainable_tokens_scores_nothing() -> None:
    """Rows that the policy did not write, or that are empty, give zeros and no error."""
    empty, masked, row = make_trajectories((3,))
    empty.ids, empty.mask = [], []
    masked.mask = [0] * len(masked.mask)
    model = make_model("qwen3-tied")
    nothing = score_tokens(model, build_group_batch([empty, masked], pad_id=0), temperature=1.0)
    assert not nothing.logp.any()
    batch = build_group_batch([empty, masked, row], pad_id=0)
    scores = score_tokens(model, batch, temperature=1.0).logp
    assert not scores[:2].any()
    expected, _ = plain_scores(eager_copy(model), [row], temperature=1.0)
    assert torch.allclose(scores[2][batch.mask[2]], expected, atol=1e-5)


def test_train_and_eval_mode_give_the_same_numbers() -> None:
    """Nothing random acts in training mode, attention dropout of the configuration included."""
    model = make_model("qwen3-tied")
    model.config.attention_dropout = 0.5
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    batch = build_group_batch(make_trajectories(), pad_id=0)
    with torch.no_grad():
        training = score_tokens(model.train(), batch, temperature=1.0).logp
        evaluation = score_tokens(model.eval(), batch, temperature=1.0).logp
    assert torch.equal(training, evaluation)


def test_bfloat16_stays_close_to_float32() -> None:
    """In bfloat16 (8 bits of mantissa) mean log-probabilities stay within 0.02, and gradients are finite."""
    model = make_model("qwen3-tied")
    batch = build_group_batch(make_trajectories(), pad_id=0)
    with torch.no_grad():
        exact = score_tokens(model, batch, temperature=1.0).logp
    half = model.to(torch.bfloat16)
    rough = score_tokens(half, batch, temperature=1.0).logp
    assert rough.dtype is torch.float32
    assert abs(float((rough - exact)[batch.mask].detach().mean())) < 0.02
    rough.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in half.parameters() if p.grad is not None)


@pytest.mark.parametrize(("groups", "members"), [(1, 1), (8, 8)])
def test_the_sampler_reports_what_training_computes(groups: int, members: int) -> None:
    """Two turns with tool tokens between them: both sides agree to 1e-4, for 1 and for 64 trajectories."""
    model = make_model("qwen3-tied").eval()
    config = TransformersSamplerConfig(max_batch=64)
    sampler = TransformersSampler(model, config=config, max_length=200, pad_token_id=0)
    trajectories = make_trajectories([members] * groups)

    async def play(t: Trajectory, number: int) -> None:
        tool = t.ids[: 2 + number % 5]
        t.ids, t.mask = [], []
        for turn in range(2):
            params = SamplingParams(max_tokens=5 + number % 9, temperature=0.8, seed=100 * number + turn)
            completion = await sampler.generate(t.prompt_ids + t.ids, params, session=SessionKey(t.id, t.group_id))
            t.ids += completion.ids + tool
            t.mask += [1] * len(completion.ids) + [0] * len(tool)
            t.sampler_logp += completion.logprobs + [0.0] * len(tool)

    async def play_all() -> None:
        await asyncio.gather(*(play(t, i) for i, t in enumerate(trajectories)))

    asyncio.run(play_all())
    with torch.no_grad():
        logp = score_tokens(model, build_group_batch(trajectories, pad_id=0), temperature=0.8).logp
    for row, t in zip(logp, trajectories, strict=True):
        assert torch.allclose(row[: len(t.ids)], torch.tensor(t.sampler_logp), atol=1e-4)


@pytest.mark.gpu
def test_a_gpu_computes_what_the_cpu_computes() -> None:
    """In float32, scores and gradients on a CUDA device equal those of the CPU to 1e-3."""
    model = make_model("qwen3-tied")
    other = copy.deepcopy(model).cuda()
    batch = build_group_batch(make_trajectories(), pad_id=0)
    ours, theirs = score_tokens(model, batch, temperature=0.7), score_tokens(other, batch, temperature=0.7)
    assert torch.allclose(ours.logp, theirs.logp, atol=1e-3)
    ours.logp.sum().backward()
    theirs.logp.sum().backward()
    for (name, a), (_, b) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert a.grad is not None, name
        assert b.grad is not None, name
        assert torch.allclose(a.grad, b.grad.cpu(), atol=1e-3 * float(a.grad.abs().max())), name
