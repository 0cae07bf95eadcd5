"""The engine's caches: what is read again and what is not, who joins, queues, parks and is evicted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from transformers import Qwen3ForCausalLM

from agentrl_cli.sampler import engine
from agentrl_cli.types import Completion, SamplingParams
from tests.unit.sampler_model import build_model, key, make, plain_logprobs, run, together, tokens


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    """The small model, shared by this file's tests."""
    return build_model()


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
