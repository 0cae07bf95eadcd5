"""The scripted sampler."""

from __future__ import annotations

import asyncio

import pytest

from agentrl_cli.errors import SamplerError
from agentrl_cli.sampler.scripted import ScriptedSampler
from agentrl_cli.types import Completion, FinishReason, SamplingParams

STOP = 9


class LetterTokenizer:
    """a is 1, b is 2, ..."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) - ord("a") + 1 for letter in text]


def generate(sampler: ScriptedSampler, *, max_tokens: int = 100, prompt: tuple[int, ...] = (5,)) -> Completion:
    return asyncio.run(sampler.generate(prompt, SamplingParams(max_tokens=max_tokens, stop_token_ids=(STOP,))))


def test_the_script_sees_the_prompt_and_makes_the_reply() -> None:
    """The reply is the script's, closed with the stop token, with the given log-probability per token."""
    sampler = ScriptedSampler(lambda prompt, params, session: [sum(prompt)], logprob=-0.5)
    assert generate(sampler, prompt=(3, 4)) == Completion([7, STOP], [-0.5, -0.5], FinishReason.STOP, 0)


def test_a_reply_ends_at_its_first_stop_token() -> None:
    """What the script says behind a stop token is not said."""
    assert generate(ScriptedSampler(lambda *_: [1, STOP, 2])).ids == [1, STOP]


def test_a_reply_is_cut_at_the_limit() -> None:
    """A cut reply has no stop token and says LENGTH; one that just fits is not cut."""
    sampler = ScriptedSampler(lambda *_: [1, 2])
    assert generate(sampler, max_tokens=2) == Completion([1, 2], [0.0, 0.0], FinishReason.LENGTH, 0)
    assert generate(sampler, max_tokens=3) == Completion([1, 2, STOP], [0.0] * 3, FinishReason.STOP, 0)


def test_texts_are_replied_in_order_until_there_is_none_left() -> None:
    """One text per request; a request too many is an engine failure."""
    sampler = ScriptedSampler.of_texts(["ab", "c"], LetterTokenizer())
    assert [generate(sampler).ids, generate(sampler).ids] == [[1, 2, STOP], [3, STOP]]
    with pytest.raises(SamplerError, match="no reply left after 2"):
        generate(sampler)


def test_completions_carry_the_weight_version() -> None:
    """`update_weights` names the version of what follows."""
    sampler = ScriptedSampler(lambda *_: [1])
    asyncio.run(sampler.update_weights(3))
    assert (sampler.weight_version, generate(sampler).weight_version) == (3, 3)


def test_a_closed_sampler_refuses() -> None:
    """After close every request fails."""
    sampler = ScriptedSampler(lambda *_: [1])
    asyncio.run(sampler.close())
    with pytest.raises(SamplerError, match="closed"):
        generate(sampler)
