"""REINFORCE: a row by hand, masks drawn twice, every tensor within its clip, epsilons known, learning."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers import (
    BOX,
    CHOICE,
    context,
    in_double,
    learn,
    module_of,
    random_users,
    release,
    sized,
    slow_gae,
)

from privrl_bench.algorithms.base import check_actions
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import ReinforceConfig
from privrl_bench.algorithms.policy_gradient.reinforce import Reinforce
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.envs.registry import env_spec
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.privacy.accounting.releases import joint_z
from privrl_bench.privacy.contribution import Contribution, block_multipliers
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer
from privrl_bench.types import State
from privrl_bench.users.collectors.live import SimulatedCollector

STREAMS = [Streams(3), Streams(8)]
LENGTHS = [[70, 33, 1], [2, 40, 64]]  # some longer than a piece of `user_update`
SETUP = context(CHOICE, 8.0, 10, 3, z=(1.0, 1.0))
NOT_PRIVATE = context(CHOICE, 8.0, 10, 3, z=(0.0, 0.0), mechanism="none")


def made(setup=SETUP, round_index=2, **changes):
    """An algorithm, a state in float64 and users who did what nobody simulated."""
    algo = Reinforce(ReinforceConfig(**{"hidden": [6], **changes}), setup)
    state = in_double(algo.init(STREAMS))
    g = torch.Generator().manual_seed(4)
    state.tensors["actor"] += torch.randn(state.tensors["actor"].shape, generator=g)
    users = random_users(CHOICE, 2, 3, 70, seed=1, lengths=LENGTHS)
    return algo, State(round_index, state.tensors), users


def row_by_hand(algo, state, users, r, u):
    """Autograd on one user's log probabilities, with dropout as a multiplication."""
    length = LENGTHS[r][u]
    noise = algo.policy.draw(STREAMS[r].torch("policy", state.round), 70, 64)[:length, u]
    (mask,) = algo.policy.keep(noise)
    first, _, last = network = module_of(state.tensors["actor"][r], [3, 6, 4], torch.nn.ReLU)
    logits = last(torch.relu(mask * first(users.obs[r, u, :length])))
    pi = torch.distributions.Categorical(logits=logits)
    rewards, done = users.rewards[r, u, :length], users.done[r, u, :length]
    zeros = torch.zeros(length)
    signal = slow_gae(rewards, zeros, zeros, done, done, algo.config.gamma, 1.0)
    if algo.config.signal == "total":
        signal = signal[:1].expand(length)
    elif length > 1:
        signal = (signal - signal.mean()) / signal.std()
    else:
        signal = torch.zeros(1)
    (signal * pi.log_prob(users.actions[r, u, :length])).sum().backward()
    linear = [x for x in network if isinstance(x, torch.nn.Linear)]
    return torch.cat([p for x in linear for p in (x.weight.grad.T.flatten(), x.bias.grad)])


@pytest.mark.fast_every(5)
@pytest.mark.parametrize("signal", ["to_go", "total"])
@pytest.mark.parametrize("clipping", ["joint", "tensor"])
@pytest.mark.parametrize("dropout", [0.0, 0.3, 0.5])
def test_a_row_is_the_gradient_of_ones_own_episode(signal, clipping, dropout) -> None:
    algo, state, users = made(signal=signal, clipping=clipping, dropout=dropout)
    rows, valid, bypass = algo.user_update(state, users, STREAMS).take()
    assert [(b.name, b.size) for b in algo.blocks()] == [(n, x.shape[-1]) for n, x in rows.items()]
    whole = torch.cat(list(rows.values()), dim=-1)
    assert not bypass
    assert valid.all()
    for r in range(2):
        for u in range(3):
            torch.testing.assert_close(whole[r, u], row_by_hand(algo, state, users, r, u))
    assert whole[0, 0].any()
    one_step = whole[0, 2]
    assert bool(one_step.any()) == (signal == "total")  # nothing to normalise in one step


def test_equal_returns_are_no_signal() -> None:
    algo, state, users = made(gamma=1.0)
    users.rewards[0, 0] = 0.0
    users.rewards[0, 0, 69] = 0.3
    rows, _, _ = algo.user_update(state, users, STREAMS).take()
    assert not rows["actor"][0, 0].any()
    assert rows["actor"][0, 1].any()


def test_without_privacy_everybody_is_in_one_row() -> None:
    algo, state, users = made()
    users.valid[0, 1] = False
    users.valid[1] = False
    rows, _, _ = algo.user_update(state, users, STREAMS).take()
    pooled, _, _ = made(NOT_PRIVATE)
    one, valid, _ = pooled.user_update(state, users, STREAMS).take()
    expected = (rows["actor"][0, 0] + rows["actor"][0, 2]) / 3
    torch.testing.assert_close(one["actor"][0, 0], expected)
    assert not one["actor"][1].any()
    assert valid.tolist() == [[True], [False]]


def test_the_server_is_torchs_adam_on_released_gradients() -> None:
    algo, state, _ = made(round_index=0, clipping="tensor")
    parameter = torch.nn.Parameter(state.tensors["actor"].clone())
    adam = torch.optim.Adam([parameter], lr=0.01)
    g = torch.Generator().manual_seed(1)
    for _ in range(4):
        released = {b.name: torch.randn(2, b.size, generator=g).double() for b in algo.blocks()}
        parameter.grad = -torch.cat(list(released.values()), dim=-1)
        adam.step()
        state = algo.server(state, SimpleNamespace(values=released))
        torch.testing.assert_close(state.tensors["actor"], parameter.detach())
    assert state.round == 4


def cartpole(seeds, users, steps=40, **changes):
    """A rollout of whole CartPole episodes, the algorithm and its first state."""
    config = compose(["algo=reinforce", "env=cartpole", f"env.max_episode_steps={steps}"]).env
    spec = env_spec(config)
    algo = Reinforce(
        ReinforceConfig(**changes), context(spec, 8.0, 1000, users, z=(0.0,) * len(seeds))
    )
    streams = [Streams(s) for s in seeds]
    rollout = SimulatedCollector(
        config, spec, algo.policy, streams, users, spec.max_episode_steps, 0.99
    )
    return rollout, algo, algo.init(streams), streams


@pytest.mark.parametrize("dropout", [0.5, 0.2])
def test_masks_that_are_drawn_again_are_those_of_the_actions(dropout) -> None:
    """Under the masks (and Gumbel noise) of `user_update`, every action is the one that was taken."""
    rollout, algo, state, streams = cartpole([1, 5], 3, dropout=dropout)
    actor, wrong = 3.0 * algo.actor(state), 0
    for index in range(3):
        users = rollout.collect(actor, index, sized(3, 3))
        for r, s in enumerate(streams):
            noise = algo.policy.draw(s.torch("policy", index), 40, 64)[:, :3].transpose(0, 1)
            params = actor[r].expand(3, -1)
            again = algo.policy.sampler(params)(users.obs[r], noise)
            assert torch.equal(again[users.mask[r]], users.actions[r][users.mask[r]])
            others = algo.policy.draw(s.torch("policy", index + 1), 40, 64)[:, :3].transpose(0, 1)
            noise[..., 2:] = others[..., 2:]
            again = algo.policy.sampler(params)(users.obs[r], noise)
            wrong += int((again != users.actions[r])[users.mask[r]].sum())
    assert wrong > 0  # other masks would have been noticed


def test_a_row_does_not_depend_on_who_else_is_there() -> None:
    """Bit for bit, whatever others' lengths, and in a program of more replicas."""
    rollout, algo, state, streams = cartpole([1, 5], 2)
    actor = algo.actor(state)
    users = rollout.collect(actor, 0, sized(2, 2))
    rows = algo.user_update(state, users, streams).take()[0]["actor"]
    users.obs[0, 1], users.rewards[0, 1] = 9.0, 5.0
    users.mask[0, 1, 3:] = False
    users.obs[1] = -4.0
    again = algo.user_update(state, users, streams).take()[0]["actor"]
    assert torch.equal(rows[0, 0], again[0, 0])
    assert not torch.equal(rows[0, 1], again[0, 1])
    alone_rollout, alone, first, one = cartpole([1], 2)
    users = alone_rollout.collect(alone.actor(first), 0, sized(2))
    assert torch.equal(alone.user_update(first, users, one).take()[0]["actor"][0], rows[0])


def test_a_round_in_which_nobody_took_a_step_sends_zeros() -> None:
    """Of everybody whose environment failed, or whom the leak test takes away."""
    algo, state, users = made()
    empty = replace(users, mask=torch.zeros_like(users.mask), valid=torch.zeros_like(users.valid))
    rows, valid, _ = algo.user_update(state, empty, STREAMS).take()
    assert not rows["actor"].any()
    assert not valid.any()


# --- the gate

SHORT = ["env=cartpole", "env.max_episode_steps=30", "log=none", "eval.episodes=1"]


def session(*words):
    parts = make_plan([compose(later_wins(["algo=reinforce", *SHORT, *words]))])
    return Trainer(parts), parts


@pytest.mark.parametrize("clipping", ["joint", "tensor"])
@pytest.mark.parametrize("users", [1, 3])
def test_no_parameter_tensor_escapes_the_clip(clipping, users) -> None:
    """Gradients far beyond the clip in every tensor: what is released sits on the bound."""
    clip = 0.5
    words = (
        f"algo.clipping={clipping}",
        f"privacy.clip={clip}",
        f"privacy.users_per_round={users}",
    )
    made_, parts = session(*words, "privacy.z=0", "algo.signal=total", "env.reward_scale=1e4",
                           "env.reward_clip=1e9", "algo.hidden=[16]")  # fmt: skip
    algo = parts.algo
    batch = made_.collect(algo.actor(made_.state), 0)
    rows, valid, _ = algo.user_update(made_.state, batch, parts.streams).take()
    whole = torch.cat(list(rows.values()), dim=-1)
    sizes = algo.policy.net.splits
    norms = torch.stack([x.norm(dim=-1) for x in whole.split(sizes, dim=-1)])
    assert norms.min() > 10 * clip
    blocks = sum((b.size for b in algo.blocks()), 0)
    assert blocks == algo.policy.size == whole.shape[-1]
    contribution = Contribution({n: x.clone() for n, x in rows.items()}, valid)
    released = release(parts.gate, contribution, 0).values
    gradient = torch.cat([released[b.name] for b in algo.blocks()], dim=-1)[0]
    per_tensor = torch.stack([x.norm() for x in gradient.split(sizes)])
    bound = clip if clipping == "joint" else 2.0 * clip
    assert gradient.norm() <= bound
    assert (per_tensor <= clip).all()
    if users == 1:
        assert float(gradient.norm()) == pytest.approx(bound, rel=1e-5)
        if clipping == "tensor":
            torch.testing.assert_close(per_tensor, torch.full((4,), clip), rtol=1e-5, atol=0)


@pytest.mark.parametrize("tensor", range(4))
@pytest.mark.parametrize("clipping", ["joint", "tensor"])
def test_each_tensor_alone_is_clipped(clipping, tensor) -> None:
    made_, parts = session(f"algo.clipping={clipping}", "privacy.z=0", "algo.hidden=[5]")
    sizes = parts.algo.policy.net.splits
    pieces = [torch.full((1, 1, n), 1e6 if k == tensor else 0.0) for k, n in enumerate(sizes)]
    row = torch.cat(pieces, dim=-1)
    split = row.split([b.size for b in parts.algo.blocks()], dim=-1)
    named = {b.name: x for b, x in zip(parts.algo.blocks(), split, strict=True)}
    released = release(
        parts.gate, Contribution(named, torch.ones(1, 1, dtype=torch.bool)), 0
    ).values
    after = parts.algo.server(made_.state, SimpleNamespace(values=released)).tensors
    gradient = torch.cat([released[b.name] for b in parts.algo.blocks()], dim=-1)
    assert float(gradient.norm()) == pytest.approx(8.0, rel=1e-5)
    torch.testing.assert_close(after["adam_m"], -0.1 * gradient)


EPSILONS = {  # sigma -> joint clip, the authors' four clips, and these under replace-one
    0.1: (91.8, 284.4, 969.6),
    0.2: (33.1, 91.8, 284.4),
    0.4: (13.2, 33.1, 91.8),
    0.6: (8.0, 19.1, 49.9),
}


@pytest.mark.parametrize("sigma", EPSILONS)
def test_epsilon_of_an_episode_is_known(sigma) -> None:
    joint, four, replaced = EPSILONS[sigma]
    half = f"privacy.z={sigma / 2}"
    for words, expected in (
        ((f"privacy.z={sigma}",), joint),
        (("+paper=reinforce", half), four),
        (("+paper=reinforce", half, "privacy.adjacency=replace_one"), replaced),
    ):
        _, parts = session(*words)
        guarantee = parts.gate.guarantee(0)
        assert guarantee.epsilon == pytest.approx(expected, abs=0.051)
        assert (guarantee.status, guarantee.delta) == ("formal", 1e-5)
        assert guarantee.unit.startswith("one simulated user: one whole episode")
        assert parts.gate.participation == 1


def test_the_papers_noise_on_every_tensor_is_sigma_times_the_clip() -> None:
    config = compose(["algo=reinforce", "env=cartpole", "+paper=reinforce", "privacy.z=0.2"])
    parts = make_plan([config])
    assert parts.rounds == 1000
    blocks = parts.gate.blocks
    assert [(b.size, b.clip) for b in blocks] == [(512, 8.0), (128, 8.0), (256, 8.0), (2, 8.0)]
    multipliers = block_multipliers(0.2, blocks)
    assert all(m == pytest.approx(0.4) for m in multipliers.values())
    assert joint_z(multipliers.values()) == pytest.approx(0.2)
    assert (config.env.obs_scaling, config.env.reward_scaling) == ("none", "none")


def test_the_released_noise_has_that_size() -> None:
    made_, parts = session("+paper=reinforce", "privacy.z=0.2", "algo.hidden=[300]")
    nobody = torch.zeros(1, 1, dtype=torch.bool)
    rows = {b.name: torch.zeros(1, 1, b.size) for b in parts.gate.blocks}
    values = release(parts.gate, Contribution(rows, nobody), 0).values
    assert float(values["W0"].std()) == pytest.approx(0.4 * 8.0, rel=0.1)
    made_.close()


@pytest.mark.parametrize(
    "words",
    [("privacy=none",), ("privacy.z=0.3",), ("privacy=poisson", "privacy.population=9")],
    ids=["none", "trajectory", "poisson"],
)
def test_rounds_run_through_the_gate(words) -> None:
    made_, parts = session(*words, "privacy.users_per_round=2")
    for _ in range(2):
        made_.step()
    assert made_.round == 2
    assert not any(made_.diverged())
    status = "none" if words[0] == "privacy=none" else "formal"
    assert parts.gate.guarantee(0).status == status


def test_actions_that_are_no_choice_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^env: algo=reinforce needs discrete actions"):
        check_actions(ReinforceConfig.traits.actions, BOX, "reinforce")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("lr", 0.0),
        ("signal", "sum"),
        ("clipping", "flat"),
        ("hidden", [0]),
    ],
)
def test_bad_settings_name_their_key(key, value) -> None:
    with pytest.raises(ConfigError, match=f"^algo.{key}: must be"):
        ReinforceConfig(**{key: value})


@pytest.mark.slow
def test_it_learns_cartpole_without_noise() -> None:
    rollout, algo, _, _ = cartpole([0, 1, 2, 3], 1, steps=100)
    _, curve = learn(algo, rollout, 50)
    assert sum(curve[:5]) / 5 < 35
    assert sum(curve[-10:]) / 10 > 65


def test_the_paper_has_the_same_runs_without_noise_in_figures_2_and_5() -> None:
    """`privrl_bench/papers/dp-rl.yaml` judges figure 5's number by figure 2's runs."""
    states = []
    for words in (["privacy=none"], ["privacy=local", "privacy.z=0"]):
        run, _ = session("+paper=reinforce", "rounds=6", *words)
        while not run.over:
            run.step()
        run.close()
        states.append(run.state.tensors)
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
