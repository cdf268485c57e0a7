"""Who takes part in a round, and how many, is secret: no metric that may leave depends on it."""

import pytest

from privrl_bench.config.compose import compose
from privrl_bench.experiment.builder import build
from privrl_bench.experiment.trainer import Trainer
from privrl_bench.metrics import METRICS, visible
from privrl_bench.privacy.noise import SecureNoise, SeededNoise

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
    parts = build([config], [None])
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
    # algo=mean_return has a test of its own.
    others = {"eval/kl", "eval/perplexity", "eval/invalid_episodes", "release/mean_return"}
    assert released - seen == others


@pytest.mark.parametrize("kind", [SeededNoise, SecureNoise])
def test_a_cohort_is_drawn_once_a_round(kind):
    config = compose([*SMALL, *RIVERSWIM, "privacy.users_per_round=30"])
    plan = build([config], [None]).gate
    plan._noises = [SeededNoise(0, 1) if kind is SeededNoise else SecureNoise()]
    drawn = [plan.draw(i, None, False).sizes[0] for i in range(40)]
    assert len(set(drawn)) > 1
    for i in range(40):
        assert len({plan.draw(i, None, False).sizes[0] for _ in range(5)}) == 1
    assert plan.expected_cohort() == [30]
    plan.end(0)
    assert plan.draw(39, None, False).sizes == plan.expected_cohort() == [0]
