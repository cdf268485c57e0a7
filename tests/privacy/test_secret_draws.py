"""Who takes part in a round, and how many, is secret: no metric that may leave depends on it.

They come from the source of the noise, and so does what a search draws.
"""

import math

import pytest

from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError
from privrl_bench.metrics import METRICS, visible
from privrl_bench.packs.tuning.best_of_runs import RunCount, draw_search
from privrl_bench.privacy import noise
from privrl_bench.privacy.noise import SecureNoise, SeededNoise
from privrl_bench.privacy.rules import rules
from privrl_bench.privacy.sampling import REGISTRY
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

SMALL = ("log=none", "eval.episodes=2", "rounds=3", "privacy.z=1")
RIVERSWIM = ["algo=dppg_kl", "env=riverswim", "privacy=poisson", "privacy.population=100"]
EVALUATION = ["algo=gpope", "env=chain", "data.policy=uniform", "privacy.population=9"]
OFFLINE = ["algo=primorl", "env=pendulum", "privacy.users_per_round=4", "data.public=0.2"]


class Draws(SeededNoise):
    """Seeded noise whose cohorts have the size that a test gives."""

    def __init__(self, seed: int, settings: int, size: int):
        super().__init__(seed, settings)
        self.size = size

    def binomial(self, n: int, q: float, round_index: int) -> int:
        return self.size


def rows(config, size: int, key: int, replayed: dict) -> list[dict[str, float]]:
    """Metrics of all rounds and evaluations, with the releases of an earlier call if there was one."""
    parts = make_plan([config])
    parts.gate._noises = [Draws(config.seed, key, size)]
    release = parts.gate.release
    parts.gate.release = lambda i: replayed.setdefault(i, release(i))
    session, found = Trainer(parts), []
    try:
        while not session.over:
            session.step()
            (evaluation,) = session.evaluate()
            found.append({**session.diagnostics[0], **evaluation.metrics()})
    finally:
        session.close()
    return found


def test_released_metrics_do_not_depend_on_the_draw(sets):
    """Found by an audit: exact/regret was multiplied by the drawn size of every Poisson cohort."""
    model = ["algo.policy_turns=1", "algo.policy_steps=4", "algo.rollouts=8", "algo.check_every=1"]
    kinds = [
        (*SMALL, *RIVERSWIM, "privacy.users_per_round=1"),
        (*SMALL, *OFFLINE, *model, f"data.id={sets}", "privacy=poisson"),
        (*SMALL, *EVALUATION),
    ]
    seen = set()
    for words in kinds:
        config, replayed = compose(words), {}
        first = rows(config, 1, 11, replayed)
        second = rows(config, 3, 12, replayed)
        assert repr([*map(visible, first)]) == repr([*map(visible, second)])  # nan is nan
        seen |= {name for row in first for name in visible(row)}
    released = {name for name, metric in METRICS.items() if metric.visibility == "released"}
    # Texts come in cohorts of fixed size, in the order of arrival: nothing is drawn. Nothing here is invalid.
    # algo=mean_return has a test of its own. With env=logs and dp_is all users take part.
    others = {"eval/kl", "eval/perplexity", "eval/invalid_episodes", "release/mean_return"}
    others |= {
        f"eval/{name}" for name in ("agreement", "behavior", "clipped", "ratio", "value_error")
    }
    others |= {"eval/value_low", "eval/value_high"}
    assert released - seen == others


@pytest.mark.parametrize("kind", [SeededNoise, SecureNoise])
def test_a_cohort_is_drawn_once_a_round(kind):
    config = compose([*SMALL, *RIVERSWIM, "privacy.users_per_round=30"])
    plan = make_plan([config]).gate
    plan._noises = [SeededNoise(0, 1) if kind is SeededNoise else SecureNoise()]
    drawn = [plan.draw(i, None, False).sizes[0] for i in range(40)]
    assert len(set(drawn)) > 1
    for i in range(40):
        assert len({plan.draw(i, None, False).sizes[0] for _ in range(5)}) == 1
    assert plan.expected_cohort() == [30]
    plan.end(0)
    assert plan.draw(39, None, False).sizes == plan.expected_cohort() == [0]


# -- where they come from

# Of every sampler that draws in secret. Each has 30 users or more, so that equal draws are no chance.
DRAWN = {
    "poisson": [*RIVERSWIM, "privacy.users_per_round=30"],
    "uniform_single_user": [
        "algo=gpope",
        "env=chain",
        "data.policy=uniform",
        "privacy.population=900",
    ],
}


def cohorts(words: list[str], seed: int, kind: str) -> list[list[int]]:
    """The users of 20 rounds."""
    config = compose([*words, *SMALL[:2], "rounds=20", f"seed={seed}", f"privacy.noise={kind}"])
    gate = make_plan([config]).gate
    users = int(gate.config.population)
    return [gate.draw(i, users, False).numbers()[0].tolist() for i in range(20)]


def test_every_sampler_that_draws_in_secret_is_below():
    assert set(DRAWN) == {kind.name for kind in REGISTRY.classes() if kind.random}


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("name", DRAWN)
def test_cohorts_come_from_the_source_of_the_noise(name, monkeypatch):
    words = DRAWN[name]
    first = cohorts(words, 0, "seeded")
    assert cohorts(words, 0, "seeded") == first != cohorts(words, 1, "seeded")
    assert cohorts(words, 0, "secure") != cohorts(words, 0, "secure")
    # Of the operating system's bits alone: with equal bits another seed has the same cohorts.
    found = []
    for start, seed in ((0, 3), (0, 4), (1, 3)):
        bits = iter(range(10_000 * start, 10_000 * (start + 1)))
        monkeypatch.setattr(noise.secrets, "randbits", lambda _, bits=bits: next(bits))
        found.append(cohorts(words, seed, "secure"))
    assert found[0] == found[1] != found[2]


SECURE = {
    "gaussian": [*RIVERSWIM, "privacy.users_per_round=30"],
    "one user": EVALUATION,
    "returning users": [
        "algo=dqn",
        "env=riverswim",
        "privacy.population=60",
        "privacy.users_per_round=9",
    ],
    "correlated": ["algo=dppg_kl", "env=riverswim", "privacy=correlated"],
    "tree": ["algo=ucbvi", "env=riverswim", "privacy=tree"],
    "fresh noise": ["algo=ucbvi", "env=riverswim", "privacy=fresh_noise_per_round"],
    "smooth": ["algo=dp_lsl", "env=chain", "data.policy=uniform", "privacy.population=2000"],
    "once": ["algo=dp_lstd", "env=riverswim", "data.policy=uniform", "privacy.population=40"],
}


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("name", SECURE)
def test_with_secure_noise_nothing_is_drawn_from_the_seed(name, monkeypatch):
    """Nor is a key or a stream used twice."""

    def refuse(*_):
        raise AssertionError("drawn from the seed")

    keys = []
    real = {part: getattr(noise.secrets, part) for part in ("randbits", "token_bytes")}
    for part, draw in real.items():
        monkeypatch.setattr(
            noise.secrets, part, lambda n, draw=draw: keys.append(draw(n)) or keys[-1]
        )
    monkeypatch.setattr(SeededNoise, "__init__", refuse)
    small = [word for word in SMALL if name not in ("smooth", "once") or "rounds=" not in word]
    words = [*SECURE[name], *small, "privacy.noise=secure"]
    words += ["privacy.epsilon=1"] if name == "smooth" else []
    session = Trainer(make_plan([compose(words)]))
    while not session.over:
        session.step()
    session.close()
    assert len(set(keys)) == len(keys)
    drawn = rules(session.parts.config.privacy).sampler.random
    assert keys or not (drawn or name == "smooth")


def test_noise_on_transitions_is_never_secure():
    """The algorithm draws it from the seed. `secure` was accepted, and the note about the seed left out."""
    words = ["algo=dqn_replay", "env=cartpole", "privacy=per_transition", "log=none"]
    assert compose(words).privacy.noise == "seeded"
    with pytest.raises(ConfigError, match=r"^privacy\.noise: must be seeded for .*, got secure$"):
        compose([*words, "privacy.noise=secure"])


def test_a_search_draws_everything_from_the_source_of_the_noise(monkeypatch):
    law = RunCount(8.0, math.inf)

    def draw(kind, seed):
        found = draw_search(kind, seed, 1, law, 2)
        return found.count, found.ties, found.seeds, found.settings.tolist()

    assert draw("seeded", 0) == draw("seeded", 0) != draw("seeded", 1)
    secure = [draw("secure", 0) for _ in range(8)]
    assert len({one[0] for one in secure}) > 1  # the number of runs
    for part in (1, 2, 3):
        assert len({repr(one[part][:1]) for one in secure if one[0]}) > 1
    monkeypatch.setattr(noise.secrets, "token_bytes", lambda count: bytes(range(count)))
    assert draw("secure", 0) == draw("secure", 1)
