"""The training phase: how a step is cut up changes nothing, and what can't teach is not computed."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl_cli.config.grpo import GrpoConfig
from agentrl_cli.config.schema import OptimConfig
from agentrl_cli.errors import TrainingError
from agentrl_cli.training.optimizer import build_optimizer
from agentrl_cli.training.sampling import Group
from agentrl_cli.training.update import (
    StepPlan,
    UpdateResult,
    cut_micro_batches,
    loss_settings,
    split_groups,
    train_on_groups,
)
from agentrl_cli.types import Problem, Trajectory

OPTIM = OptimConfig(learning_rate=1e-2, weight_decay=0.0, max_grad_norm=1e9)


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    """Two random layers."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


def make_groups(advantages: list[list[float]]) -> list[Group]:
    """Return groups of random tokens with these advantages."""
    rng = random.Random(1)
    groups = []
    for g, row in enumerate(advantages):
        prompt = [rng.randrange(50) for _ in range(rng.randint(3, 9))]
        group = []
        for i, advantage in enumerate(row):
            length = rng.randint(4, 12)
            mask = [1, *(int(rng.random() < 0.7) for _ in range(length - 1))]
            trajectory = Trajectory(f"{g}-{i}", Problem(str(g), "", ""), str(g), 0, [], [])
            trajectory.prompt_ids = prompt
            trajectory.ids = [rng.randrange(50) for _ in range(length)]
            trajectory.mask = mask
            trajectory.sampler_logp = [-3.9 * m for m in mask]
            trajectory.turn_tokens = [sum(mask)]
            trajectory.advantage = advantage
            group.append(trajectory)
        groups.append(group)
    return groups


def train(model: Qwen3ForCausalLM, groups: list[Group], **settings: object) -> tuple[torch.Tensor, UpdateResult]:
    """Train a copy and return its weights."""
    model = copy.deepcopy(model)
    config = GrpoConfig.model_validate({"problems_per_step": 4, "num_minibatches": 1, **settings})
    plan = StepPlan(
        loss=loss_settings(config, epsilon_high=config.epsilon_high, longest=12),
        beta=0.0,
        first_update=0,
        total_updates=10,
        pad_id=0,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    result = train_on_groups(model, optimizer, groups, plan=plan, config=config, optim=OPTIM)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), result


MIXED = [[1.0, -1.0], [0.5, -0.5], [0.0, 0.0], [-1.2, 1.2]]


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm", "sequence"])
def test_micro_batches_do_not_change_the_update(model: Qwen3ForCausalLM, mode: str) -> None:
    """One micro-batch for everything and one for each group give the same weights and statistics."""
    groups = make_groups(MIXED)
    whole, at_once = train(model, groups, loss_agg_mode=mode, micro_batch_tokens=10_000)
    cut, apart = train(model, groups, loss_agg_mode=mode, micro_batch_tokens=1)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert (whole - before).abs().max() > 1e-4
    torch.testing.assert_close(whole, cut, atol=1e-6, rtol=1e-5)
    assert at_once.losses == pytest.approx(apart.losses, abs=1e-6)
    assert at_once.stats.num_tokens == apart.stats.num_tokens


def test_a_group_without_a_signal_counts_in_the_mean_but_is_not_computed(model: Qwen3ForCausalLM) -> None:
    """Its tokens are skipped, and leaving the group out altogether would give a larger step."""
    groups = make_groups(MIXED)
    with_it, result = train(model, groups)
    silent = sum(t.num_generated for t in groups[2])
    assert result.stats.skipped_tokens == silent
    without, _ = train(model, [groups[0], groups[1], groups[3]])
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    tokens = sum(t.num_generated for g in groups for t in g)
    torch.testing.assert_close((with_it - before) * tokens / (tokens - silent), without - before, atol=1e-5, rtol=1e-3)


def test_no_signal_means_no_update(model: Qwen3ForCausalLM) -> None:
    """Nothing is computed and the weights stay."""
    weights, result = train(model, make_groups([[0.0, 0.0], [0.0, 0.0]]))
    assert result.num_updates == 0
    torch.testing.assert_close(weights, torch.cat([p.detach().flatten() for p in model.parameters()]))


def test_the_first_update_has_ratio_one_and_later_ones_move(model: Qwen3ForCausalLM) -> None:
    """The first uses its own log-probabilities; the second meets what the first changed."""
    groups = make_groups(MIXED)
    _, single = train(model, groups)
    assert single.stats.ratio / single.stats.num_tokens == pytest.approx(1.0, abs=1e-6)
    _, double = train(model, groups, num_epochs=2)
    assert double.num_updates == 2
    assert double.last_stats.ratio / double.last_stats.num_tokens != pytest.approx(1.0, abs=1e-3)


def test_a_loss_that_is_not_finite_stops_before_it_is_applied(model: Qwen3ForCausalLM) -> None:
    """The error comes before the optimizer's step."""
    groups = make_groups(MIXED)
    groups[0][0].advantage = float("nan")
    with pytest.raises(TrainingError, match="loss is nan"):
        train(model, groups)


def test_groups_are_split_evenly_and_in_order() -> None:
    """Five groups over two mini-batches: two and three; more mini-batches than groups: one each."""
    groups = make_groups([[0.0, 0.0]] * 5)
    assert [len(part) for part in split_groups(groups, 2)] == [2, 3]
    assert [len(part) for part in split_groups(groups, 9)] == [1] * 5
    assert split_groups([], 4) == []


def test_micro_batches_keep_to_their_limit() -> None:
    """Padded tokens of prompts and rows stay within the limit, and no group is lost."""
    groups = make_groups([[0.0, 0.0, 0.0]] * 9)
    batches = cut_micro_batches(groups, 150)
    assert sorted(g[0].id for batch in batches for g in batch) == sorted(g[0].id for g in groups)
    assert len(batches) > 1
    for batch in batches:
        rows = [t for group in batch for t in group]
        padded = max(len(t.ids) for t in rows) * len(rows) + max(len(g[0].prompt_ids) for g in batch) * len(batch)
        assert padded <= 150


def test_norms_and_biases_are_not_decayed(model: Qwen3ForCausalLM) -> None:
    """Weight decay falls on matrices only."""
    optimizer = build_optimizer(model, OptimConfig(weight_decay=0.1))
    decays = {p.ndim >= 2: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert decays == {True: 0.1, False: 0.0}
