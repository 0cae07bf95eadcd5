"""Generated problems: right answers, disjoint splits, even mixture, equal seeds give equal problems."""

from collections import Counter
from itertools import combinations

import pytest

from agentrl_cli.data.generated import FAMILIES, generate_problems, split_of
from agentrl_cli.data.generated.families import Family
from agentrl_cli.data.generated.generator import _answer
from agentrl_cli.errors import ConfigError
from agentrl_cli.types import AnswerKind

SPLITS = ("sft", "train", "test")


def test_answers_match_hand_computed_values():
    """Each family's answer is what a person gets for the same numbers."""
    cases = {
        "total": ({"a": 12, "b": 34, "c": 56}, 464),  # 12*34 = 408, 408+56
        "left": ({"a": 30, "b": 20, "c": 11}, 589),  # 600-11
        "left_bags": ({"a": 30, "b": 20, "c": 11}, 380),  # 19 bags of 20
        "scale": ({"a": 12, "b": 13, "c": 40}, 1000),  # 25*40
        "pairs": ({"a": 12, "b": 20, "c": 13, "d": 30}, 630),  # 240+390
        "share": ({"a": 36, "b": 25, "c": 9}, 100),  # 900/9
        "percent": ({"a": 40, "b": 50, "c": 25}, 1500),  # 2000 less a quarter
        "parity": ({"a": 13, "b": 15, "c": 20}, 215),  # 195 is odd, so +20
        "last_digits": ({"a": 25, "b": 25, "c": 30}, 750),  # 625 -> 25, 25*30
        "fence": ({"n": 10201, "c": 20}, 8080),  # side 101, around 404, times 20
        "packs": ({"a": 24, "b": 60, "c": 15}, 180),  # gcd 12, times 15
        "arrange": ({"n": 5, "c": 110}, 13200),  # 120*110
        "padded": ({"a": 47, "b": 20, "c": 31}, 971),  # 940+31
        "comma": ({"a": 1250, "b": 20, "c": 31}, 25031),  # 25000+31
    }
    assert set(cases) == set(FAMILIES)
    for family, (params, expected) in cases.items():
        assert _answer(FAMILIES[family], params) == expected, family


def test_even_product_is_halved():
    """The other branch of `parity`: 12 times 15 is 180, which is even, so 90."""
    assert _answer(FAMILIES["parity"], {"a": 12, "b": 15, "c": 20}) == 90


def test_highest_level_adds_one_operation():
    """At level 3 the number z is added to what the family asks for: 464 + 100, see above."""
    assert _answer(FAMILIES["total"], {"a": 12, "b": 34, "c": 56, "z": 100}) == 564
    problems = generate_problems("train", count=60, seed=0, levels=[3])
    assert all(problem.prompt.endswith(f" Then add {problem.meta['z']}.") for problem in problems)
    assert not any("z" in problem.meta for problem in generate_problems("train", count=60, seed=0, levels=[1, 2]))


def test_generation_refuses_a_reference_that_disagrees():
    """A wrong reference expression can't produce a gold answer."""
    good = FAMILIES["total"]
    bad = Family(good.name, good.phrasings, good.draw, "a*(b+c)", good.solve)
    with pytest.raises(AssertionError, match="total"):
        _answer(bad, {"a": 12, "b": 34, "c": 56})


def test_splits_are_disjoint_for_different_seeds():
    """No family with the same numbers turns up in two splits, whatever the seeds."""
    keys = {
        split: {
            (p.family, tuple(sorted(p.meta.items())))
            for seed in (0, 1, 2)
            for p in generate_problems(split, count=500, seed=seed)
        }
        for split in SPLITS
    }
    for one, other in combinations(SPLITS, 2):
        assert not keys[one] & keys[other], (one, other)


def test_split_ignores_the_wording():
    """A problem keeps its split in every phrasing: the split is a function of family and numbers."""
    for problem in generate_problems("test", count=100, seed=3):
        assert split_of(problem.family, dict(problem.meta)) == "test"
    assert split_of("total", {"a": 1, "b": 2, "c": 3}) == split_of("total", {"c": 3, "b": 2, "a": 1})


def test_equal_seeds_give_equal_problems_and_a_longer_list_begins_alike():
    """Generation is a function of its arguments, and `count` only decides where it stops."""
    problems = generate_problems("train", count=200, seed=7)
    assert problems == generate_problems("train", count=200, seed=7)
    assert problems[:50] == generate_problems("train", count=50, seed=7)
    assert problems != generate_problems("train", count=200, seed=8)


def test_problems_are_distinct_and_evenly_mixed():
    """4000 problems have 4000 ids and prompts, and families and levels differ by one round at most."""
    problems = generate_problems("train", count=4000, seed=0)
    assert len({p.id for p in problems}) == len({p.prompt for p in problems}) == 4000
    cells = Counter((p.family, p.level) for p in problems)
    assert len(cells) == 3 * len(FAMILIES)
    assert max(cells.values()) - min(cells.values()) <= 1


def test_one_family_is_kept_from_the_cold_start():
    """`left_bags` is in train and test but not in sft, and asking for it there is an error."""
    seen = {split: {p.family for p in generate_problems(split, count=200, seed=0)} for split in SPLITS}
    assert seen["train"] == seen["test"] == set(FAMILIES)
    assert seen["sft"] == set(FAMILIES) - {"left_bags"}
    with pytest.raises(ConfigError, match="left_bags"):
        generate_problems("sft", count=1, seed=0, families=["left_bags"])


def test_prompts_show_all_numbers():
    """Every number that the answer depends on stands in the prompt."""
    for problem in generate_problems("test", count=300, seed=0):
        shown = problem.prompt.replace(",", "")
        assert all(str(value) in shown for value in problem.meta.values()), problem


def test_answers_can_not_be_guessed():
    """No answer is shared by more than 1 % of the problems, and few are below 100."""
    problems = generate_problems("test", count=600, seed=0)
    counts = Counter(p.answer for p in problems)
    assert max(counts.values()) <= 6
    assert sum(int(p.answer) < 100 for p in problems) <= 6
    assert {p.kind for p in problems} == {AnswerKind.INTEGER}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"families": ["nonsense"]}, "nonsense"),
        ({"levels": [4]}, "levels"),
        ({"levels": []}, "levels"),
        ({"count": 100_000, "families": ["arrange"], "levels": [1]}, "too few"),
    ],
)
def test_impossible_requests_are_refused(arguments, message):
    """Unknown names and more problems than exist are errors of the user."""
    with pytest.raises(ConfigError, match=message):
        generate_problems("train", **{"count": 1, "seed": 0, **arguments})
