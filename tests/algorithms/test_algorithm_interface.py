"""The interface of algorithms: its size, and what an algorithm may know before `init`."""

import inspect
from pathlib import Path

import pytest

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, Schedule
from privrl_bench.config.compose import algo_schema, choices, compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.config.traits import Actions, Data
from privrl_bench.experiment.plan import make_plan

POLICY = Path(__file__).parents[1] / "golden" / "policy.pt"
ENVIRONMENTS = {Actions.BOX: "pendulum", Actions.FINITE: "riverswim"}


def words_of(algo: str, sets: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Of a run of an algorithm as it is shipped, on what it can learn from."""
    traits = algo_schema(algo).traits
    env = f"env={ENVIRONMENTS.get(traits.actions, 'cartpole')}"
    few = ("privacy.users_per_round=3", "eval.episodes=1", "rounds=2")
    if algo == "mean_return":
        return (env, f"algo.policy={POLICY}", *few)
    if Data.TEXTS in traits.data:
        one = ("algo.baseline_prompts=3",) if algo == "dppg_text" else ()
        small = ("env.text.min_characters=0", "env.text.holdout=8", "env.text.new_tokens=6")
        return ("env=sentiment_small", *texts, *small, "env.text.prompt_tokens=[1,4]", *few, *one)
    if Data.RECORDED in traits.data and Data.ACTED not in traits.data:
        return ("env=pendulum", f"data.id={sets}", "data.public=0.1", "privacy.users_per_round=9")
    if Data.ACTED in traits.data:
        return ("env=chain", "data.policy=uniform", "privacy.population=6")
    return (env,)


@pytest.mark.parametrize("algo", choices("algo"))
def test_what_it_declares_does_not_depend_on_rounds_and_z(algo, sets, texts, monkeypatch) -> None:
    """They are found from `blocks` and `terms`: of a mechanism, a budget, a population."""
    monkeypatch.setattr(Schedule, "set", lambda self, rounds, z: None)
    parts = make_plan([compose(later_wins([f"algo={algo}", *words_of(algo, sets, texts)]))])
    assert parts.algo.blocks()
    schedule = Schedule()
    for name in ("rounds", "z"):
        with pytest.raises(RuntimeError, match="from `init` on"):
            getattr(schedule, name)


def test_rounds_and_z_are_set_once() -> None:
    schedule = Schedule()
    schedule.set(3, (1.0, 2.0))
    assert (schedule.rounds, schedule.z) == (3, (1.0, 2.0))
    with pytest.raises(RuntimeError, match="set once"):
        schedule.set(4, (1.0,))
    assert isinstance(AlgorithmContext.__dataclass_fields__["schedule"].default_factory(), Schedule)


def test_it_has_at_most_twelve_methods() -> None:
    own = [name for name, x in vars(Algorithm).items() if inspect.isroutine(x)]
    assert len(own) <= 12, own
