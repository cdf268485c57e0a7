"""What makes a run the one it is, and that seeded noise follows it."""

import copy
from dataclasses import field, fields, is_dataclass, make_dataclass, replace

import pytest

from privrl_bench.composition import identity as module
from privrl_bench.composition.compose import compose
from privrl_bench.composition.identity import canonical, digest, group_key, identity, noise_key
from privrl_bench.errors import ConfigError
from privrl_bench.privacy import mechanisms, sampling
from privrl_bench.privacy.rules import unused
from privrl_bench.training.plan import make_plan

RUNS = {
    "dppg": ["algo=dppg", "env=cartpole", "privacy=fixed"],
    "correlated": ["algo=dppg", "env=cartpole"],
    "local": ["algo=ppo", "env=cartpole", "privacy=local"],
    "text": ["algo=dppg_text", "env=sentiment_small"],
    "offline": ["algo=primorl", "env=pendulum", "data.id=pendulum/ddpg-v0"],
    "gpope": ["algo=gpope", "env=chain", "privacy.population=50", "data.policy=uniform"],
}


def leaves(value, prefix=""):
    """(owner, field name, dotted key) of every leaf of nested dataclasses."""
    for one in fields(value):
        inner = getattr(value, one.name)
        if is_dataclass(inner):
            yield from leaves(inner, f"{prefix}{one.name}.")
        else:
            yield value, one.name, prefix + one.name


def another(value):
    """A value that differs from `value`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [*value, 1]
    if isinstance(value, dict):
        return {**value, "another": 1}
    return "another" if value is None else value + "x"


def changed(config, key):
    """A copy of `config` with another value of one key, unchecked."""
    copied = copy.deepcopy(config)
    ((owner, name),) = ((o, n) for o, n, k in leaves(copied) if k == key)
    old = getattr(owner, name)
    names = {"privacy.mechanism": mechanisms, "privacy.sampling": sampling}.get(key)
    setattr(owner, name, next(n for n in names.names() if n != old) if names else another(old))
    return copied


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("words", RUNS.values(), ids=RUNS)
def test_every_key_but_the_ignored_ones_changes_the_noise(words):
    config = compose(words)
    keys = [key for _, _, key in leaves(config)]
    same = {key for key in keys if noise_key(changed(config, key)) == noise_key(config)}
    assert same == {
        *(k for k in keys if k.startswith(("log.", "eval.", "budget.", "env.text.simulated"))),
        *("plan_only", "resume", "plugins", "hyperparameter_source", "env.check"),
        *(f"hardware.{k}" for k in ("workers", "shard_users", "max_replicas", "engine", "address")),
        *unused(config.privacy),
    }
    unchanged = {key for key in keys if identity(changed(config, key)) == identity(config)}
    assert unchanged == {key for key in same if not key.startswith("eval.")}


@pytest.mark.parametrize("key", ["rounds", "hardware.device", "data.public", "total_steps", "seed"])
def test_the_gate_draws_by_the_identity(key):
    """Found by an audit: `rounds=4` and `rounds=400` had the same noise."""
    config = compose(["algo=dppg", "env=cartpole", "rounds=4", "log=none"])
    other = replace(config, rounds=400) if key == "rounds" else changed(config, key)
    draws = []
    for one in (config, other):
        if one.hardware.device == "cpu":  # a plan needs no device, an algorithm does
            noise = make_plan([one]).gate._noises[0]
        else:
            noise = type(noise)(one.seed, noise_key(one))
        draws.append(noise.normal([8], 2, 0)[0].tolist())
    assert not set(draws[0]) & set(draws[1])


def test_the_gate_draws_the_same_where_only_evaluation_and_log_differ():
    words = ["algo=dppg", "env=cartpole", "rounds=4"]
    runs = compose(words), compose([*words, "eval.episodes=3", "log=none"])
    one, other = (make_plan([run]).gate._noises[0].normal([8], 2, 0)[0] for run in runs)
    assert (one == other).all()


def test_keys_that_the_mechanism_does_not_read_change_nothing():
    assert unused(compose(RUNS["dppg"]).privacy) == ("privacy.bands", "privacy.correlation")
    assert not unused(compose(RUNS["correlated"]).privacy)
    with pytest.raises(ConfigError, match=r"privacy\.bands: .*gaussian does not read it"):
        compose([*RUNS["dppg"], "privacy.bands=3"])


# Defaults of eval.every before `auto`, which changes no noise.
EVERY = {"offline": "1_200_000", "gpope": "100_000", "text": "61_440"}


def test_golden_digests():
    """A change here gives every seeded run other noise: increase `identity.VERSION`, and say so."""
    assert module.VERSION == 2
    runs = {
        name: compose([*words, f"eval.every={EVERY.get(name, '50_000')}"])
        for name, words in RUNS.items()
    }
    assert {name: noise_key(run) for name, run in runs.items()} == {
        name: noise_key(compose(words)) for name, words in RUNS.items()
    }
    assert {name: digest(run)[:16] for name, run in runs.items()} == {
        "dppg": "d066db696d589e30",
        "correlated": "b9d983dc40c37846",
        "local": "789e52c3f1881862",
        "text": "183b955edead06de",
        "offline": "a39d895ed46cabba",
        "gpope": "ded72bde7a9ede0b",
    }


def test_a_key_that_was_added_later_counts_where_it_is_given():
    assert not set(module.LATER) & set(module.identity(compose(RUNS["offline"])))
    part = compose([*RUNS["offline"], "data.part=1/2"])
    assert module.identity(part)["data.part"] == "1/2"
    assert noise_key(part) != noise_key(compose(RUNS["offline"]))


def test_names_of_classes_and_the_order_of_fields_mean_nothing():
    config = compose(RUNS["dppg"])
    turned = make_dataclass(
        "Other",
        [
            (f.name, type(config.privacy).__annotations__[f.name], field(default=None))
            for f in reversed(fields(config.privacy))
        ],
        namespace={"__module__": "privrl_bench.config.schema"},
    )
    values = {f.name: getattr(config.privacy, f.name) for f in fields(config.privacy)}
    other = copy.deepcopy(config)
    other.privacy = turned(**values)
    assert canonical(other) == canonical(config)


def test_integers_and_floats_of_one_value_are_one_value():
    config = compose(["algo=dppg", "env=cartpole", "privacy.z=1"])
    whole = replace(config, privacy=replace(config.privacy, z=1, clip=1))
    real = replace(config, privacy=replace(config.privacy, z=1.0, clip=1.0))
    assert canonical(whole) == canonical(real)
    negative = replace(config, env=replace(config.env, obs_low=[-0.0], obs_high=None))
    whole = replace(config, env=replace(config.env, obs_low=[0], obs_high=None))
    assert canonical(negative) == canonical(whole)


def test_a_value_without_a_json_form_is_refused():
    config = compose(["algo=dppg", "env=cartpole"])
    config.env.kwargs = {"model": object()}
    with pytest.raises(ConfigError, match=r"env\.kwargs"):
        canonical(config)
    config.env.kwargs = {1: 2}  # JSON would write 1 and "1" alike
    with pytest.raises(ConfigError, match="names must be text"):
        canonical(config)


def test_values_of_a_free_mapping_stay_as_they_are():
    config = compose(["algo=dppg", "env=cartpole"])
    keys = set()
    for value in (0, 0.0, -0.0, "0", False, None):
        config.env.kwargs = {"x": value}
        keys.add(noise_key(config))
    assert len(keys) == 6


def test_runs_are_trained_together_when_they_differ_in_seed_and_noise_alone():
    one = compose(["algo=dppg", "env=cartpole"])
    assert group_key(replace(one, seed=3)) == group_key(one)
    noisier = replace(one, privacy=replace(one.privacy, z=3.0))
    assert group_key(noisier) == group_key(one)
    assert group_key(replace(one, log=replace(one.log, lines=3))) != group_key(one)
    limited = replace(one, privacy=replace(one.privacy, epsilon=2.0))
    assert group_key(replace(noisier, privacy=replace(limited.privacy, z=3.0))) != group_key(
        limited
    )
