"""The transformers engine: continuous batching, caches, and numbers that agree with a plain forward pass."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl_cli.config.schema import TransformersSamplerConfig
from agentrl_cli.errors import ModelError, SamplerError
from agentrl_cli.sampler import engine
from agentrl_cli.sampler.transformers import TransformersSampler
from agentrl_cli.types import Completion, FinishReason, SamplingParams, SessionKey

VOCAB = 97
STOP = 1


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    """A random two-layer model whose distributions are far from flat."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            initializer_range=0.2,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        return Qwen3ForCausalLM(config).eval()


def make(model: torch.nn.Module, *, max_batch: int = 128, max_length: int = 400) -> TransformersSampler:
    config = TransformersSamplerConfig(max_batch=max_batch)
    return TransformersSampler(model, config=config, max_length=max_length, pad_token_id=0)


def tokens(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2, VOCAB) for _ in range(count)]


def key(trajectory: object, group: object = "") -> SessionKey:
    return SessionKey(str(trajectory), str(group))


def run(job: Coroutine[Any, Any, Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(60):
            return await job

    return asyncio.run(limited())


async def together(*jobs: Coroutine[Any, Any, Completion]) -> list[Completion]:
    return await asyncio.gather(*jobs)


@torch.no_grad()
def plain_logprobs(
    model: torch.nn.Module, prompt: Sequence[int], ids: Sequence[int], temperature: float
) -> list[float]:
    """Log-probabilities of a continuation from one plain forward pass over the whole sequence."""
    logits = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float() / temperature, -1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


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


def test_only_new_tokens_are_read_in_a_trajectorys_next_turn(model: Qwen3ForCausalLM) -> None:
    """Turn 2 reads the last drawn token and the 7 tool tokens; a changed history is read from the change on."""
    sampler = make(model)

    async def play() -> list[int]:
        counts = []
        prompt = tokens(30, 0)
        first = await sampler.generate(prompt, SamplingParams(max_tokens=5, seed=1), session=key(0, "g"))
        counts.append(sampler.usage.tokens_read)
        sequence = prompt + first.ids + tokens(7, 1)
        second = await sampler.generate(sequence, SamplingParams(max_tokens=5, seed=2), session=key(0, "g"))
        counts.append(sampler.usage.tokens_read)
        # 30 + 5 + 7 + 5 tokens so far; all but the last one are stored. The 3rd tool token is replaced.
        changed = [*sequence[:37], 2 if sequence[37] != 2 else 3, *sequence[38:], *second.ids]
        third = await sampler.generate(changed, SamplingParams(max_tokens=5, seed=2), session=key(0, "g"))
        counts.append(sampler.usage.tokens_read)
        assert third.logprobs == pytest.approx(plain_logprobs(model, changed, third.ids, 1.0), abs=1e-4)
        return counts

    # 30; then 1 + 7 more; then positions 37..46, 10 tokens, more
    assert run(play()) == [30, 38, 48]


@pytest.mark.parametrize("group", ["", "g"])
def test_what_is_stored_already_can_be_asked_for_again(model: Qwen3ForCausalLM, group: str) -> None:
    """A prompt that is stored to its last token, or beyond it, gives the numbers that it gave first."""
    sampler = make(model)
    prompt, params = tokens(10, 0), SamplingParams(max_tokens=6, seed=1)
    first = run(sampler.generate(prompt, params, session=key(0, group)))
    longer = prompt + first.ids[:3]
    second = run(sampler.generate(longer, params, session=key(0, group)))
    assert second.logprobs == pytest.approx(plain_logprobs(model, longer, second.ids, 1.0), abs=1e-4)
    again = run(sampler.generate(prompt, params, session=key(0, group)))
    assert again.ids == first.ids


def test_the_trajectory_that_waits_longest_is_evicted(model: Qwen3ForCausalLM) -> None:
    """Of two parked trajectories the one parked first gives way: the other goes on by reading only what is new."""
    sampler = make(model, max_batch=2)
    params = SamplingParams(max_tokens=4, seed=1)
    run(sampler.generate(tokens(10, 0), params, session=key("first")))
    second = run(sampler.generate(tokens(10, 1), params, session=key("second")))
    run(sampler.generate(tokens(10, 2), params, session=key("third")))
    before = sampler.usage.tokens_read
    run(sampler.generate(tokens(10, 1) + second.ids + [5, 6], params, session=key("second")))
    # the last drawn token and the two new ones
    assert sampler.usage.tokens_read - before == 3


def test_a_later_member_joins_its_groups_prompt_without_reading_it(model: Qwen3ForCausalLM) -> None:
    """The prompt of a group is read once, also for members that come while others generate or wait."""
    sampler = make(model)
    prompt = tokens(30, 0)

    async def play() -> list[Completion]:
        first = await sampler.generate(prompt, SamplingParams(max_tokens=5, seed=1), session=key(0, "g"))
        second = await sampler.generate(prompt, SamplingParams(max_tokens=5, seed=1), session=key(1, "g"))
        return [first, second]

    first, second = run(play())
    assert sampler.usage.tokens_read == 30
    assert first.ids == second.ids
    run(sampler.release("0"))
    run(sampler.release("1"))
    run(sampler.generate(prompt, SamplingParams(max_tokens=5), session=key(2, "g")))
    assert sampler.usage.tokens_read == 60


def test_requests_join_and_leave_while_others_generate(model: Qwen3ForCausalLM) -> None:
    """Requests that come at odd moments share steps with those under way, and all numbers stay right."""
    sampler = make(model)
    prompts = {i: tokens(4 + i, i) for i in range(12)}

    async def late(i: int) -> Completion:
        for _ in range(3 * i):
            await asyncio.sleep(0)
        session = key(i, i % 3) if i % 4 else None
        return await sampler.generate(prompts[i], SamplingParams(max_tokens=30 - 2 * i, seed=i), session=session)

    completions = run(together(*(late(i) for i in range(12))))
    for i, completion in enumerate(completions):
        expected = plain_logprobs(model, prompts[i], completion.ids, 1.0)
        assert len(completion.ids) == 30 - 2 * i
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
    # 228 tokens (30 + 28 + ... + 8) were drawn in fewer steps than one by one, and in more than the longest alone
    assert 30 <= sampler.usage.num_passes < 100


def test_more_requests_than_places_queue(model: Qwen3ForCausalLM) -> None:
    """With 3 places 10 requests are all answered, with the numbers that they have alone."""
    sampler = make(model, max_batch=3)
    params = [SamplingParams(max_tokens=3 + i, seed=i) for i in range(10)]
    completions = run(together(*(sampler.generate(tokens(5 + i, i), params[i]) for i in range(10))))
    for i, completion in enumerate(completions):
        assert completion.ids == run(make(model).generate(tokens(5 + i, i), params[i])).ids


def test_parked_trajectories_give_way_and_are_read_again(model: Qwen3ForCausalLM) -> None:
    """Six trajectories take turns in 2 places: caches are evicted, numbers stay right, nothing blocks."""
    sampler = make(model, max_batch=2)

    async def play(i: int) -> tuple[list[int], int, Completion]:
        sequence = tokens(9, i % 2)
        for turn in range(3):
            start = len(sequence)
            params = SamplingParams(max_tokens=5, seed=10 * i + turn)
            completion = await sampler.generate(sequence, params, session=key(i, i % 2))
            sequence = sequence + completion.ids + tokens(4, i)
            await asyncio.sleep(0)
        return sequence, start, completion

    async def play_all() -> list[Any]:
        return await asyncio.gather(*(play(i) for i in range(6)))

    for sequence, start, completion in run(play_all()):
        assert completion.logprobs == pytest.approx(
            plain_logprobs(model, sequence[:start], completion.ids, 1.0), abs=1e-4
        )
    assert sampler.usage.num_evictions > 0


def test_groups_that_end_make_room_without_disturbing_others(model: Qwen3ForCausalLM) -> None:
    """Five groups of two; each is released amid the steps of later ones: their prompts move, no number changes."""
    sampler = make(model)
    prompts = [tokens(8 + 5 * g, g) for g in range(5)]

    async def play(group: int, member: int) -> Completion:
        params = SamplingParams(max_tokens=4 + 6 * group + member, seed=10 * group + member)
        name = f"{group}-{member}"
        completion = await sampler.generate(prompts[group], params, session=key(name, group))
        for _ in range(2):
            await asyncio.sleep(0)
        await sampler.release(name)
        return completion

    completions = run(together(*(play(g, m) for g in range(5) for m in range(2))))
    for i, completion in enumerate(completions):
        expected = plain_logprobs(model, prompts[i // 2], completion.ids, 1.0)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_groups_replace_each_other_in_few_places(model: Qwen3ForCausalLM) -> None:
    """Parked members of old groups are evicted by members of new ones that are admitted together."""
    sampler = make(model, max_batch=3)

    async def play_all() -> None:
        for start in range(0, 12, 3):
            prompts = [tokens(6 + start + i, start + i) for i in range(3)]
            jobs = [
                sampler.generate(p, SamplingParams(max_tokens=5 + i, seed=i), session=key(start + i, start + i))
                for i, p in enumerate(prompts)
            ]
            for prompt, completion in zip(prompts, await asyncio.gather(*jobs), strict=True):
                expected = plain_logprobs(model, prompt, completion.ids, 1.0)
                assert completion.logprobs == pytest.approx(expected, abs=1e-4)

    run(play_all())
    assert sampler.usage.num_evictions == 9


def test_a_new_group_takes_the_place_of_one_that_its_neighbour_evicted(model: Qwen3ForCausalLM) -> None:
    """Of two new groups, the second evicts the last member of an old one before the first has been read."""
    sampler = make(model, max_batch=3)
    params = SamplingParams(max_tokens=5, seed=1)
    for name, group in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        run(sampler.generate(tokens(9, ord(group)), params, session=key(name, group)))
    prompts = [tokens(7, 1), tokens(12, 2)]
    jobs = [sampler.generate(p, params, session=key(i, i)) for i, p in enumerate(prompts)]
    for prompt, completion in zip(prompts, run(together(*jobs)), strict=True):
        assert completion.logprobs == pytest.approx(plain_logprobs(model, prompt, completion.ids, 1.0), abs=1e-4)


def test_long_rests_are_read_in_pieces(model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading 50 tokens 16 at a time, in passes of 40, gives the numbers of reading them at once."""
    monkeypatch.setattr(engine, "MAX_PIECE_TOKENS", 16)
    monkeypatch.setattr(engine, "MAX_PASS_TOKENS", 40)
    sampler = make(model)

    async def play(i: int) -> tuple[list[int], Completion]:
        first = await sampler.generate(tokens(30, i), SamplingParams(max_tokens=3, seed=i), session=key(i, i % 2))
        sequence = tokens(30, i) + first.ids + tokens(50 - 7 * i, i)
        params = SamplingParams(max_tokens=4, seed=i)
        return sequence, await sampler.generate(sequence, params, session=key(i, i % 2))

    async def play_all() -> list[Any]:
        return await asyncio.gather(*(play(i) for i in range(5)))

    for sequence, completion in run(play_all()):
        assert completion.logprobs == pytest.approx(plain_logprobs(model, sequence, completion.ids, 1.0), abs=1e-4)


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
        raise RuntimeError("out of memory")

    hook = model.model.layers[1].register_forward_pre_hook(explode)
    try:
        failures = run(play())
    finally:
        hook.remove()
    assert [type(f) for f in failures] == [SamplerError] * 4
    assert all("out of memory" in str(f) and isinstance(f.__cause__, RuntimeError) for f in failures)
    assert [len(c.ids) for c in run(play())] == [9] * 4


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
