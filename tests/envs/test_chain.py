"""The chain against closed forms (../shared facts), and simulated against exact."""

import gymnasium as gym
import numpy as np
import pytest
from helpers import changed, shipped
from test_slots import assert_same_story

from privrl_bench.envs.registry import env_spec, make_slots, process_of, tables_of
from privrl_bench.envs.slots import LoopSlots
from privrl_bench.envs.tabular import ChainSlots, process
from privrl_bench.errors import ConfigError

CHAIN = shipped("chain")


def test_public_facts() -> None:
    spec = env_spec(CHAIN)
    assert (spec.obs_dim, spec.actions, spec.max_episode_steps) == (39, 1, 200)
    assert spec.discrete
    assert spec.one_hot  # zeros after the end
    assert tables_of(CHAIN) is None
    assert process_of(shipped("riverswim")) is None
    small = changed(CHAIN, kwargs={"n": 5, "stay": 0.25})
    assert env_spec(small).obs_dim == 4
    assert process_of(small).transitions[3].tolist() == [0, 0, 0, 0.25]


def test_values_are_those_of_the_closed_form() -> None:
    found = process_of(CHAIN).values(0.99)
    c = 0.5 / (1 - 0.99 * 0.5)
    np.testing.assert_allclose(found, c * (0.99 * c) ** np.arange(38, -1, -1), rtol=1e-12)
    known = {0: 0.463024336, 1: 0.472378363, 10: 0.565542971, 20: 0.690760350}
    known |= {30: 0.843702222, 37: 0.970493089, 38: 0.990099010}
    for state, value in known.items():
        assert found[state] == pytest.approx(value, abs=1e-9)
    assert found.mean() == pytest.approx(0.694366548, abs=1e-9)


def test_visits_and_length() -> None:
    visits = process_of(CHAIN).visits()
    assert visits.sum() == pytest.approx(40)
    np.testing.assert_allclose(visits / visits.sum(), (np.arange(39) + 1) / 780, rtol=1e-12)


def test_simulated_lengths_and_visits_are_the_exact_ones() -> None:
    count = 4000
    slots = make_slots(CHAIN, count)
    assert isinstance(slots, ChainSlots)
    obs = slots.reset(np.arange(count), list(range(count)))
    going, visits, lengths = np.arange(count), np.zeros(39), np.zeros(count)
    while len(going):
        visits += obs.sum(0)
        found = slots.step(going, np.zeros(len(going), np.int64))
        lengths[going] += 1
        assert (found.obs.sum(-1) == ~found.terminated).all()
        assert (found.rewards == found.terminated).all()
        stays = ~(found.terminated | found.truncated)
        obs, going = found.obs[stays], going[stays]
    assert lengths.mean() == pytest.approx(40, abs=1.3)
    exact = process_of(CHAIN).visits()
    np.testing.assert_allclose(visits / count, exact, atol=0.15)


def test_slots_equal_the_gymnasium_environment() -> None:
    config = changed(CHAIN, max_episode_steps=30)
    loop = make_slots(changed(config, backend="loop"), 5)
    assert isinstance(loop, LoopSlots)

    def go(rng, count):
        return np.zeros(count, dtype=np.int64)

    assert_same_story(make_slots(config, 5), loop, go, 300, seed=1)
    env = gym.make("privrl_bench.envs.registry:privrl_bench/Chain-v0", n=3, stay=0.0)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    steps = [env.step(0) for _ in range(2 - int(obs.argmax()))]
    assert [s[2] for s in steps][-1]
    assert steps[-1][0].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("kwargs", "line"),
    [
        ({"n": 1}, "env.kwargs.n: must be an integer from 2"),
        ({"n": 4.5}, "env.kwargs.n: must be an integer from 2"),
        ({"stay": 1.0}, r"env.kwargs.stay: must be in \[0, 1\)"),
        ({"length": 3}, "env.kwargs: invalid for the chain"),
    ],
)
def test_wrong_settings(kwargs, line) -> None:
    with pytest.raises(ConfigError, match=f"^{line}"):
        env_spec(changed(CHAIN, kwargs=kwargs))
    with pytest.raises(ConfigError, match=f"^{line}"):
        make_slots(changed(CHAIN, kwargs=kwargs), 1)


def test_a_chain_of_two_states_ends_when_it_moves() -> None:
    assert process(2, 0.25).values(1.0).tolist() == pytest.approx([1.0])
