"""Turning logits and uniform numbers into tokens."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl_cli.sampler.sampling import DrawSettings, UniformStream, draw
from agentrl_cli.types import SamplingParams

# probabilities 1/2, 1/4, 1/8, 1/8 at temperature 1; the distribution function is 0.5, 0.75, 0.875, 1
LOGITS = torch.tensor([math.log(8), math.log(4), math.log(2), math.log(2)])


def drawn(uniforms: list[float], *, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> list[int]:
    """Draw one token per uniform number from LOGITS."""
    params = [SamplingParams(max_tokens=1, temperature=temperature, top_p=top_p, top_k=top_k)] * len(uniforms)
    settings = DrawSettings.of(params, device=torch.device("cpu"))
    logits = LOGITS.expand(len(uniforms), -1)
    ids, _ = draw(logits, torch.tensor(uniforms, dtype=torch.float64), settings=settings)
    return ids.tolist()


def test_a_token_is_where_the_distribution_function_passes_the_number() -> None:
    """Each number falls into the stretch of its token."""
    assert drawn([0.0, 0.499, 0.501, 0.749, 0.751, 0.874, 0.876, 1 - 2**-53]) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_temperature_flattens() -> None:
    """At temperature 2 the weights are sqrt(8), 2, sqrt(2), sqrt(2) of 7.657: the first stretch ends at 0.3694."""
    assert drawn([0.369, 0.370], temperature=2.0) == [0, 1]


def test_greedy_takes_the_likeliest_whatever_the_number() -> None:
    """Temperature 0 ignores the random number."""
    assert drawn([0.0, 0.9], temperature=0.0) == [0, 0]


def test_top_k_draws_among_the_likeliest() -> None:
    """Two tokens of weight 1/2 and 1/4 remain: the first has 2/3."""
    assert drawn([0.66, 0.67, 0.999], top_k=2) == [0, 1, 1]


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    """0.6 needs 1/2 + 1/4; 0.4 needs only the first token."""
    assert drawn([0.66, 0.67, 0.999], top_p=0.6) == [0, 1, 1]
    assert drawn([0.999], top_p=0.4) == [0]


def test_top_p_counts_after_top_k() -> None:
    """Among the two that top_k leaves, the first has 2/3 and reaches 0.6 alone."""
    assert drawn([0.999], top_k=2, top_p=0.6) == [0]


def test_log_probabilities_are_of_the_full_softmax() -> None:
    """top_k, top_p and greedy do not change what is reported; temperature does, and greedy reports at 1."""
    params = [
        SamplingParams(max_tokens=1, top_k=1),
        SamplingParams(max_tokens=1, top_p=0.1),
        SamplingParams(max_tokens=1, temperature=0.0),
        SamplingParams(max_tokens=1, temperature=2.0),
    ]
    settings = DrawSettings.of(params, device=torch.device("cpu"))
    _, logp = draw(LOGITS.expand(4, -1), torch.zeros(4, dtype=torch.float64), settings=settings)
    # at temperature 2 the first of sqrt(8), 2, sqrt(2), sqrt(2): 2.8284 / 7.6569 = 0.36940
    assert logp.tolist() == pytest.approx([math.log(0.5)] * 3 + [math.log(0.36940)], abs=1e-4)


def test_rows_of_a_batch_keep_their_own_settings() -> None:
    """A greedy row, a top_k row and a plain row side by side draw as they would alone."""
    params = [
        SamplingParams(max_tokens=1, temperature=0.0),
        SamplingParams(max_tokens=1, top_k=2),
        SamplingParams(max_tokens=1),
    ]
    settings = DrawSettings.of(params, device=torch.device("cpu"))
    ids, _ = draw(LOGITS.expand(3, -1), torch.full((3,), 0.9, dtype=torch.float64), settings=settings)
    assert ids.tolist() == [0, 1, 3]


def test_a_token_without_probability_is_never_drawn() -> None:
    """A number that falls exactly on the edge of an empty stretch goes to the next token that has weight."""
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]]).expand(3, -1)
    settings = DrawSettings.of([SamplingParams(max_tokens=1)] * 3, device=torch.device("cpu"))
    ids, _ = draw(logits, torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64), settings=settings)
    assert ids.tolist() == [1, 3, 3]


def test_a_stream_depends_on_seed_and_position_alone() -> None:
    """Numbers can be read in any order, differ between seeds, and look uniform."""
    forward, backward = UniformStream(5), UniformStream(5)
    numbers = [forward.at(i) for i in range(1000)]
    assert [backward.at(i) for i in reversed(range(1000))] == numbers[::-1]
    assert UniformStream(6).at(0) != numbers[0]
    # the mean of 1000 uniform numbers has a standard deviation of 0.2887 / sqrt(1000) = 0.0091
    assert abs(sum(numbers) / 1000 - 0.5) < 5 * 0.0091


def test_draws_follow_the_distribution() -> None:
    """Of 4000 draws, token 0 (p = 1/2, sd 31.6) and token 1 (p = 1/4, sd 27.4) come up as often as they should."""
    ids = drawn([UniformStream(seed).at(3) for seed in range(4000)])
    assert abs(ids.count(0) - 2000) < 5 * 31.6
    assert abs(ids.count(1) - 1000) < 5 * 27.4
