"""A user's row: the paper's box one user at a time with torch's own parts, and nobody else in it."""

from dataclasses import replace

import pytest
import torch
from helpers import (
    BOX,
    CHOICE,
    TorchPolicy,
    context,
    in_double,
    learn,
    module_of,
    open_gate,
    own,
    random_users,
    rollout_of,
    slow_gae,
    tensors,
    vector_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.algorithms.base import step_order
from privrl_bench.algorithms.policy_gradient.critics import SHARED_CRITIC
from privrl_bench.algorithms.policy_gradient.dppg import Dppg
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import DppgConfig
from privrl_bench.composition.compose import compose
from privrl_bench.envs.registry import env_spec
from privrl_bench.functional.averaging import deployed
from privrl_bench.functional.rng import Streams
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer
from privrl_bench.types import State, UserBatch

HIDDEN = [6, 5]
STREAMS = [Streams(3), Streams(8)]
CLIP, CRITIC_CLIP = 0.02, 0.03
ROUNDS = 10
LENGTHS = [[9, 4, 1], [2, 9, 7]]


def made(spec=CHOICE, round_index=0, **changes):
    """An algorithm and a state in float64, with weights that make every term matter."""
    settings_ = {
        "hidden": HIDDEN,
        "epochs": 3,
        "minibatches": 2,
        "lr": 4e-3,
        "entropy_coef": 0.1,
        "anneal_lr": True,
        "anneal_server": False,
        "critic_clip": CRITIC_CLIP,
        "critic_features": 7,
        **changes,
    }
    algo = Dppg(DppgConfig(**settings_), context(spec, CLIP, ROUNDS, 3))
    state = algo.init(STREAMS)
    g = torch.Generator().manual_seed(4)
    for name, x in state.tensors.items():
        size = 0.02 if name.startswith("last") else 0.5
        state.tensors[name] = x + size * torch.randn(x.shape, generator=g)
    state.round = round_index
    return algo, in_double(state)


def rows_of(algo, state, users):
    rows, valid, bypass = algo.user_update(state, users, STREAMS[: len(users.mask)]).take()
    return rows, valid, bypass


def adam_from(parameters, last, step, lr):
    """torch's Adam, started from given moments as the authors' code does."""
    adam = torch.optim.Adam(parameters, lr=lr, eps=1e-5)
    for p, moment in zip(parameters, last or [], strict=last is not None):
        adam.state[p] = {
            "step": torch.tensor(float(step)),
            "exp_avg": moment.clone(),
            "exp_avg_sq": moment.clone() ** 2,
        }
    return adam


def pieces_of(module, vector, spec=None):
    """The parts of a flat vector in the order and shape of the module's parameters."""
    twin = module_of(vector, module) if spec is None else TorchPolicy(spec, vector, HIDDEN)
    return [p.detach() for p in twin.parameters()]


def alone(algo, state: State, users: UserBatch, r: int, u: int, order):
    """One user with modules, distributions, torch's Adam and an explicit projection.

    Returns their (actor change, shared critic change or None).
    """
    config, spec = algo.config, algo._context.spec
    one = {n: x[r, u] for n, x in tensors(users).items()}
    steps = int(one["mask"].sum())
    one = {n: x[:steps] if x.dim() else x for n, x in one.items()}
    critic = None
    values = after = torch.zeros(steps, dtype=torch.float64)
    lam = config.gae_lambda
    if config.critic == "shared":
        critic = module_of(state.tensors["critic"][r], [spec.obs_dim, *HIDDEN, 1])
        values = critic(one["obs"])[:, 0].detach()
        after = critic(one["next_obs"])[:, 0].detach()
    elif config.critic == "none":
        lam = 1.0
    terminated = one["done"] if config.time_limit == "terminate" else one["terminated"]
    ends = (terminated, one["done"])
    advantages = slow_gae(one["rewards"], values, after, *ends, config.gamma, lam)
    targets = advantages + values
    if config.normalize_advantage:
        spread = advantages.std() if steps > 1 else torch.tensor(0.0)
        advantages = (advantages - advantages.mean()) / (spread + 1e-8)

    start = state.tensors["actor"][r]
    policy = TorchPolicy(spec, start, HIDDEN)
    old = policy.distribution(one["obs"]).log_prob(one["actions"]).detach()
    lr = config.lr * (1 - state.round / ROUNDS)
    done = state.round * config.epochs * config.minibatches
    seeded = config.user_adam == "seeded" and state.round > 0
    last = pieces_of(None, state.tensors["last_actor"][r], spec) if seeded else None
    adam = adam_from(list(policy.parameters()), last, done, lr)
    if critic is not None:
        critic_start = vector_of(critic)
        widths = [spec.obs_dim, *HIDDEN, 1]
        last = pieces_of(widths, state.tensors["last_critic"][r]) if seeded else None
        critic_adam = adam_from(list(critic.parameters()), last, done, lr)

    def back_into_ball(module, origin, radius, rebuild):
        moved = module.vector() if rebuild is None else vector_of(module)
        change = moved - origin
        if float(change.norm()) > radius:
            change = change * (radius / change.norm())
        fresh = (
            TorchPolicy(spec, origin + change, HIDDEN)
            if rebuild is None
            else rebuild(origin + change)
        )
        for p, q in zip(module.parameters(), fresh.parameters(), strict=True):
            p.data.copy_(q.data)

    for epoch in order:  # [E, M, B]
        for chosen in epoch:
            found = policy.distribution(one["obs"][chosen])
            ratio = (found.log_prob(one["actions"][chosen]) - old[chosen]).exp()
            gain = ratio * advantages[chosen]
            if config.ratio_clip is not None:
                c = config.ratio_clip
                gain = torch.minimum(gain, ratio.clamp(1 - c, 1 + c) * advantages[chosen])
            loss = -gain.mean() - config.entropy_coef * found.entropy().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            back_into_ball(policy, start, CLIP, None)
            if critic is not None:
                error = critic(one["obs"][chosen])[:, 0] - targets[chosen]
                critic_adam.zero_grad()
                (0.25 * (error**2).mean()).backward()
                critic_adam.step()
                back_into_ball(critic, critic_start, CRITIC_CLIP, lambda v: module_of(v, widths))
    change = policy.vector() - start
    return change, None if critic is None else vector_of(critic) - critic_start


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "episodes"])
@pytest.mark.parametrize("spec", [CHOICE, BOX], ids=["choice", "box"])
@pytest.mark.parametrize(
    "changes",
    [
        {"critic": "none"},
        {"critic": "shared"},
        {"critic": "shared", "user_adam": "seeded", "round_index": 4},
        {"critic": "shared", "time_limit": "terminate"},
        {"critic": "none", "ratio_clip": 0.01, "normalize_advantage": False, "minibatches": 4},
        {"critic": "none", "lr": 1e-5},
    ],
    ids=["none", "shared", "seeded", "time-limit", "ratio-clip", "inside-ball"],
)
def test_all_users_at_once_equal_one_user_at_a_time(spec, changes, lengths) -> None:
    algo, state = made(spec, **changes)
    users = random_users(spec, 2, 3, 9, seed=1, lengths=lengths)
    config = algo.config
    order = step_order(users, STREAMS, state.round, config.epochs, config.minibatches)
    rows, _, bypass = rows_of(algo, state, users)
    norms = rows["actor"].norm(dim=-1)
    slow = torch.zeros_like(rows["actor"])
    critics = torch.zeros(2, 3, dtype=torch.float64)
    mean = torch.zeros_like(state.tensors["critic"]) if "critic" in state.tensors else None
    for r in range(2):
        for u in range(3):
            slow[r, u], critic = alone(algo, state, users, r, u, order[:, 3 * r + u])
            if critic is not None:
                mean[r] += critic / 3
                critics[r, u] = critic.norm()
    torch.testing.assert_close(rows["actor"], slow, rtol=1e-7, atol=1e-9)
    assert (norms <= CLIP * (1 + 1e-9)).all()
    if changes.get("lr") == 1e-5:
        assert ((norms > 1e-6) & (norms < 0.9 * CLIP)).all()
    else:
        assert (norms > 0.99 * CLIP).any()  # the projection was at work
    if mean is not None:
        assert (critics > 0.99 * CRITIC_CLIP).any()
        torch.testing.assert_close(bypass[SHARED_CRITIC]["change"], mean, rtol=1e-7, atol=1e-9)


def test_the_seeded_start_changes_the_row_and_the_first_round_has_none() -> None:
    users = random_users(CHOICE, 2, 3, 9, seed=1)
    for round_index, same in ((0, True), (4, False)):
        reset, state = made(critic="none", round_index=round_index)
        seeded, other = made(critic="none", user_adam="seeded", round_index=round_index)
        other.tensors["actor"] = state.tensors["actor"]
        a = rows_of(reset, state, users)[0]["actor"]
        b = rows_of(seeded, other, users)[0]["actor"]
        assert torch.equal(a, b) == same


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["full", "episodes"])
@pytest.mark.parametrize("spec", [CHOICE, BOX], ids=["choice", "box"])
def test_one_gradient_is_that_of_all_their_steps_scaled_to_the_clip(spec, lengths) -> None:
    """By autograd on the surrogate at ratio 1; a short user's steps are repeated to fill T."""
    algo, state = made(spec, critic="none", user_update="gradient", minibatches=3)
    users = random_users(spec, 2, 3, 9, seed=1, lengths=lengths)
    rows = rows_of(algo, state, users)[0]["actor"]
    for r in range(2):
        for u in range(3):
            n = int(users.mask[r, u].sum())
            ends = (users.terminated[r, u, :n], users.done[r, u, :n])
            none = torch.zeros(n, dtype=torch.float64)
            gains = slow_gae(users.rewards[r, u, :n], none, none, *ends, algo.config.gamma, 1.0)
            spread = gains.std() if n > 1 else torch.tensor(0.0)
            gains = (gains - gains.mean()) / (spread + 1e-8)
            start = state.tensors["actor"][r]
            policy = TorchPolicy(spec, start, HIDDEN)
            order = step_order(users, STREAMS, 0, 3, 3)[0, 3 * r + u].flatten()
            found = policy.distribution(users.obs[r, u, order])
            said = found.log_prob(users.actions[r, u, order])
            (said * gains[order] + 0.1 * found.entropy()).mean().backward()
            for p in policy.parameters():
                p.data += p.grad
            gradient = policy.vector().detach() - start
            expected = CLIP * gradient / gradient.norm()
            torch.testing.assert_close(rows[r, u], expected, rtol=1e-6, atol=1e-9)


def test_a_time_limit_can_count_as_a_termination() -> None:
    users = random_users(CHOICE, 2, 3, 9, seed=1)
    users.terminated[:] = False
    users.done[..., 4] = True
    algo, state = made(critic="shared", time_limit="terminate")
    cut = rows_of(algo, state, users)[0]["actor"]
    kept = rows_of(made(critic="shared")[0], state, users)[0]["actor"]
    users.terminated[:] = users.done
    ended = rows_of(made(critic="shared")[0], state, users)[0]["actor"]
    assert torch.equal(cut, ended)
    assert not torch.equal(cut, kept)


def test_the_gradient_zero_stays_zero() -> None:
    algo, state = made(critic="none", user_update="gradient", entropy_coef=0.0)
    users = random_users(CHOICE, 2, 3, 9, seed=1)
    users.rewards[:] = 0
    assert not rows_of(algo, state, users)[0]["actor"].any()


def test_the_private_row_of_the_critic_is_the_ridge_solution_on_their_own_residuals() -> None:
    algo, state = made(critic="private", critic_ridge=0.3)
    state = State(0, {n: x.float() for n, x in state.tensors.items()})
    users = random_users(CHOICE, 2, 3, 9, seed=1, lengths=LENGTHS)
    users = UserBatch(
        **{n: x.float() if x.is_floating_point() else x for n, x in tensors(users).items()}
    )
    rows, _, bypass = rows_of(algo, state, users)
    assert not bypass
    assert [(b.name, b.size) for b in algo.blocks()][1] == ("critic", 8)
    features = algo.critic._features
    config = algo.config
    for r in range(2):
        weights = state.tensors["critic"][r]
        for u in range(3):
            n = LENGTHS[r][u]
            phi = features(users.obs[r, u, :n])
            values, after = phi @ weights, features(users.next_obs[r, u, :n]) @ weights
            ends = (users.terminated[r, u, :n], users.done[r, u, :n])
            residual = slow_gae(
                users.rewards[r, u, :n], values, after, *ends, config.gamma, config.gae_lambda
            )
            # Least squares with the penalty as extra rows: |phi w - residual|^2 / n + 0.3 |w|^2.
            left = torch.cat([phi / n**0.5, 0.3**0.5 * torch.eye(8)]).double()
            right = torch.cat([residual / n**0.5, torch.zeros(8)]).double()
            expected = torch.linalg.lstsq(left, right[:, None]).solution[:, 0].float()
            torch.testing.assert_close(rows["critic"][r, u], expected, rtol=1e-3, atol=1e-5)


# -- nobody else is in a row ----------------------------------------------------------------

CRITICS = ["shared", "private", "none"]


def single(users: UserBatch, **changes) -> UserBatch:
    kept = {n: x.float() if x.is_floating_point() else x for n, x in tensors(users).items()}
    return UserBatch(**{**kept, **changes})


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("what", ["other", "nan", "short", "invalid"])
def test_a_row_does_not_change_when_another_users_data_change(critic, what) -> None:
    algo, state = made(critic=critic)
    state = State(0, {n: x.float() for n, x in state.tensors.items()})
    users = single(random_users(CHOICE, 2, 3, 9, seed=1))
    changed = {n: x.clone() for n, x in tensors(users).items()}
    if what == "other":
        substitute = tensors(single(random_users(CHOICE, 2, 3, 9, seed=2)))
        for n, x in changed.items():
            x[0, 1] = substitute[n][0, 1]
    elif what == "nan":
        changed["obs"][0, 1, 3] = torch.nan
        changed["rewards"][0, 1, 5] = torch.inf
    elif what == "short":
        changed["mask"][0, 1, 2:] = False
        changed["done"][0, 1, 1] = True
    else:
        changed["valid"][0, 1] = False
    before, _, _ = rows_of(algo, state, users)
    after, valid, _ = rows_of(algo, state, UserBatch(**changed))
    others = torch.ones(2, 3, dtype=torch.bool)
    others[0, 1] = False
    for name in before:
        assert torch.equal(before[name][others], after[name][others]), name
        if what in ("other", "short"):
            assert not torch.equal(before[name][0, 1], after[name][0, 1]), name
    assert torch.equal(valid, changed["valid"])


@pytest.mark.parametrize("critic", CRITICS)
def test_steps_that_did_not_happen_are_not_in_a_row(critic) -> None:
    algo, state = made(critic=critic)
    state = State(0, {n: x.float() for n, x in state.tensors.items()})
    users = single(random_users(CHOICE, 2, 3, 9, seed=1, lengths=LENGTHS))
    substitute = tensors(single(random_users(CHOICE, 2, 3, 9, seed=2)))
    filled = {n: x.clone() for n, x in tensors(users).items()}
    for name in ("obs", "next_obs", "actions", "rewards"):
        filled[name][~users.mask] = 50 * substitute[name][~users.mask]
    filled["actions"] %= 4
    before, _, one = rows_of(algo, state, users)
    after, _, two = rows_of(algo, state, UserBatch(**filled))
    for name in before:
        assert torch.equal(before[name], after[name]), name
    if critic == "shared":
        assert torch.equal(one[SHARED_CRITIC]["change"], two[SHARED_CRITIC]["change"])


@pytest.mark.parametrize("what", ["invalid", "nan"])
def test_the_shared_critic_leaves_out_who_cannot_take_part(what) -> None:
    algo, state = made(critic="shared")
    users = random_users(CHOICE, 2, 3, 9, seed=1)
    order = step_order(users, STREAMS, 0, 3, 2)
    if what == "invalid":
        users.valid[0, 1] = False
    else:
        users.rewards[0, 1, 4] = torch.nan
    change = rows_of(algo, state, users)[2][SHARED_CRITIC]["change"]
    clean = random_users(CHOICE, 2, 3, 9, seed=1)
    expected = sum(alone(algo, state, clean, 0, u, order[:, u])[1] for u in (0, 2)) / 3
    torch.testing.assert_close(change[0], expected, rtol=1e-7, atol=1e-9)


def test_a_replica_is_the_same_alone_and_in_company() -> None:
    for critic in CRITICS:
        algo, state = made(critic=critic)
        state = State(0, {n: x.float() for n, x in state.tensors.items()})
        users = single(random_users(CHOICE, 2, 3, 9, seed=1))
        both, _, _ = rows_of(algo, state, users)
        half = State(0, {n: x[1:] for n, x in state.tensors.items()})
        second = UserBatch(**{n: x[1:] for n, x in tensors(users).items()})
        alone_, _, _ = algo.user_update(half, second, STREAMS[1:]).take()
        for name in both:
            assert torch.equal(both[name][1:], alone_[name]), (critic, name)


def test_what_each_critic_declares() -> None:
    names = {c: [b.name for b in made(critic=c)[0].blocks()] for c in CRITICS}
    assert names == {"shared": ["actor"], "private": ["actor", "critic"], "none": ["actor"]}
    caveats = {c: list(made(critic=c)[0].terms().caveats) for c in CRITICS}
    assert caveats == {"shared": [SHARED_CRITIC], "private": [], "none": []}


def test_the_server_adds_the_release_and_remembers_it_when_seeded() -> None:
    from types import SimpleNamespace

    algo, state = made(user_adam="seeded", critic="shared", round_index=4)
    before = state.clone()
    step = torch.full_like(state.tensors["actor"], 0.25)
    critic = torch.full_like(state.tensors["critic"], -0.5)
    released = SimpleNamespace(values={"actor": step}, bypass={SHARED_CRITIC: {"change": critic}})
    after = algo.server(state, released)
    assert after.round == 5
    assert torch.equal(after.tensors["actor"], before.tensors["actor"] + 0.25)
    assert torch.equal(after.tensors["critic"], before.tensors["critic"] - 0.5)
    assert torch.equal(after.tensors["last_actor"], step)
    assert torch.equal(after.tensors["last_critic"], critic)
    for name, x in before.tensors.items():
        assert torch.equal(state.tensors[name], x), name  # the old state is left alone


def test_the_average_of_the_released_policies_is_saved_and_nobody_acts_with_it() -> None:
    from types import SimpleNamespace

    algo, state = made(critic="none", averaging=4.0)
    plain, other = made(critic="none")
    other.tensors["actor"] = state.tensors["actor"]
    start = algo.init(STREAMS).tensors
    assert torch.equal(deployed(start, start["actor"]), start["actor"])
    iterates = []
    for index in range(7):
        g = torch.Generator().manual_seed(index)
        change = torch.randn(state.tensors["actor"].shape, generator=g).double()
        released = SimpleNamespace(values={"actor": change}, bypass={})
        state, other = algo.server(state, released), plain.server(other, released)
        iterates.append(algo.actor(state))
        assert torch.equal(algo.actor(state), deployed(other.tensors, plain.actor(other)))
    # Shamir and Zhang's weights: iterate i of n (from 1) is multiplied by prod (1 - 5 / (4 + t)) for t > i.
    weights = []
    for i in range(1, 8):
        w = 5.0 / (4.0 + i)
        for t in range(i + 1, 8):
            w *= 1.0 - 5.0 / (4.0 + t)
        weights.append(w)
    assert sum(weights) == pytest.approx(1.0)
    expected = sum(w * x for w, x in zip(weights, iterates, strict=True))
    torch.testing.assert_close(deployed(state.tensors, iterates[-1]), expected)
    assert not torch.allclose(expected, iterates[-1])


# -- the order of the steps -----------------------------------------------------------------


def masks(lengths, steps):
    users = random_users(CHOICE, *torch.as_tensor(lengths).shape, steps, 0, lengths=lengths)
    return users


@settings(max_examples=60)
@given(st.data())
def test_every_user_goes_through_their_own_steps_and_no_others(data) -> None:
    steps = data.draw(st.integers(1, 24))
    epochs, minibatches = data.draw(st.integers(1, 3)), data.draw(st.integers(1, steps))
    own_steps = data.draw(st.lists(st.integers(1, steps), min_size=4, max_size=4))
    lengths = torch.tensor(own_steps).reshape(2, 2)
    order = step_order(masks(lengths, steps), STREAMS, 5, epochs, minibatches)
    size = steps // minibatches
    assert order.shape == (epochs, 4, minibatches, size)
    for user, count in enumerate(own_steps):
        for epoch in order[:, user].reshape(epochs, -1):
            times = torch.bincount(epoch, minlength=steps)
            assert not times[count:].any()
            assert int(times[:count].max() - times[:count].min()) <= 1
            assert int(times.sum()) == size * minibatches


def test_orders_differ_between_users_epochs_and_rounds_and_repeat_themselves() -> None:
    users = masks([[32, 32], [32, 32]], 32)
    order = step_order(users, STREAMS, 5, 2, 1).reshape(8, 32)
    assert len({tuple(x.tolist()) for x in order}) == 8
    assert torch.equal(order.reshape(2, 4, 1, 32), step_order(users, STREAMS, 5, 2, 1))
    assert not torch.equal(order.reshape(2, 4, 1, 32), step_order(users, STREAMS, 6, 2, 1))


def test_an_order_depends_on_the_users_own_mask_only() -> None:
    first = step_order(masks([[9, 4], [2, 7]], 9), STREAMS, 0, 2, 3)
    other = step_order(masks([[9, 1], [9, 9]], 9), STREAMS, 0, 2, 3)
    assert torch.equal(first[:, 0], other[:, 0])


# -- and it learns --------------------------------------------------------------------------


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("critic", CRITICS)
def test_without_noise_it_learns_the_chain_that_random_play_cannot(critic) -> None:
    config = own("MyEnv", user="fresh")
    rollout, _ = rollout_of(config, [0, 1], 8, 40)
    setup = context(env_spec(config), 0.5, 25, 8)
    algo = Dppg(DppgConfig(hidden=[16], lr=0.02, critic=critic, entropy_coef=0.01), setup)
    rollout._policy = algo.policy
    state, curve = learn(algo, rollout, 25)
    assert curve[0] < 3.0  # uniform play: 17 / 16
    assert curve[-1] > 12.0
    assert state.round == 25


def test_a_contribution_in_the_open_is_what_the_gate_would_average() -> None:
    algo, state = made(critic="none")
    users = random_users(CHOICE, 2, 3, 9, seed=1)
    users.valid[1, 2] = False
    values, _ = open_gate(algo.user_update(state, users, STREAMS))
    rows, _, _ = rows_of(algo, state, users)
    torch.testing.assert_close(values["actor"][1], rows["actor"][1, :2].sum(0) / 3)


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    "word",
    [
        "algo.averaging=4",
        "algo.anneal_server=false",
        "algo.anneal_after=0.5",
        "algo.user_update=gradient",
    ],
)
def test_nothing_that_the_server_does_changes_epsilon_or_noise(word) -> None:
    """Noise is seeded by all settings, so its values differ, but not its size or the ledger's lines."""
    found = []
    for words in ([], [word]):
        config = compose(["env=cartpole", "rounds=4", "privacy.z=0.7", *words])
        gate = make_plan([config]).gate
        plan = gate.guarantee(0)
        found.append((plan.epsilon, plan.status, plan.unit, gate.mechanism.release_noise(0)))
    assert found[0] == found[1]


@pytest.mark.parametrize(("after", "slope"), [(0.5, 2.0), (0.0, 1.0)])
def test_the_server_step_is_held_and_then_falls_to_zero(after, slope) -> None:
    from types import SimpleNamespace

    steps = [min(1.0, slope * (1.0 - i / ROUNDS)) for i in range(ROUNDS)]
    assert steps[0] == 1.0 > steps[-1] > 0.0
    for index, step in enumerate(steps):
        settings_ = {"anneal_server": True, "anneal_after": after}
        algo, state = made(critic="none", round_index=index, **settings_)
        change = torch.ones_like(state.tensors["actor"])
        moved = algo.server(state, SimpleNamespace(values={"actor": change}, bypass={}))
        torch.testing.assert_close(algo.actor(moved) - algo.actor(state), step * change)


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("words", [[], ["tuned=dppg_acrobot_adam"]], ids=["gradient", "adam"])
def test_a_replica_is_its_run_alone_to_the_last_bit(words):
    sizes = ["privacy.users_per_round=16", "env.user_steps=64", "rounds=3", "log=none"]
    base = compose(["algo=dppg", "env=acrobot", "privacy.z=1", *words, *sizes])

    def trained(seeds):
        parts = make_plan([replace(base, seed=seed) for seed in seeds])
        trainer = Trainer(parts)
        try:
            for _ in range(3):
                trainer.step()
            return trainer.state.tensors
        finally:
            trainer.close()

    together = trained(range(6))
    for seed in (0, 5):
        for name, tensor in trained([seed]).items():
            assert torch.equal(together[name][seed], tensor[0]), name
