"""What a search draws from."""

import numpy as np
import pytest
from scipy import stats

from privrl_bench.errors import ConfigError
from privrl_bench.packs.tuning.settings import Distribution, grid, split_words

UNIFORMS = (np.arange(4000) + 0.5) / 4000


def test_words_are_split():
    space, others = split_words(
        ["algo=dppg", "algo.lr=loguniform(1e-3, 1e-2)", "algo.hidden=choice([64,64],[8])", "seed=1"]
    )
    assert [one.text for one in space] == [
        "algo.lr=loguniform(0.001,0.01)",
        "algo.hidden=choice([64,64],[8])",
    ]
    assert others == ["algo=dppg", "seed=1"]


def test_draws_have_their_distribution():
    (uniform, log, integers, choice), _ = split_words(
        ["a=uniform(2,4)", "b=loguniform(1e-4,1)", "c=randint(1,4)", "d=choice(x,y,z)"]
    )
    assert (
        stats.kstest([float(uniform.at(u)) for u in UNIFORMS], stats.uniform(2, 2).cdf).pvalue > 0.9
    )
    drawn = [float(log.at(u)) for u in UNIFORMS]
    assert stats.kstest(drawn, stats.loguniform(1e-4, 1).cdf).pvalue > 0.9
    for one, values in ((integers, "1234"), (choice, "xyz")):
        found = [one.at(u) for u in UNIFORMS]
        assert set(found) == set(values)
        for value in values:
            assert found.count(value) == pytest.approx(4000 / len(values), abs=1)
    for one in (uniform, log, integers, choice):  # the largest number that is drawn
        assert one.at(1.0) in (one.ends[-1], "z")


def test_grid_has_all_combinations():
    space, _ = split_words(["a=choice(1,2)", "b=choice(x,y,z)"])
    assert len(grid(space)) == 6
    assert ["a=2", "b=y"] in grid(space)
    with pytest.raises(ConfigError, match=r"a: uniform is no grid"):
        grid([Distribution("a", "uniform", 0, 1)])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("a=uniform(3,2)", r"a: uniform\(low, high\) needs low < high"),
        ("a=loguniform(0,2)", "0 < low < high"),
        ("a=uniform(1)", "takes two numbers"),
        ("a=uniform(x,y)", "takes two numbers"),
        ("a=uniform(0,inf)", "low < high"),
        ("a=randint(0.5,2)", "takes integers"),
        ("a=choice(1)", "at least two different"),
        ("a=choice(1,1)", "at least two different"),
        ("a=1,2", "a: 1,2 is a grid"),
        ("a=range(3)", r"a: range\(3\) is a grid of a sweep"),
        ("a=mine(3)", "no such function 'mine'"),
    ],
)
def test_bad_distributions(word, message):
    with pytest.raises(ConfigError, match=message):
        split_words([word])


def test_a_key_is_drawn_once():
    with pytest.raises(ConfigError, match="drawn twice"):
        split_words(["b=choice(1,2)", "b=uniform(0,1)"])
