"""DQN for people: rows one person at a time with torch's own parts; accounting; resuming; learning."""

from dataclasses import replace

import pytest
import torch
from helpers import CHOICE, context, in_double, module_of, random_users, tensors, vector_of
from off_policy_reference import assert_two_seeds_are_two_alone

from privrl_bench.algorithms.value.dqn import Dqn
from privrl_bench.algorithms.value.value_settings import DqnConfig
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.clip import clip_rows
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

HIDDEN = [7, 6]
STREAMS = [Streams(3), Streams(8)]
LENGTHS = [[9, 4, 1], [2, 9, 7]]
WIDTHS = [CHOICE.obs_dim, *HIDDEN, CHOICE.actions]
SMALL = (
    *("algo.hidden=[8]", "env.max_episode_steps=40", "eval.episodes=2", "log=none"),
    *("algo.new_users=1", "algo.act_every=4"),
)


class Means:
    """What the server gets, without a gate."""

    def __init__(self, value):
        self.values = {"q": value}


def made(**changes):
    algo = Dqn(DqnConfig(hidden=HIDDEN, **changes), context(CHOICE, 0.1, 10, 3))
    state = in_double(algo.init(STREAMS))
    g = torch.Generator().manual_seed(1)
    for name in ("actor", "target"):
        state.tensors[name] += 0.3 * torch.randn(state.tensors[name].shape, generator=g)
    return algo, state


def rows_of(algo, state, users):
    """[R, U, P] what people send; nothing goes beside the gate."""
    rows, valid, bypass = algo.user_update(state, users, STREAMS).take()
    assert torch.equal(valid, users.valid)
    assert not bypass
    return rows["q"]


def brute(state, users, r, u, steps, gamma=0.99):
    """The mean TD gradient over `steps` of one person, by autograd."""
    q = module_of(state.tensors["actor"][r, :-1], WIDTHS, torch.nn.ReLU)
    target = module_of(state.tensors["target"][r], WIDTHS, torch.nn.ReLU)
    losses = []
    for t in steps:
        with torch.no_grad():
            after = 0.0 if users.terminated[r, u, t] else target(users.next_obs[r, u, t]).max()
            goal = users.rewards[r, u, t] + gamma * after
        value = q(users.obs[r, u, t])[users.actions[r, u, t]]
        losses.append(torch.nn.functional.smooth_l1_loss(value, goal))
    torch.stack(losses).mean().backward()
    for parameter in q.parameters():
        parameter.data = parameter.grad
    return vector_of(q)


def test_a_row_is_the_mean_gradient_over_their_own_steps():
    algo, state = made(batch=None)
    users = random_users(CHOICE, 2, 3, 9, seed=5, lengths=LENGTHS)
    users.rewards *= 3  # both sides of the smooth loss's bend
    rows = rows_of(algo, state, users)
    for r in range(2):
        for u in range(3):
            expected = brute(state, users, r, u, range(LENGTHS[r][u]))
            torch.testing.assert_close(rows[r, u], expected, rtol=1e-9, atol=1e-12)


def test_a_batch_is_drawn_from_their_own_steps():
    algo, state = made(batch=200)
    users = random_users(CHOICE, 2, 3, 9, seed=5, lengths=LENGTHS)
    for name in ("obs", "next_obs", "rewards"):  # what did not happen would show
        getattr(users, name)[~users.mask] = torch.nan
    batch, weight = algo._own_steps(0, users, STREAMS)
    assert torch.equal(weight.sum(-1).round(decimals=5), torch.ones(2, 3))
    for r in range(2):
        for u in range(3):
            own = set(users.rewards[r, u, : LENGTHS[r][u]].tolist())
            assert set(batch.reward[r, u].tolist()) == own
    rows = rows_of(algo, state, users)
    assert torch.isfinite(rows).all()
    again = algo._own_steps(1, users, STREAMS)[0]
    assert not torch.equal(again.reward, batch.reward)


def test_absent_people_are_rows_of_zeros():
    for batch in (None, 4):
        algo, state = made(batch=batch)
        users = random_users(CHOICE, 2, 3, 9, seed=5, lengths=[[9, 0, 1], [0, 9, 7]])
        for name in ("obs", "next_obs", "rewards"):
            getattr(users, name)[~users.mask] = 0
        users.valid = users.mask.any(-1)
        rows = rows_of(algo, state, users)
        assert not rows[~users.valid].any()
        assert rows[users.valid].any(-1).all()


def test_steps_of_a_batch_are_those_of_a_user_in_every_slot():
    """Who else joins moves a user to another slot: it must change nothing."""
    algo, _ = made(batch=4)
    users = random_users(CHOICE, 2, 3, 9, seed=5, lengths=LENGTHS)
    users.numbers = torch.tensor([[7, 2, 5], [2, 7, -1]])
    turn = [1, 2, 0]
    moved = replace(users, **{name: x[:, turn] for name, x in tensors(users).items()})
    there, _ = algo._own_steps(4, moved, STREAMS)
    here, _ = algo._own_steps(4, users, STREAMS)
    assert torch.equal(there.reward, here.reward[:, turn])


@pytest.mark.parametrize("batch", [None, 4])
def test_a_row_does_not_depend_on_others(batch):
    algo, state = made(batch=batch)
    users = random_users(CHOICE, 2, 3, 9, seed=5, lengths=LENGTHS)
    rows = rows_of(algo, state, users)
    other = random_users(CHOICE, 2, 3, 9, seed=6, lengths=[[3, 3, 3], [3, 3, 3]])
    for name in ("obs", "next_obs", "actions", "rewards", "terminated", "mask"):
        getattr(other, name)[:, 1] = getattr(users, name)[:, 1]
    changed = rows_of(algo, state, other)
    torch.testing.assert_close(rows[:, 1], changed[:, 1], rtol=1e-12, atol=1e-15)
    assert not torch.allclose(rows[:, 0], changed[:, 0])


def test_the_gate_clips_all_parameters_of_a_person_as_one_vector():
    algo, state = made(batch=None)
    (block,) = algo.blocks()
    assert (block.size, block.clip) == (algo.policy.net.size, 0.1)
    users = random_users(CHOICE, 2, 3, 9, seed=5, lengths=LENGTHS)
    users.rewards *= 1e6
    rows = rows_of(algo, state, users)
    clipped, norms = clip_rows(rows, block.clip, block.unit)
    assert (norms > block.clip).all()
    assert (clipped.double().norm(dim=-1) * block.unit <= block.clip).all()


def test_the_server_follows_as_torchs_adamw_with_amsgrad():
    algo, state = made(lr=1e-2, tau=0.1, decay=0.05)
    twins = []
    for r in range(2):
        q = torch.nn.Parameter(state.tensors["actor"][r, :-1].clone())
        adam = torch.optim.AdamW([q], lr=1e-2, weight_decay=0.05, amsgrad=True)
        twins.append((q, adam, state.tensors["target"][r].clone()))
    g = torch.Generator().manual_seed(2)
    for index in range(6):
        grad = torch.randn(2, algo.policy.net.size, generator=g, dtype=torch.float64) / (index + 1)
        state = algo.server(state, Means(grad))
        for r, (q, adam, target) in enumerate(twins):
            q.grad = grad[r]
            adam.step()
            target.mul_(0.9).add_(0.1 * q.data)
            torch.testing.assert_close(state.tensors["actor"][r, :-1], q.data, rtol=1e-7, atol=1e-9)
            torch.testing.assert_close(state.tensors["target"][r], target, rtol=1e-7, atol=1e-9)
    assert state.round == 6


def test_epsilon_is_a_function_of_the_public_round():
    algo, state = made(act_every=3, exploration_rounds=2.0)
    zero = torch.zeros(2, algo.policy.net.size, dtype=torch.float64)
    seen = []
    for _ in range(7):
        seen.append(state.tensors["actor"][:, -1].tolist())
        state = algo.server(state, Means(zero))
    seen = [a for a, b in seen if a == b]
    e = torch.tensor([0.9, 0.05 + 0.85 * 2.718281828**-0.5, 0.05 + 0.85 * 2.718281828**-1])
    expected = e.repeat_interleave(3)[1:7].tolist()  # `made` moved the first
    assert seen == pytest.approx(expected, abs=1e-6)
    fresh = algo.init(STREAMS).tensors["actor"][:, -1]
    assert fresh.tolist() == pytest.approx([0.9, 0.9])


def test_all_rounds_are_accounted_whoever_has_come():
    parts = make_plan(
        [compose(later_wins(["algo=dqn", *SMALL, "rounds=40", "privacy.users_per_round=3"]))]
    )
    plan = parts.gate
    event = plan.event(0)
    assert (event.population, event.q, plan.participation) == (10, 0.3, None)
    assert plan.planned_epsilon(0) == ledger_epsilon([event] * 40, 1e-5)
    assert (
        plan.unit.text
        == "one simulated user: one episode of at most 40 steps, reused in any of the rounds"
    )
    assert plan.guarantee(0).status == "formal"
    assert (parts.round_steps, parts.steps) == (10, 40)
    session = Trainer(parts)
    while not session.over:
        session.step()
    assert len(plan.ledgers[0].lines) == 40
    assert plan.guarantee(0, 40).epsilon == plan.planned_epsilon(0)
    session.close()


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["privacy.population=9"], "privacy.population: must be at least the 10 users who come"),
        (
            ["privacy.users_per_round=10"],
            "rounds: 40 rounds have 10 users, and privacy.users_per_round=10 of them are drawn for a round: "
            "at least rounds=41, got 40",
        ),
        (
            ["rounds=null", "total_steps=20", "privacy.users_per_round=10"],
            "total_steps: 2 rounds have 1 users, and privacy.users_per_round=10 of them are drawn for a round: "
            "at least total_steps=410, got 20",
        ),
        (["rounds=null", "total_steps=5"], "total_steps: one round takes 10, got 5"),
        (
            ["rounds=null", "total_steps=5", "env=pendulum"],
            "env: algo=dqn needs discrete actions; those of pendulum are continuous",
        ),
        (
            ["privacy.sampling=fixed", "privacy.adjacency=zero_out"],
            "privacy.sampling: algo=dqn takes poisson",
        ),
        (["privacy=none"], "privacy: algo=dqn is private by construction"),
        (["algo.batch=0"], "algo.batch: must be null or an integer >= 1, got 0"),
        (["algo.act_every=0"], "algo.act_every: must be an integer >= 1"),
        (["algo.tau=0"], "algo.tau: must be in"),
        (["algo.exploration_end=1.5"], "algo.exploration_end: must be in"),
    ],
    ids=str,
)
def test_bad_settings_name_their_key(words, said):
    with pytest.raises(ConfigError) as caught:
        make_plan(
            [
                compose(
                    later_wins(
                        ["algo=dqn", *SMALL, "rounds=40", "privacy.users_per_round=3", *words]
                    )
                )
            ]
        )
    assert str(caught.value).startswith(said)


def session(*words, seeds=(0,), rounds=12):
    base = ["algo=dqn", *SMALL, f"rounds={rounds}", "privacy.users_per_round=3", *words]
    parts = make_plan([compose(later_wins([*base, f"seed={s}"])) for s in seeds])
    return Trainer(parts)


def test_two_seeds_together_are_two_seeds_alone():
    both, lone = session(seeds=(0, 1), rounds=24), session(seeds=(1,), rounds=24)
    assert_two_seeds_are_two_alone(both, lone, 12)


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("words", [("algo.act_every=1",), ("algo.act_every=2", "algo.new_users=2")])
def test_a_session_cut_in_two_is_whole(words):
    whole = session(*words, seeds=(0, 1))
    for _ in range(8):
        whole.step()
    first = session(*words, seeds=(0, 1))
    for _ in range(5):
        first.step()
    saved = [first.checkpoint(first.snapshot(), r) for r in range(2)]
    # Replicas that were saved by themselves keep episodes of other lengths.
    first.step()
    second = session(*words, seeds=(0, 1))
    assert second.restore(saved)
    while second.round < 8:
        second.step()
    for name, x in whole.state.tensors.items():
        assert torch.equal(second.state.tensors[name], x), name
    there = second.collector.get_state()
    for name, x in whole.collector.get_state().items():
        assert torch.equal(there[name], x), name
    for one in (whole, first, second):
        one.close()


def test_what_people_did_leaves_with_no_policy():
    one = session(rounds=20)
    for _ in range(3):
        one.step()
    assert not [name for name in one.state.tensors if "people" in name]
    sizes = {name: x.shape[1] for name, x in one.state.tensors.items()}
    size = one.parts.algo.policy.net.size
    weights = dict.fromkeys(("target", "m", "v", "peak"), size)
    assert sizes == {"actor": size + 1, "updates": 1} | weights
    one.close()


@pytest.mark.slow
def test_it_learns_cartpole_without_noise():
    words = ["algo=dqn", "env=cartpole", "privacy.z=0", "rounds=500", "eval.policy=greedy"]
    more = [
        "algo.lr=3e-3",
        "algo.tau=0.05",
        "privacy.users_per_round=20",
        "algo.act_every=5",
        "algo.new_users=1",
        "log=none",
    ]
    one = Trainer(make_plan([compose(later_wins([*words, *more, "algo.exploration_rounds=20"]))]))
    while not one.over:
        one.step()
    assert one.evaluate()[0].returns.mean() > 100  # random play: about 22
    one.close()
