"""The transformers sampler around its engine: cancelling, new weights, pausing, failing, closing."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl_cli.errors import ModelError, OutOfMemoryError, SamplerError
from agentrl_cli.types import Completion, FinishReason, SamplingParams
from tests.unit.sampler_model import build_model, key, make, plain_logprobs, run, together, tokens


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    """The small model, shared by this file's tests."""
    return build_model()


def test_a_cancelled_request_frees_its_place_at_once(model: Qwen3ForCausalLM) -> None:
    """With one place, cancelling its request lets the next one in, though it had 390 tokens to go."""
    sampler = make(model, max_batch=1)

    async def play() -> Completion:
        long = asyncio.create_task(sampler.generate(tokens(5, 0), SamplingParams(max_tokens=390), session=key(0)))
        waiting = asyncio.create_task(sampler.generate(tokens(5, 1), SamplingParams(max_tokens=4)))
        queued = asyncio.create_task(sampler.generate(tokens(5, 2), SamplingParams(max_tokens=4)))
        for _ in range(5):
            await asyncio.sleep(0)
        queued.cancel()
        long.cancel()
        completion = await waiting
        assert long.cancelled()
        assert queued.cancelled()
        return completion

    assert len(run(play()).ids) == 4
    assert sampler.usage.tokens_drawn < 20


def test_new_weights_drop_every_cache(model: Qwen3ForCausalLM) -> None:
    """After `update_weights` a trajectory and its group's prompt are read again under the new weights."""
    sampler = make(model)
    prompt = tokens(20, 0)
    first = run(sampler.generate(prompt, SamplingParams(max_tokens=5, seed=1), session=key(0, "g")))
    assert first.weight_version == 0
    sequence = prompt + first.ids + tokens(3, 1)
    weight = model.model.layers[0].self_attn.k_proj.weight
    with torch.no_grad():
        weight.mul_(1.5)
    try:
        run(sampler.update_weights(7))
        completions = run(
            together(
                sampler.generate(sequence, SamplingParams(max_tokens=5, seed=2), session=key(0, "g")),
                sampler.generate(prompt, SamplingParams(max_tokens=5, seed=3), session=key(1, "h")),
            )
        )
        for start, completion in zip((sequence, prompt), completions, strict=True):
            assert completion.weight_version == sampler.weight_version == 7
            expected = plain_logprobs(model, start, completion.ids, 1.0)
            assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    finally:
        with torch.no_grad():
            weight.div_(1.5)


def test_new_weights_restart_what_is_under_way(model: Qwen3ForCausalLM) -> None:
    """A completion never mixes two versions: it starts over, with what the new weights draw for its seed."""
    changed = copy.deepcopy(model)
    sampler = make(changed)
    params = SamplingParams(max_tokens=12, seed=4)

    async def play() -> Completion:
        task = asyncio.create_task(sampler.generate(tokens(5, 0), params, session=key(0, "g")))
        for _ in range(5):
            await asyncio.sleep(0)
        with torch.no_grad():
            changed.model.layers[0].self_attn.v_proj.weight.mul_(-1.0)
        await sampler.update_weights(1)
        return await task

    completion = run(play())
    assert completion.weight_version == 1
    expected = run(make(changed).generate(tokens(5, 0), params))
    assert completion.ids == expected.ids
    assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-5)


def test_a_paused_sampler_holds_no_cache_and_goes_on_later(model: Qwen3ForCausalLM) -> None:
    """`pause` frees the stores and stops drawing; after `resume` the completion ends as if nothing had been."""
    sampler = make(model)
    params = SamplingParams(max_tokens=12, seed=4)

    async def play() -> Completion:
        task = asyncio.create_task(sampler.generate(tokens(5, 0), params, session=key(0, "g")))
        for _ in range(5):
            await asyncio.sleep(0)
        await sampler.pause()
        drawn = sampler.usage.tokens_drawn
        assert 0 < drawn < 12
        assert sampler.cache_bytes == 0
        for _ in range(5):
            await asyncio.sleep(0)
        assert sampler.usage.tokens_drawn == drawn
        await sampler.resume()
        return await task

    completion = run(play())
    assert completion.ids == run(make(model).generate(tokens(5, 0), params)).ids
    assert sampler.usage.tokens_drawn == 12


def test_a_failing_model_fails_every_request_and_the_sampler_recovers(model: Qwen3ForCausalLM) -> None:
    """An error inside a step reaches all who wait as `SamplerError`; later requests work again."""
    sampler = make(model, max_batch=2)

    async def play() -> list[Any]:
        jobs = [sampler.generate(tokens(5, i), SamplingParams(max_tokens=9), session=key(i, "g")) for i in range(4)]
        return await asyncio.gather(*jobs, return_exceptions=True)

    def explode(module: torch.nn.Module, args: object) -> None:
        raise RuntimeError("shapes do not match")

    hook = model.model.layers[1].register_forward_pre_hook(explode)
    try:
        failures = run(play())
    finally:
        hook.remove()
    assert [type(f) for f in failures] == [SamplerError] * 4
    assert all("shapes do not match" in str(f) and isinstance(f.__cause__, RuntimeError) for f in failures)
    assert [len(c.ids) for c in run(play())] == [9] * 4


def test_a_lack_of_memory_is_no_failure_of_the_infrastructure(model: Qwen3ForCausalLM) -> None:
    """It would strike the next trajectory, too: an error of its own, which names what to lower, ends the run."""
    sampler = make(model)

    def allocate(module: torch.nn.Module, args: object) -> None:
        torch.empty(2**50)

    hook = model.model.layers[1].register_forward_pre_hook(allocate)
    try:
        with pytest.raises(OutOfMemoryError, match="out of memory while generating") as caught:
            run(sampler.generate(tokens(5, 0), SamplingParams(max_tokens=9), session=key(0, "g")))
    finally:
        hook.remove()
    assert "sampler.max_batch" in caught.value.hint


def test_logits_that_are_not_finite_are_an_error(model: Qwen3ForCausalLM) -> None:
    """Broken weights end in a message, not in tokens."""
    weight = model.model.norm.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    try:
        with pytest.raises(SamplerError, match="not finite"):
            run(make(model).generate(tokens(5, 0), SamplingParams(max_tokens=3)))
    finally:
        with torch.no_grad():
            weight.copy_(kept)


def test_what_does_not_fit_is_refused(model: Qwen3ForCausalLM) -> None:
    """Empty and over-long prompts and empty limits are errors; a completion ends where the engine does."""
    sampler = make(model, max_length=10)
    with pytest.raises(SamplerError, match="prompt of 10 tokens does not fit: the engine takes 1 to 9"):
        run(sampler.generate(tokens(10, 0), SamplingParams(max_tokens=1)))
    with pytest.raises(SamplerError, match="prompt of 0 tokens"):
        run(sampler.generate([], SamplingParams(max_tokens=1)))
    with pytest.raises(SamplerError, match="max_tokens=0"):
        run(sampler.generate([5], SamplingParams(max_tokens=0)))
    completion = run(sampler.generate(tokens(8, 0), SamplingParams(max_tokens=50)))
    assert (len(completion.ids), completion.finish_reason) == (2, FinishReason.LENGTH)


def test_a_trajectory_generates_one_completion_at_a_time(model: Qwen3ForCausalLM) -> None:
    """A second request of the same trajectory is refused while the first is queued or under way."""
    sampler = make(model)
    jobs = [sampler.generate(tokens(5, 0), SamplingParams(max_tokens=3), session=key(0)) for _ in range(2)]

    async def play() -> list[Any]:
        return await asyncio.gather(*jobs, return_exceptions=True)

    first, second = run(play())
    assert len(first.ids) == 3
    assert isinstance(second, SamplerError)


def test_release_and_close_end_what_is_under_way(model: Qwen3ForCausalLM) -> None:
    """A released trajectory's request fails, unknown ids are ignored, and a closed sampler refuses."""
    sampler = make(model)

    async def play() -> list[Any]:
        jobs = [sampler.generate(tokens(5, i), SamplingParams(max_tokens=300), session=key(i, "g")) for i in range(2)]
        tasks = [asyncio.create_task(job) for job in jobs]
        for _ in range(4):
            await asyncio.sleep(0)
        await sampler.release("nobody")
        await sampler.release("0")
        await sampler.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    released, closed = run(play())
    assert "released" in str(released)
    assert "closed" in str(closed)
    with pytest.raises(SamplerError, match="closed"):
        run(sampler.generate([5], SamplingParams(max_tokens=1)))


def test_a_request_without_a_session_leaves_nothing_behind(model: Qwen3ForCausalLM) -> None:
    """Places of finished requests without a trajectory are free again: nobody is ever evicted for them."""
    sampler = make(model, max_batch=2)
    for seed in range(5):
        run(sampler.generate(tokens(5, 0), SamplingParams(max_tokens=3, seed=seed)))
    assert sampler.usage.num_evictions == 0


def test_the_modules_training_mode_comes_back(model: Qwen3ForCausalLM) -> None:
    """Sampling runs in eval mode and leaves the module as it found it, without gradients on anything."""
    model.train()
    try:
        run(make(model).generate(tokens(5, 0), SamplingParams(max_tokens=3)))
        assert model.training
        assert all(p.grad is None for p in model.parameters())
    finally:
        model.eval()


def test_others_can_use_the_model_as_before(model: Qwen3ForCausalLM) -> None:
    """With our attention in place, padded batches of a plain call still see their mask."""
    make(model)
    assert model.config._attn_implementation == "agentrl"
    row = torch.tensor([tokens(6, 0)])
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.int64), row], dim=1)
    mask = torch.tensor([[0] * 3 + [1] * 6])
    positions = torch.tensor([[0] * 3 + list(range(6))])
    with torch.no_grad():
        plain = model(input_ids=row).logits
        masked = model(input_ids=padded, attention_mask=mask, position_ids=positions).logits[:, 3:]
    assert torch.allclose(plain, masked, atol=1e-5)


def test_unsupported_architectures_are_refused_by_name() -> None:
    """A model with sliding windows, and something that is no language model, are refused at the start."""
    config = Qwen3Config(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        use_sliding_window=True,
        sliding_window=4,
        max_window_layers=1,
    )
    with pytest.raises(ModelError, match="sliding_attention"):
        make(Qwen3ForCausalLM(config))
    with pytest.raises(ModelError, match="Linear is no causal language model"):
        make(torch.nn.Linear(2, 2))
