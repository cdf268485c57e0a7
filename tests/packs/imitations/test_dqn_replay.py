"""DQN with a replay memory: steps against plain torch, noise and clip of transitions, learning."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CHOICE, context, module_of, random_users, vector_of
from off_policy_reference import assert_two_seeds_are_two_alone

from privrl_bench.algorithms.pooled_algorithm import POOLED
from privrl_bench.algorithms.value.actor_critic import Batch
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.packs.imitations.dqn_replay import DqnReplay, _rows
from privrl_bench.packs.imitations.replay_settings import DqnReplayConfig
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer
from privrl_bench.types import State

HIDDEN, SIZE = [7, 6], 5
STREAMS = [Streams(3), Streams(8)]
WIDTHS = [CHOICE.obs_dim, *HIDDEN, CHOICE.actions]
CONFIG = DqnReplayConfig(hidden=HIDDEN, lr=1e-2, tau=0.1, decay=0.05, batch=SIZE, memory=40)
SETUP = context(CHOICE, 0.3, 10, 1, mechanism="none")
NOISY = context(CHOICE, 0.3, 10, 1, mechanism="per_transition", z=(0.0, 0.5))
NO_NOISE = context(CHOICE, 0.3, 10, 1, mechanism="per_transition", z=(0.0, 0.0))


def remembered(algo, lengths=((9, 4), (7, 8)), dtype=torch.float32):
    """State tensors of two replicas with the steps of a round in the memory."""
    users = random_users(CHOICE, 2, 2, 9, seed=5, lengths=lengths)
    tensors = {k: x.to(dtype) for k, x in algo.init(STREAMS).tensors.items()}
    return algo._remember(tensors, users), users


class Twin:
    """One replica: torch's modules and optimiser."""

    def __init__(self, tensors, r):
        self.q = module_of(tensors["actor"][r, :-1], WIDTHS, torch.nn.ReLU)
        self.target = module_of(tensors["target"][r], WIDTHS, torch.nn.ReLU)
        self.adam = torch.optim.AdamW(self.q.parameters(), lr=1e-2, weight_decay=0.05, amsgrad=True)

    def losses(self, batch):
        with torch.no_grad():
            goal = batch.reward + batch.discount * self.target(batch.next_obs).max(-1).values
        values = self.q(batch.obs)[torch.arange(SIZE), batch.action.long()]
        return torch.nn.functional.smooth_l1_loss(values, goal, reduction="none")

    def clipped(self, batch, bound):
        """Mean of the clipped gradients, one transition at a time."""
        total = [torch.zeros_like(p) for p in self.q.parameters()]
        for one in self.losses(batch):
            grads = torch.autograd.grad(one, list(self.q.parameters()), retain_graph=True)
            norm = torch.sqrt(sum((g * g).sum() for g in grads))
            for t, g in zip(total, grads, strict=True):
                t += g * min(1.0, bound / float(norm)) / SIZE
        return total

    def follow(self, grads):
        for p, g in zip(self.q.parameters(), grads, strict=True):
            p.grad = g
        self.adam.step()
        with torch.no_grad():
            for old, new in zip(self.target.parameters(), self.q.parameters(), strict=True):
                old.mul_(0.9).add_(0.1 * new)


@pytest.mark.parametrize("setup", [SETUP, NO_NOISE], ids=["plain", "clipped"])
def test_learning_equals_plain_torch(setup):
    algo = DqnReplay(CONFIG, setup)
    tensors, users = remembered(algo)
    twins = [Twin(tensors, r) for r in range(2)]
    steps = users.mask.sum((1, 2))
    learned = algo._learn(tensors, 0, steps, STREAMS)
    for r, twin in enumerate(twins):
        count = int(steps[r]) - SIZE + 1  # none before the memory holds a batch
        for drawn in _rows(STREAMS[r], 0, count, int(steps[r]), SIZE):
            batch = Batch(*(tensors[f"memory_{n}"][r, drawn] for n in Batch._fields))
            if setup is SETUP:
                loss = twin.losses(batch).mean()
                grads = torch.autograd.grad(loss, list(twin.q.parameters()))
            else:
                grads = twin.clipped(batch, setup.privacy.clip)
            twin.follow(grads)
        q, target = vector_of(twin.q), vector_of(twin.target)
        torch.testing.assert_close(learned["actor"][r, :-1], q, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(learned["target"][r], target, rtol=1e-3, atol=1e-5)
        assert learned["updates"][r] == count
        seen = 0.05 + 0.85 * math.exp(-int(steps[r]) / 1000)
        assert float(learned["actor"][r, -1]) == pytest.approx(seen)


def trained(algo, tensors, counts, index=0):
    """The learned tensors of as many updates of each replica, by compiled code."""
    copied = {k: x.clone() for k, x in tensors.items()}
    memory = [copied[f"memory_{n}"] for n in Batch._fields]
    learned = {k: x for k, x in copied.items() if not k.startswith("memory_")}
    there = tensors["seen"][:, 0].tolist()
    rows = [_rows(s, 0, n, int(t), SIZE) for s, n, t in zip(STREAMS, counts, there, strict=False)]
    draws = [s.torch("user_update", index) for s in STREAMS[: len(counts)]]
    return algo._train(learned, memory, rows, draws), rows


@pytest.mark.parametrize("hidden", [[9], [7, 6], [5, 4, 6]], ids=str)
def test_compiled_updates_equal_tensor_operations(hidden):
    algo = DqnReplay(replace(CONFIG, hidden=hidden), SETUP)
    tensors, _ = remembered(algo)
    found, rows = trained(algo, tensors, [8, 8])
    expected = {k: x for k, x in tensors.items() if not k.startswith("memory_")}
    who = torch.arange(2)[:, None]
    for t in range(8):
        drawn = torch.stack([rows[r][t] for r in range(2)])
        batch = Batch(*(tensors[f"memory_{n}"][who, drawn] for n in Batch._fields))
        expected = algo._q.step(expected, batch, [])
    for name, x in expected.items():
        torch.testing.assert_close(found[name], x, rtol=1e-3, atol=1e-5, msg=name)
    assert not torch.equal(found["actor"], tensors["actor"])


def test_noise_on_transitions_has_the_papers_size():
    algo = DqnReplay(replace(CONFIG, hidden=[60, 60]), NOISY)
    tensors, _ = remembered(algo)
    # After one update the first moments are a tenth of the gradient.
    one, two = (10.0 * trained(algo, tensors, [1, 1], index)[0]["m"] for index in (0, 1))
    assert torch.equal(one[0], two[0])  # z = 0
    spread = float((one[1] - two[1]).std()) / math.sqrt(2)
    assert spread == pytest.approx(0.5 * 0.3 / math.sqrt(SIZE), rel=0.05)


def test_batches_have_different_places():
    rows = _rows(STREAMS[0], 4, 200, 9, SIZE)
    assert rows.shape == (200, SIZE)
    assert all(len(set(row.tolist())) == SIZE for row in rows)
    counts = np.bincount(rows.flatten().numpy(), minlength=9)
    assert len(counts) == 9
    assert counts.min() > 70  # 111 on the average
    assert not torch.equal(rows, _rows(STREAMS[0], 5, 200, 9, SIZE))


def test_every_replica_takes_its_own_number_of_steps():
    algo = DqnReplay(CONFIG, SETUP)
    tensors, _ = remembered(algo)
    found = trained(algo, tensors, [3, 0])[0]
    assert found["updates"].flatten().tolist() == [3, 0]
    alone = trained(algo, {k: x[:1] for k, x in tensors.items()}, [3])[0]
    assert torch.equal(found["actor"][0], alone["actor"][0])
    assert torch.equal(found["actor"][1], tensors["actor"][1])


def test_nothing_is_learned_before_there_is_a_batch():
    algo = DqnReplay(replace(CONFIG, batch=14), SETUP)
    tensors, users = remembered(algo)
    learned = algo._learn(tensors, 0, users.mask.sum((1, 2)), STREAMS)
    assert torch.equal(learned["actor"][0, :-1], tensors["actor"][0, :-1])
    assert learned["updates"].flatten().tolist() == [0, 2]


def test_local_sends_one_row_and_declares_the_rest():
    algo = DqnReplay(CONFIG, NOISY)
    state = algo.init(STREAMS)
    users = random_users(CHOICE, 2, 2, 9, seed=5, lengths=((9, 4), (7, 8)))
    for name in ("obs", "next_obs", "rewards"):
        setattr(users, name, getattr(users, name).float())
    rows, valid, bypass = algo.user_update(state, users, STREAMS).take()
    assert rows["actor"].shape == (2, 1, algo.policy.size)
    assert valid.all()
    assert set(bypass) == {POOLED} == set(algo.terms().caveats)
    assert isinstance(state, State)


SMALL = ("algo.hidden=[8]", "algo.batch=8", "env.max_episode_steps=40", "log=none", "rounds=20")


def session(*words, seeds=(0,)):
    base = ["algo=dqn_replay", *SMALL, *words]
    return Trainer(make_plan([compose(later_wins([*base, f"seed={s}"])) for s in seeds]))


NOISE = ("+paper=dqn", "privacy.z=0.4", "algo.memory=100")


@pytest.mark.parametrize("words", [(), NOISE, ("env.user=segment", "env.user_steps=1")], ids=str)
def test_a_replica_does_not_depend_on_its_neighbours(words):
    both, lone = session(*words, seeds=(0, 1)), session(*words, seeds=(1,))
    assert_two_seeds_are_two_alone(both, lone, rounds=6)


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("words", [(), NOISE], ids=str)
def test_a_session_cut_in_two_is_whole(words):
    whole, first, second = (session(*words, seeds=(0, 1)) for _ in range(3))
    for _ in range(6):
        whole.step()
    for _ in range(3):
        first.step()
    assert second.restore([first.checkpoint(first.snapshot(), r) for r in range(2)])
    while second.round < 6:
        second.step()
    for name, x in whole.state.tensors.items():
        assert torch.equal(second.state.tensors[name], x), name
    for one in (whole, first, second):
        one.close()


@pytest.mark.fast_every(4)
@pytest.mark.parametrize(
    ("z", "expected"), [(0.1, 84.4), (0.2, 15.7), (0.4, 5.84), (0.6, 3.55), (0.0, math.inf)]
)
def test_the_papers_setting_is_heuristic_and_names_its_unit(z, expected):
    parts = make_plan([compose(["algo=dqn_replay", "+paper=dqn", f"privacy.z={z}"])])
    found = parts.gate.guarantee(0)
    assert found.epsilon == pytest.approx(expected, rel=0.01)
    assert found.status == ("none" if z == 0 else "heuristic")
    assert found.unit.startswith(
        "one transition of one simulated user, not an episode or a person: 128 of 10000 in a full"
    )
    assert found.adjacency == "replace-one"
    assert set(found.caveats) == {POOLED}
    assert parts.rounds == 1000


def test_without_noise_it_is_no_privacy():
    parts = make_plan([compose(["algo=dqn_replay"])])
    assert parts.gate.guarantee(0).status == "none"
    assert "not private" in parts.gate.caveats


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["+paper=dqn", "algo.updates=0.5"],
            "algo.updates: privacy.mechanism=per_transition counts",
        ),
        (
            ["privacy=fixed"],
            "privacy: algo=dqn_replay is not private; for a private run use algo=dqn",
        ),
        (
            ["+paper=dqn", "privacy.adjacency=zero_out"],
            "privacy.adjacency: privacy.mechanism=per_transition",
        ),
        (["+paper=dqn", "privacy.epsilon=3"], "privacy.epsilon: nothing is bounded"),
        (["env=pendulum"], "env: algo=dqn_replay needs discrete actions"),
        (["algo.memory=100"], "algo.memory: must be >= algo.batch=128"),
    ],
    ids=str,
)
def test_bad_settings_name_their_key(words, said):
    with pytest.raises(ConfigError) as caught:
        make_plan([compose(later_wins(["algo=dqn_replay", *words]))])
    assert str(caught.value).startswith(said)


@pytest.mark.slow
def test_it_learns_cartpole():
    words = ["algo.hidden=[64,64]", "algo.batch=64", "algo.lr=1e-3", "env.max_episode_steps=500"]
    one = session(*words, "algo.tau=0.02", "rounds=80", "eval.policy=greedy")
    found = []
    while not one.over:
        one.step()
        if one.round % 20 == 0:  # one evaluation of a run that is going well can still be poor
            found.append(one.evaluate()[0].returns.mean())
    assert max(found) > 60  # random play: about 22; seen with four seeds: 147 to 500
    one.close()
