"""The Fisher metric: against the information by its definition, and against divergences of small steps."""

from types import SimpleNamespace

import pytest
import torch
from helpers import BOX, CHOICE, context, in_double, random_users
from numpy.polynomial.hermite_e import hermegauss
from torch.distributions import Categorical, Normal, kl_divergence

from privrl_bench.algorithms.policy_gradient import fisher
from privrl_bench.algorithms.policy_gradient.dppg import Dppg
from privrl_bench.algorithms.policy_gradient.fisher import FisherMetric
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import DppgConfig
from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.models.policy import make_policy
from privrl_bench.training.plan import make_plan
from privrl_bench.types import EnvSpec, Image

SEVERAL = EnvSpec("several", 3, False, 2, 10, choices=(2, 3))
SPECS = {"choice": CHOICE, "box": BOX, "several": SEVERAL}
DAMPING = 0.1
CLIP, ROUNDS, STREAMS = 0.02, 10, [Streams(3), Streams(8)]


def some(spec, hidden, states=40, seed=0):
    """A policy whose parameters are far from their start, and its metric at few states."""
    policy = make_policy(spec, hidden)
    generator = torch.Generator().manual_seed(seed)
    actor = policy.init(generator) + 0.3 * torch.randn(policy.size, generator=generator)
    metric = FisherMetric(policy, DAMPING)
    metric._states = metric._states[:states]
    return policy, actor, metric


def information(policy, actor, states, spec):
    """F by its definition: E over actions of the outer product of the score, by automatic differentiation."""
    total = torch.zeros(policy.size, policy.size, dtype=torch.float64)

    def logs(params, state, action):
        return policy.log_prob(params[None], state[None, None], action[None, None])[0][0, 0]

    score = torch.func.grad(logs)
    for state in states:
        for action, weight in actions_of(policy, actor, state, spec):
            g = score(actor.double(), state.double(), action)
            total += weight * torch.outer(g, g)
    return total / len(states)


def actions_of(policy, actor, state, spec):
    """Actions and weights with which the expectation is exact: all choices, or Gauss-Hermite nodes."""
    out = policy.net.forward(actor[None, : policy.net.size], state[None, None])[0, 0].double()
    if spec.discrete:
        return [(torch.tensor(k), p) for k, p in enumerate(torch.softmax(out, 0))]
    if spec.choices:
        first, second = (torch.softmax(x, 0) for x in out.split(list(spec.choices)))
        pairs = [(i, j) for i in range(2) for j in range(3)]
        return [(torch.tensor(pair), first[pair[0]] * second[pair[1]]) for pair in pairs]
    nodes, weights = (torch.from_numpy(x) for x in hermegauss(5))
    weights, std = weights / weights.sum(), actor[policy.net.size :].double().exp()
    grid = [(i, j) for i in range(5) for j in range(5)]
    return [(out + std * nodes[list(ij)], weights[ij[0]] * weights[ij[1]]) for ij in grid]


def dense(metric, tensor, policy):
    """S as a matrix."""
    return metric.whiten(tensor, torch.eye(policy.size)[None])[0].double()


def root(information):
    values, vectors = torch.linalg.eigh(information)
    return vectors @ torch.diag((values.clamp_min(0.0) + DAMPING).rsqrt()) @ vectors.T


@pytest.mark.parametrize("name", SPECS)
def test_of_one_state_every_layer_is_exact(name):
    """The Kronecker product is exact at one state; what is between layers is left out."""
    spec = SPECS[name]
    policy, actor, metric = some(spec, [5, 4], states=1)
    exact = information(policy, actor, metric._states, spec)
    first, blocks = 0, torch.zeros_like(exact)
    sizes = [(a + 1) * b for a, b in policy.net.shapes] + [1] * (policy.size - policy.net.size)
    for size in sizes:
        part = slice(first, first + size)
        blocks[part, part], first = exact[part, part], first + size
    found = dense(metric, metric.of(actor[None]), policy)
    torch.testing.assert_close(found, root(blocks), atol=2e-4, rtol=1e-3)


def test_of_a_linear_gaussian_policy_it_is_exact():
    policy, actor, metric = some(BOX, [])
    exact = information(policy, actor, metric._states, BOX)
    found = dense(metric, metric.of(actor[None]), policy)
    torch.testing.assert_close(found, root(exact), atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("name", SPECS)
def test_divergences_are_those_of_small_steps(name):
    spec = SPECS[name]
    policy, actor, metric = some(spec, [5, 4])
    step = 1e-2 * torch.randn(policy.size, generator=torch.Generator().manual_seed(1))
    both = torch.stack([actor, actor + step]).double()
    out = policy.net.forward(both[:, : policy.net.size], metric._states.double().expand(2, -1, -1))
    if name == "box":
        std = both[:, None, policy.net.size :].exp().expand_as(out)
        exact = kl_divergence(Normal(out[0], std[0]), Normal(out[1], std[1])).sum(-1).mean()
    else:
        parts = out.split(list(spec.choices) if name == "several" else [4], dim=-1)
        each = [kl_divergence(Categorical(logits=x[0]), Categorical(logits=x[1])) for x in parts]
        exact = sum(x.mean() for x in each)
    found = metric.divergences(actor[None], step[None])
    assert float(found[0]) == pytest.approx(float(exact), rel=0.03)


def test_whitening_is_of_each_row_and_replica_alone():
    policy, actor, metric = some(CHOICE, [5])
    other = actor + 0.5
    rows = torch.randn(2, 3, policy.size, generator=torch.Generator().manual_seed(2))
    together = metric.whiten(metric.of(torch.stack([actor, other])), rows)
    for r, one in enumerate((actor, other)):
        for u in range(3):
            alone = metric.whiten(metric.of(one[None]), rows[None, r, u : u + 1])[0, 0]
            torch.testing.assert_close(together[r, u], alone)


def test_its_states_are_constants():
    """No user's data, and no seed of the run: drawn once, from a seed that is written in the module."""
    states = [FisherMetric(make_policy(BOX, [5]), DAMPING)._states for _ in range(2)]
    assert torch.equal(*states)
    assert len(states[0]) == fisher._STATES
    assert abs(float(states[0].mean())) < 0.1
    assert float(states[0].std()) == pytest.approx(1.0, abs=0.1)


def test_convolutions_are_refused():
    spec = EnvSpec("image", 5 * 7 * 3, True, 3, 10, image=Image(5, 7, 3, False, 1 / 255))
    with pytest.raises(ConfigError, match=r"^algo.metric: fisher needs algo.network=mlp"):
        FisherMetric(make_policy(spec, [5], "cnn"), DAMPING)


# --- in DPPG


def made(spec, **changes):
    """An algorithm with the metric, and its state in float64."""
    given = {"hidden": [6, 5], "metric": "fisher", "user_update": "gradient", "critic": "none"}
    config = DppgConfig(**given | {"epochs": 1, "minibatches": 1, "momentum": 0.5} | changes)
    algo = Dppg(config, context(spec, CLIP, ROUNDS, 3))
    return algo, in_double(algo.init(STREAMS))


def rows_of(algo, state, users):
    return algo.user_update(state, users, STREAMS).take()[0]["actor"]


@pytest.mark.parametrize("spec", [CHOICE, BOX], ids=["choice", "box"])
def test_a_row_is_the_whitened_gradient_scaled_to_the_clip(spec):
    algo, state = made(spec)
    users = random_users(spec, 2, 3, 9, seed=1)
    plain = rows_of(made(spec, metric="euclidean")[0], state, users)
    expected = algo._geometry._metric.whiten(state.tensors[fisher.METRIC], plain)
    expected *= CLIP / expected.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(rows_of(algo, state, users), expected)


def test_steps_follow_the_average_of_releases_and_have_the_divergence_that_is_asked_for():
    algo, state = made(BOX, step_kl=0.03)
    metric, generator = algo._geometry._metric, torch.Generator().manual_seed(1)
    average = torch.zeros_like(state.tensors["actor"])
    for index in range(3):
        released = torch.randn(average.shape, generator=generator, dtype=average.dtype)
        after = algo.server(state, SimpleNamespace(values={"actor": released}))
        step = after.tensors["actor"] - state.tensors["actor"]
        average = 0.5 * average + 0.5 * released
        along = metric.whiten(state.tensors[fisher.METRIC], average[:, None])[:, 0]
        assert torch.cosine_similarity(step, along) == pytest.approx([1.0, 1.0])
        share = 1 - index / ROUNDS
        size = metric.divergences(state.tensors["actor"], step)
        assert size.tolist() == pytest.approx([0.03 * share**2] * 2)
        assert torch.equal(after.tensors[fisher.METRIC], metric.of(after.tensors["actor"]))
        state = after


def test_nothing_on_the_side_of_the_server_changes_epsilon():
    words = ["algo=dppg", "env=hopper", "algo.metric=fisher", "log=none"]
    options = ["algo.step_kl=0.3", "algo.damping=2", "algo.momentum=0", "algo.averaging=null"]
    plans = [make_plan([compose([*words, *more])]) for more in ([], options)]
    plans.append(make_plan([compose([*words[:2], "log=none"])]))
    assert len({plan.gate.guarantee(0).epsilon for plan in plans}) == 1


def test_it_needs_gradients():
    with pytest.raises(ConfigError, match=r"^algo.metric: fisher needs algo.user_update=gradient"):
        made(CHOICE, user_update="adam")
