"""What the transformers engine draws: numbers that agree with a plain forward pass, whatever shares the batch."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import torch
from transformers import Qwen3ForCausalLM

from agentrl_cli.sampler.transformers import TransformersSampler
from agentrl_cli.types import Completion, FinishReason, SamplingParams
from tests.unit.sampler_model import STOP, build_model, key, make, plain_logprobs, run, together, tokens


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    """The small model, shared by this file's tests."""
    return build_model()


def test_greedy_draws_what_transformers_draws(model: Qwen3ForCausalLM) -> None:
    """Prompts of different lengths in one batch, with and without a group, match `model.generate` one by one."""
    prompts = [tokens(n, n) for n in (1, 7, 30)]
    params = SamplingParams(max_tokens=15, temperature=0.0)
    sampler = make(model)
    completions = run(
        together(
            *(sampler.generate(p, params, session=key(i, i)) for i, p in enumerate(prompts)),
            *(sampler.generate(p, params) for p in prompts),
        )
    )
    for prompt, grouped, alone in zip(prompts, completions[:3], completions[3:], strict=True):
        output = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=15)
        assert grouped.ids == alone.ids == output[0, len(prompt) :].tolist()


@pytest.mark.parametrize("num_groups", [1, 8])
def test_logprobs_agree_with_a_plain_forward_pass_over_several_turns(model: Qwen3ForCausalLM, num_groups: int) -> None:
    """Three turns with tool tokens between them, in groups of 8: what was reported is what the model says."""
    sampler = make(model)

    async def play(group: int, member: int) -> tuple[list[int], list[tuple[int, Completion]]]:
        sequence = tokens(20 + group, group)
        turns = []
        for turn in range(3):
            seed = 100 * group + 10 * member + turn
            params = SamplingParams(max_tokens=6 + member, temperature=0.8, seed=seed, stop_token_ids=(STOP,))
            completion = await sampler.generate(sequence, params, session=key(f"{group}-{member}", group))
            turns.append((len(sequence), completion))
            sequence = sequence + completion.ids + tokens(3 + member, seed)
        return sequence, turns

    async def play_all() -> list[Any]:
        return await asyncio.gather(*(play(g, m) for g in range(num_groups) for m in range(8)))

    for sequence, turns in run(play_all()):
        for start, completion in turns:
            expected = plain_logprobs(model, sequence[:start], completion.ids, 0.8)
            assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_shared_prompt_changes_no_number(model: Qwen3ForCausalLM) -> None:
    """A group of 6 and 6 trajectories of their own draw the same tokens with the same log-probabilities."""
    prompt = tokens(40, 0)

    def jobs(sampler: TransformersSampler, group: str) -> list[Coroutine[Any, Any, Completion]]:
        return [
            sampler.generate(prompt, SamplingParams(max_tokens=20, seed=i), session=key(i, group)) for i in range(6)
        ]

    shared, own = make(model), make(model)
    together_, apart = run(together(*jobs(shared, "g"))), run(together(*jobs(own, "")))
    for a, b in zip(together_, apart, strict=True):
        assert a.ids == b.ids
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-5)
    assert (shared.usage.tokens_read, own.usage.tokens_read) == (40, 6 * 40)


def test_a_group_member_with_another_prompt_stands_alone(model: Qwen3ForCausalLM) -> None:
    """The group's name alone shares nothing: a different prompt gets its own numbers."""
    sampler = make(model)
    params = SamplingParams(max_tokens=8, temperature=0.0)
    prompts = [tokens(10, 0), tokens(10, 1), tokens(10, 0)[:5]]
    completions = run(together(*(sampler.generate(p, params, session=key(i, "g")) for i, p in enumerate(prompts))))
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.logprobs == pytest.approx(plain_logprobs(model, prompt, completion.ids, 1.0), abs=1e-5)


def test_drawn_tokens_do_not_depend_on_the_rest_of_the_batch(model: Qwen3ForCausalLM) -> None:
    """A request among 40 others of other lengths, temperatures and groups draws what it draws alone."""
    prompt, params = tokens(12, 0), SamplingParams(max_tokens=25, seed=3)
    alone = run(make(model).generate(prompt, params))
    sampler = make(model)
    others = [
        sampler.generate(
            tokens(3 + i, i),
            SamplingParams(max_tokens=5 + i, temperature=0.5 + i / 40, seed=i),
            session=key(i, i % 5) if i % 2 else None,
        )
        for i in range(40)
    ]
    among = run(together(*others[:20], sampler.generate(prompt, params), *others[20:]))[20]
    assert among.ids == alone.ids
    assert among.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_seeds_decide_what_is_drawn(model: Qwen3ForCausalLM) -> None:
    """Equal seeds repeat to the bit, another seed draws something else."""
    prompt = tokens(12, 0)

    def sample(seed: int) -> Completion:
        completion: Completion = run(make(model).generate(prompt, SamplingParams(max_tokens=20, seed=seed)))
        return completion

    assert sample(1) == sample(1)
    assert sample(1).ids != sample(2).ids


def test_a_whole_round_repeats_to_the_bit(model: Qwen3ForCausalLM) -> None:
    """Requests that are submitted together give equal bits in every run, log-probabilities included."""

    def play() -> list[Completion]:
        sampler = make(model)
        jobs = [
            sampler.generate(
                tokens(5 + i % 7, i % 7),
                SamplingParams(max_tokens=4 + i, seed=i, stop_token_ids=(STOP,)),
                session=key(i, i % 7),
            )
            for i in range(30)
        ]
        completions: list[Completion] = run(together(*jobs))
        return completions

    assert play() == play()


def test_a_stop_token_ends_a_completion_and_is_part_of_it(model: Qwen3ForCausalLM) -> None:
    """The first stop token drawn is the last token; without one the limit ends it."""
    prompt = tokens(12, 0)
    free = run(make(model).generate(prompt, SamplingParams(max_tokens=20, seed=1)))
    assert free.finish_reason is FinishReason.LENGTH
    assert len(free.ids) == len(free.logprobs) == 20
    stop = free.ids[9]
    params = SamplingParams(max_tokens=20, seed=1, stop_token_ids=(STOP, stop))
    stopped = run(make(model).generate(prompt, params))
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.ids == free.ids[: free.ids.index(stop) + 1]
