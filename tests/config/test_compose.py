"""Groups, tuned values, error lines and folder names. Nothing here trains."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from privrl_bench.algorithms import registry as algorithm_registry
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import DppgConfig
from privrl_bench.composition import hydra_compose as config
from privrl_bench.composition import plugins
from privrl_bench.composition.compose import compose
from privrl_bench.config.diagnostics import check_choice
from privrl_bench.config.folder_names import LEADING, LENGTH
from privrl_bench.config.traits import Data
from privrl_bench.envs.registry import make_env
from privrl_bench.errors import ConfigError
from privrl_bench.privacy.rules import rules, taking

NEEDED = {  # what a user has to say besides the choice itself
    "gym": ["env.id=my_pkg:MyEnv-v0"],
    "dmc": ["env.domain=walker", "env.task=walk"],
    "poisson": ["privacy.population=1000"],
}

plugins.load_installed()  # the choices of a group are those that a command has


def pairs(every: bool) -> list[tuple[str, str]]:
    """(algorithm, environment): all that fit, or a few for each algorithm, with every environment once."""
    found = []
    algos = [a for a in config.choices("algo") if config.algo_schema(a).traits.releases != "values"]
    for at, algo in enumerate(algos):
        schema = config.algo_schema(algo)
        texts, offline = (Data.TEXTS in schema.traits.data), (Data.RECORDED in schema.traits.data)
        envs = sorted(e for e in config.choices("env") if e.startswith("sentiment") == texts)
        if offline or algo in ("sac", "ddpg"):  # values for any
            envs = ["gym", "hopper", "pendulum"]
        elif not every:
            envs = sorted({"gym", *(envs[(3 * at + k) % len(envs)] for k in range(3))} & set(envs))
        found += [(algo, env) for env in envs]
    left = sorted({*config.choices("env")} - {env for _, env in found})
    return found + [("dppg_text" if env.startswith("sentiment") else "dppg", env) for env in left]


@pytest.mark.slow
def test_algorithms_compose_with_environments() -> None:
    """Every algorithm, and every environment with some of them."""
    few = pairs(every=False)
    assert {env for _, env in few} == set(config.choices("env"))
    for algo, env in few:
        check_pair(algo, env)


@pytest.mark.slow
def test_every_algorithm_composes_with_every_environment() -> None:
    for algo, env in pairs(every=True):
        check_pair(algo, env)


def check_pair(algo: str, env: str) -> None:
    """What is composed of the two, and that a run is of a sensible size."""
    offline = Data.RECORDED in config.algo_schema(algo).traits.data
    data = ["data.id=own/some-v0"] if offline else []
    words = [f"algo={algo}", f"env={env}", *data, *NEEDED.get(env, [])]
    run = compose(words)
    assert (run.algo.name, run.env.name) == (algo, env)
    assert type(run.algo) is config.algo_schema(algo)
    assert rules(run.privacy).mechanism.takes is run.algo.traits.sends[0]
    if run.algo.traits.units == ("episode",):
        assert run.env.user == "episode"
        return
    if offline or algo in ("dqn", "dqn_replay"):
        assert run.rounds
        return
    if algo in ("sac", "ddpg"):  # whole episodes
        assert (run.env.user, run.privacy.users_per_round) == ("fresh", 1)
        return
    steps = run.env.user_steps or 20  # of MyEnv's episodes
    steps_in_round = steps * run.privacy.users_per_round
    assert run.total_steps % steps_in_round < steps_in_round < run.total_steps / 50


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("algo", ["gpope", "dp_lstd", "dp_lsw", "dp_lsl", "lstd", "wis_lstd"])
@pytest.mark.parametrize("env", ["chain", "riverswim", "mountain_car"])
def test_every_evaluation_composes(algo: str, env: str) -> None:
    words = [f"algo={algo}", f"env={env}", "data.policy=uniform", "privacy.population=50"]
    run = compose([*words, "env.obs_scaling=none"])
    assert run.algo.traits.releases == "values"
    assert run.env.user == "episode"
    samplings = {"gpope": "uniform_single_user", "dp_lstd": "fixed"}
    assert run.privacy.sampling == samplings.get(algo, "full_batch")
    assert rules(run.privacy).mechanism.takes is run.algo.traits.sends[0]
    assert run.rounds == (3000 if algo == "gpope" else 1)


EVALUATION = ("algo=gpope", "env=chain", "data.policy=uniform", "privacy.population=50")


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("data.policy=null",),
            "data.policy: algo=gpope evaluates from the trajectories of a known policy",
        ),
        (("privacy.population=null",), "privacy.population: give the number of users"),
        (
            ("env=mountain_car", "env.obs_scaling=public"),
            "env.obs_scaling: is 'public', but algo=gpope computes features of unscaled observations: "
            "set env.obs_scaling=none",
        ),
        (("env.user=fresh",), "env.user: algo=gpope takes episode"),
        (("privacy=poisson",), "privacy.sampling: algo=gpope takes uniform_single_user"),
        (
            ("privacy.adjacency=zero_out",),
            "privacy.adjacency: privacy.sampling=uniform_single_user is analysed under replace_one",
        ),
        (
            ("privacy.users_per_round=2",),
            "privacy.users_per_round: privacy.sampling=uniform_single_user",
        ),
        (
            ("privacy.accountant=gaussian",),
            "privacy.accountant: privacy.sampling=uniform_single_user is",
        ),
        (("privacy=smooth",), "privacy.z: privacy=smooth takes privacy.epsilon"),
        (("algo=dp_lsw", "privacy.z=2"), "privacy.z: privacy=smooth takes privacy.epsilon"),
        (("algo=dp_lsw", "privacy.epsilon=null"), "privacy.epsilon: privacy=smooth makes its"),
        (("algo=dp_lsw", "rounds=3"), "rounds: algo=dp_lsw has one release, got 3"),
        (("algo=dp_lsw", "algo.return_low=1"), "algo.return_low: must be <= 0 <= algo.return_high"),
        (("algo=dp_lsl", "algo.target=uniform"), "algo.target|no such key"),
        (
            ("algo=lstd", "privacy=uniform_single_user"),
            "privacy: algo=lstd is not private; for a private run use algo=dp_lstd",
        ),
        (("algo=gpope", "algo.features=cubic"), "algo.features: must be"),
        (("algo=dppg", "env=cartpole"), "data.policy|privacy.population"),
    ],
    ids=str,
)
def test_what_evaluation_refuses(words: tuple[str, ...], message: str) -> None:
    given = [w for w in EVALUATION if w.split("=")[0] not in {x.split("=")[0] for x in words}]
    with pytest.raises(ConfigError, match=message):
        compose([*given, *words])


@pytest.mark.parametrize("group", ["hardware", "log"])
def test_every_file_of_the_other_groups_composes(group: str) -> None:
    for choice in config.choices(group):
        compose([f"{group}={choice}"])


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("choice", config.choices("privacy"))
def test_every_privacy_file_composes_with_some_algorithm(choice: str) -> None:
    for algo in ("dppg", "ppo", "ucbvi", "dqn_replay", "gpope", "dp_lsw"):
        more = EVALUATION[1:] if config.algo_schema(algo).traits.releases == "values" else ()
        with contextlib.suppress(ConfigError):
            compose([f"algo={algo}", f"privacy={choice}", *more, *NEEDED.get(choice, [])])
            return
    pytest.fail(f"no algorithm takes privacy={choice}")


def test_every_tuned_file_belongs_to_a_pair_or_is_shared_by_pairs() -> None:
    pairs = {f"{a}_{e}" for a in config.choices("algo") for e in config.choices("env")}
    texts = "".join(path.read_text() for path in (config.conf_dir() / "tuned").glob("*.yaml"))
    papers = "".join(
        path.read_text()
        for path in (Path(__file__).parents[2] / "privrl_bench/papers").glob("*.yaml")
    )
    for name in config.choices("tuned"):
        generic = name.endswith(("_short", "_long"))  # chosen by `composition.generic_values`
        committed = f"tuned={name}" in papers  # former values, which results were made with
        assert name in pairs or f"  - {name}\n" in texts or generic or committed


@pytest.mark.parametrize(
    ("algo", "env", "expected"),
    [
        # lr, epochs, minibatches, entropy, lambda, user steps, users, clip, z, steps, eval every
        ("dppg", "cartpole", (6e-3, 8, 2, 0.036, 0.85, 64, 64, 0.4, 1.0, 600_000, "auto")),
        ("dppg", "gym", (6e-3, 8, 2, 0.036, 0.85, None, 64, 0.4, 1.0, 600_000, "auto")),
        ("dppg", "pendulum", (6e-3, 1, 1, 0.0, 0.95, None, 64, 0.75, 1.0, 4_000_000, "auto")),
        ("dppg", "hopper", (6e-3, 1, 1, 0.0, 0.95, 512, 64, 0.75, 1.0, 8_000_000, "auto")),
        ("ppo", "acrobot", (2.5e-4, 4, 4, 0.01, 0.95, 128, 4, 1.0, 0.0, 500_000, "auto")),
        ("ppo", "halfcheetah", (3e-4, 10, 32, 0.0, 0.95, 2048, 1, 1.0, 0.0, 1_000_000, "auto")),
        ("a2c", "cartpole", (7e-4, None, None, 0.01, 1.0, 5, 8, 1.0, 0.0, 500_000, "auto")),
        ("a2c", "hopper", (7e-4, None, None, 0.0, 1.0, 8, 8, 1.0, 0.0, 1_000_000, "auto")),
    ],
)
def test_tuned_values(algo: str, env: str, expected: tuple[float | str | None, ...]) -> None:
    run = compose([f"algo={algo}", f"env={env}", *NEEDED.get(env, [])])
    found = (
        run.algo.lr,
        getattr(run.algo, "epochs", None),
        getattr(run.algo, "minibatches", None),
        run.algo.entropy_coef,
        run.algo.gae_lambda,
        run.env.user_steps,
        run.privacy.users_per_round,
        run.privacy.clip,
        run.privacy.z,
        run.total_steps,
        run.eval.every,
    )
    assert found == expected


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        # lr, minibatches, entropy, lambda, user steps, users, clip, z, steps
        ("cartpole", (7.26e-4, 2, 0.36, 0.85, 64, 8, 0.05, 1.0, 600_000)),
        ("gym", (7.26e-4, 2, 0.36, 0.85, 64, 8, 0.05, 1.0, 600_000)),
        ("acrobot", (7.26e-4, 2, 0.036, 0.85, 64, 8, 0.05, 1.0, 600_000)),
        ("pendulum", (7.26e-4, 2, 0.01, 0.85, 64, 8, 0.05, 1.0, 600_000)),
        ("hopper", (2.04e-4, 64, 0.02, 0.91, 2048, 8, 1.8, 0.1, 1_000_000)),
        ("halfcheetah", (2.04e-4, 64, 0.002, 0.91, 2048, 8, 1.8, 0.1, 1_000_000)),
    ],
)
def test_the_papers_own_setting(env: str, expected: tuple[float, ...]) -> None:
    run = compose(["algo=dppg", f"env={env}", "+paper=dppg", *NEEDED.get(env, [])])
    assert isinstance(run.algo, DppgConfig)
    assert expected == (
        run.algo.lr,
        run.algo.minibatches,
        run.algo.entropy_coef,
        run.algo.gae_lambda,
        run.env.user_steps,
        run.privacy.users_per_round,
        run.privacy.clip,
        run.privacy.z,
        run.total_steps,
    )
    assert (run.algo.critic, run.env.user, run.algo.critic_clip) == ("shared", "segment", 0.5)
    assert run.algo.anneal_lr
    assert not run.algo.anneal_server
    assert run.env.obs_clip == 10.0
    leaner = compose(["+paper=dppg", "algo.critic=none"])
    assert isinstance(leaner.algo, DppgConfig)
    assert leaner.algo.critic == "none"


@pytest.mark.fast_every(4)
@pytest.mark.parametrize("env", ["cartpole", "halfcheetah", "ant", "dosing0"])
def test_no_tuned_value_remains_in_the_papers_setting(env: str) -> None:
    """Found by runs: HalfCheetah's tuned `algo.log_std_init` was in its runs of the paper's setting."""

    def given(*words: str) -> dict[str, dict[str, object]]:
        run = compose(["algo=dppg", f"env={env}", "+paper=dppg", *words])
        algo = dataclasses.asdict(run.algo)
        for name in ("features", "frequency", "noise_ratio"):  # `critic: shared` does not read them
            del algo[f"critic_{name}"]
        return {
            "algo": algo,
            "env": dataclasses.asdict(run.env),
            "privacy": dataclasses.asdict(run.privacy),
        }

    shipped = given()
    for tuned in ("dppg_ant", "dppg_acrobot", "dppg_mujoco"):
        assert given(f"tuned={tuned}") == shipped


def test_a_papers_setting_with_another_algorithm_is_one_line() -> None:
    with pytest.raises(ConfigError, match="paper: its values do not fit this algorithm"):
        compose(["algo=ppo", "+paper=dppg"])


def test_the_command_line_beats_tuned_values() -> None:
    words = ["env=hopper", "privacy.z=3", "algo.lr=0.5", "total_steps=7", "env.user_steps=9"]
    run = compose(words)
    assert (run.privacy.z, run.algo.lr, run.total_steps, run.env.user_steps) == (3.0, 0.5, 7, 9)
    assert run.privacy.clip == 0.75


def test_a_folder_of_ones_own_adds_choices(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "mine.yaml").write_text("name: mine\nid: Mine-v0\nuser_steps: 10\n")
    run = compose(["env=mine"], config_dir=str(tmp_path))
    assert (run.env.id, run.env.user_steps) == ("Mine-v0", 10)
    with pytest.raises(ConfigError, match="did you mean mine"):
        compose(["env=mien"], config_dir=str(tmp_path))


OWN_FILES = [
    ("env/mine", "id: Mine-v0\n", "env.name: env/mine.yaml must have `name: mine`, as the file is"),
    (
        "algo/mine",
        "# @package _global_\ndefaults: [/schema/algo/dppg@algo]\nalgo:\n  name: dppg\n",
        "algo.name: algo/mine.yaml must have `name: mine`, as the file is named, got 'dppg'",
    ),
    (
        "env/mine",
        "name: mine\nid: [Mine\nuser: fresh\n",
        "env: env/mine.yaml cannot be read: line 3",
    ),
    (
        "env/mine",
        "name: mine\nname: mine\n",
        "env: env/mine.yaml cannot be read: line 2: found dup",
    ),
    (
        "env/mine",
        "name: mine\nobs_scalling: none\n",
        "env.obs_scalling: in env/mine.yaml: no such key (did you mean env.obs_scaling?); allowed: ",
    ),
    (
        "env/mine",
        "name: mine\nuser_steps: abc\n",
        "env.user_steps: in env/mine.yaml: must be null or an integer, got 'abc'",
    ),
    (
        "env/mine",
        "name: mine\nobs_mean: [1, a]\n",
        "env.obs_mean: in env/mine.yaml: must be null or a list of numbers, got 'a'",
    ),
    (
        "tuned/mine",
        "# @package _global_\nalgo:\n  lrr: 1\n",
        "algo.lrr: in tuned/mine.yaml: no such key (did you mean algo.lr?); allowed: algo.gamma, ",
    ),
]


@pytest.mark.parametrize(("file", "text", "expected"), OWN_FILES)
def test_a_wrong_file_of_ones_own(file: str, text: str, expected: str, tmp_path: Path) -> None:
    group, _, name = file.partition("/")
    (tmp_path / group).mkdir()
    (tmp_path / f"{file}.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        compose([f"{group}={name}"], config_dir=str(tmp_path))
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


def test_the_packages_files_are_named_as_they_are() -> None:
    for group in ("env", "algo"):
        for path in (config.conf_dir() / group).glob("*.yaml"):
            content = yaml.safe_load(path.read_text())
            assert (content["algo"] if group == "algo" else content)["name"] == path.stem


@pytest.mark.parametrize("word", ["tuned=null", "~tuned"])
def test_a_typo_beside_a_removed_group(word: str) -> None:
    with pytest.raises(ConfigError, match=r"^algo.lrr: no such key \(did you mean algo.lr\?\)"):
        compose([word, "algo.lrr=3"])


ERRORS = [
    (
        "algo=dpgp",
        "algo: no such choice 'dpgp' (did you mean dppg?); allowed: "
        + ", ".join(config.choices("algo")),
    ),
    ("hydra/launcher=bsic", "hydra/launcher: no such choice 'bsic' (did you mean basic?); allow"),
    (
        "privacy=1",
        f"privacy: no such choice '1'; allowed: {', '.join(config.choices('privacy')[:4])}, ",
    ),
    ("algoo=dppg", "algoo: no such key (did you mean algo?); allowed: algo, env, privacy, "),
    ("privacy.zz=1", "privacy.zz: no such key (did you mean privacy.z?); allowed: privacy.mech"),
    ("+privacy.zz=1", "privacy.zz: no such key (did you mean privacy.z?); allowed: privacy.mech"),
    ("z=1", "z: no such key (did you mean privacy.z?); allowed: algo, "),
    ("env.kwargs.a=1", "env.kwargs.a: no such key; add it with +env.kwargs.a=<value>"),
    ("total_steps=abc", "total_steps: must be an integer, got 'abc'"),
    ("total_steps=1e6", "total_steps: must be an integer, got 1000000.0; write 1000000"),
    ("privacy.z=null", "privacy.z: auto needs the epsilon of the whole run"),
    ("env.obs_mean=[1,a]", "env.obs_mean: must be null or a list of numbers, got [1, 'a']"),
    ("eval=3", "eval: is a group of keys; set one of them, eval.<name>="),
    ("privacy.z=1,2", "privacy.z: several values need -m; one list is [a,b]"),
    ("privacy.z=${x}", "privacy.z: Interpolation key 'x' not found"),
    ("privacy.z=-1", "privacy.z: must be auto or 0 or in [1e-6, 1e6], got -1.0"),
    ("env.user=fersh", "env.user: must be one of fresh, episode, segment, got 'fersh' (did you m"),
    ("privacy=none", "privacy: algo=dppg is private by construction; "),
    ("algo=a2c hardware=gpu", "hardware: algo=a2c computes on the CPU only; use hardware=cpu"),
    ("algo.name=ppo", "algo.name: set by the algo group; choose it with algo=<name>"),
    ("hydra.run.dir=[a]", "hydra.run.dir: must be text, got ['a']"),
    ("~seed", "seed: a key cannot be removed"),
    ("~paper", "paper: takes one choice; allowed: "),
    ("hopper", "cannot read 'hopper'; write key=value"),
    ("seed=(1", "seed: cannot read the value '(1'; check its brackets"),
]


@pytest.mark.parametrize(("word", "expected"), ERRORS)
def test_errors_are_one_line_with_key_and_cure(word: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(word.split())
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        "algo=dppg env=hopper seed=3 privacy.epsilon=1 hydra.run.dir=some/where",
        "algo=dppg env=gym env.id=FrozenLake-v1 '++env.kwargs={map_name: a}' env.kwargs.map_name=4x4",
        "algo=dppg +paper=dppg env=dosing0 total_steps=500 'algo.hidden=[8,${privacy.users_per_round}]'",
        "algo=reinforce privacy=local tuned=null env.user=episode privacy.z=5e-1 log.tags=[a,b]",
    ],
)
def test_values_set_on_composed_files_give_what_hydra_composes(words: str) -> None:
    given = shlex.split(words)
    fast, slow = config.compose_raw(given), config._by_hydra(config.hydra_overrides(given))
    assert OmegaConf.to_object(fast) == OmegaConf.to_object(slow)
    fast.seed, fast.algo.hidden = 7, [7]  # of a copy
    assert config.compose_raw(given) == slow


NOT_PRIVATE = {
    "a2c": "dppg",
    "ppo": "dppg",
    "ddpg env=pendulum": "dppg",
    "sac env=pendulum": "dppg",
    "ppo_text env=sentiment_small": "dppg_text",
    "mopo env=pendulum data.id=a/b-v0": "primorl",
    "dqn_replay": "dqn",
    "lstd env=chain data.policy=uniform": "dp_lstd",
    "wis_lstd env=chain data.policy=uniform": "gpope",
}
ASKS = {
    **{"epsilon": "1", "z": "1", "noise_cohort": "50", "clip": "1"},
    **{"correlation": "0.5", "bands": "3"},
}


@pytest.mark.fast_every(9)
@pytest.mark.parametrize("algo", NOT_PRIVATE)
def test_a_baseline_that_is_asked_for_privacy_names_a_private_algorithm(algo: str) -> None:
    words = f"algo={algo}".split()
    asked = [(f"privacy.{key}", value) for key, value in ASKS.items()]
    name = algo.partition(" ")[0]
    for key, value in (*asked, ("privacy.z", "auto"), ("privacy", "fixed")):
        with pytest.raises(ConfigError) as caught:
            compose([*words, f"{key}={value}"])
        rule = f"algo={name} is not private; for a private run use algo={NOT_PRIVATE[algo]}"
        assert str(caught.value).startswith(f"{key}: {rule}")
    with pytest.raises(ConfigError, match="privacy: algo="):
        compose([*words, "privacy.mechanism=gaussian"])


def test_how_a_guarantee_is_stated_may_be_given_for_baselines() -> None:
    """As in `-m algo=dppg,ppo privacy.delta=1e-6 privacy.noise=secure`."""
    run = compose(["algo=ppo", "privacy.delta=1e-6", "privacy.noise=secure"])
    assert (run.privacy.delta, run.privacy.noise) == (1e-6, "secure")


def test_every_algorithm_that_is_never_private_is_in_the_table() -> None:
    never = set()
    for name in config.choices("algo"):
        taken = [*taking(config.algo_schema(name).traits.sends)]
        if all(kind.imitation or not kind.private for kind in taken):
            never.add(name)
        assert config.algo_schema(name).traits.private_version in config.choices("algo")
    assert never == {algo.partition(" ")[0] for algo in NOT_PRIVATE}


def test_a_baseline_takes_what_asks_for_no_privacy() -> None:
    words = ["privacy.z=0", "privacy.epsilon=null"]
    assert compose(["algo=ppo", *words]).privacy.mechanism == "none"
    assert compose(["algo=ppo", "privacy=local", "privacy.epsilon=1"])


EXTRAS = {
    "joblib": "pip install 'privrl-bench[joblib]'",
    "ray": "pip install 'privrl-bench[ray]', then pip install --no-deps hydra-ray-launcher",
    "submitit_local": "pip install 'privrl-bench[slurm]'",
    "submitit_slurm": "pip install 'privrl-bench[slurm]'",
}


@pytest.mark.parametrize("launcher", EXTRAS)
def test_a_launcher_that_is_not_installed_names_its_extra(launcher: str) -> None:
    (word,) = config.parse([f"hydra/launcher={launcher}"])
    with pytest.raises(ConfigError) as caught:
        check_choice(word, ["basic"])
    expected = (
        f"hydra/launcher: {launcher} is in an extra that is not installed: {EXTRAS[launcher]}"
    )
    assert str(caught.value) == expected
    check_choice(word, ["basic", launcher])
    extra = re.search(r"\[(\w+)\]", EXTRAS[launcher])
    assert extra is not None
    project = tomllib.loads((config.conf_dir().parent / "pyproject.toml").read_text())["project"]
    assert extra[1] in project["optional-dependencies"]


# --- folder names


def leaf(words: list[str], seed: int) -> str:
    """The last part of the folder of a run."""
    folder, _, name = config.run_folder({"algo": "dppg", "env": "hopper"}, words, seed).rpartition(
        "/"
    )
    assert folder == "dppg/hopper"
    return name


def test_leaf_leaves_out_what_does_not_change_the_result() -> None:
    words = ["algo=ppo", "env=hopper", "log=none", "log.lines=9", "hardware=gpu", "resume=restart"]
    words += ["hardware.device=cpu", "plan_only=true", "hydra.run.dir=x", "seed=7"]
    assert leaf(words, 7) == "seed=7"
    assert leaf(["privacy=none", "algo.lr=1e-1"], 0) == "algo.lr=0.1,privacy=none,seed=0"
    assert leaf(["++algo.lr=0.1"], 0) == leaf(["algo.lr=1", "algo.lr=0.1"], 0)


def test_a_long_folder_name_ends_with_a_whole_setting() -> None:
    words = [f"env.text.{name}=0.123456" for name in ("a" * 40, "b" * 40, "c" * 40)]
    name = leaf(words, 5)
    assert len(name) <= LENGTH
    assert re.fullmatch(rf"{words[0]},seed=5,sha_[0-9a-f]{{8}}", name)
    assert leaf([*words[:2], f"{words[2]}7"], 5) != name
    alone = leaf([f"env.id={'x' * 200}"], 5)
    assert re.fullmatch(r"seed=5,sha_[0-9a-f]{8}", alone)


def test_epsilon_and_z_come_first() -> None:
    words = ["tuned=x", "privacy.z=1", "algo.lr=1", "privacy.epsilon=2", "privacy.clip=3"]
    assert leaf(words, 0) == "epsilon=2,z=1,algo.lr=1,privacy.clip=3,tuned=x,seed=0"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["env=gym", "env.id=MyEnv-v0"], "MyEnv-v0/epsilon=1,seed=0"),
        (["env=gym", "env.id=my_pkg.envs:MyEnv-v0"], "MyEnv-v0/epsilon=1,seed=0"),
        (["env=gym", "env.id='my_pkg:My-v0'"], "My-v0/epsilon=1,seed=0"),
        (["env=gym", "env.id=pkg/My-v0"], r"pkg-My-v0/epsilon=1,seed=0,sha_[0-9a-f]{8}"),
        (["env=dmc", "env.domain=walker", "env.task=run"], "walker-run/epsilon=1,seed=0"),
        (["env=gym"], "gym/epsilon=1,seed=0"),
        ([f"env={'x' * 50}"], r"x{23}/epsilon=1,seed=0,sha_[0-9a-f]{8}"),
    ],
)
def test_an_own_environment_has_its_own_name(words: list[str], name: str) -> None:
    chosen = {"algo": "dppg", "env": words[0][4:]}
    folder = config.run_folder(chosen, [*words, "privacy.epsilon=1"], 0)
    assert re.fullmatch(f"dppg/{name}", folder)


def test_algorithm_environment_and_epsilon_are_within_forty_characters() -> None:
    for algo in config.choices("algo"):
        for env in (*config.choices("env"), "x" * 50):
            name = config.run_folder({"algo": algo, "env": env}, ["privacy.epsilon=0.5"], 0)
            assert name.index("epsilon=0.5") + len("epsilon=0.5") <= LEADING
            assert len(env) == 50 or name == f"{algo}/{env}/epsilon=0.5,seed=0"


KEYS = ["privacy.z", "algo.hidden", "env.id", "+env.kwargs.path", "tuned", "eval.policy"]
VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.lists(st.integers(0, 9), min_size=1).map(lambda x: str(x).replace(" ", "")),
    st.text(max_size=200).map(lambda x: "'" + x.replace("\\", "/").replace("'", "\\'") + "'"),
)


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from(KEYS), VALUES), st.randoms(), st.data())
def test_leaf_is_safe_stable_and_distinct(values, random, data) -> None:  # type: ignore[no-untyped-def]
    words = [f"{key}={value}" for key, value in values.items()]
    name = leaf(words, 5)
    assert re.fullmatch(r"[A-Za-z0-9_.+=,-]+", name)
    assert len(name) <= LENGTH
    assert re.search(r"(^|,)seed=5(,sha_[0-9a-f]{8})?$", name)
    random.shuffle(words)
    assert leaf(words, 5) == name
    assert leaf(words, 6) != name
    if words:
        changed = dict(values)
        key = data.draw(st.sampled_from(sorted(values)))
        changed[key] = data.draw(VALUES)
        same = config.parse([f"{key}={changed[key]}"])[0].value() == (
            config.parse([f"{key}={values[key]}"])[0].value()
        )
        assert same or leaf([f"{k}={v}" for k, v in changed.items()], 5) != name
        del changed[key]
        assert leaf([f"{k}={v}" for k, v in changed.items()], 5) != name


def test_an_algorithm_of_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are in its own module; an error in it is one line, for whoever chooses it only."""
    monkeypatch.setattr(algorithm_registry, "ALGORITHMS", dict(algorithm_registry.ALGORITHMS))
    monkeypatch.setattr(config, "ALGORITHMS", algorithm_registry.ALGORITHMS)
    algorithm_registry.register_algorithm("mine", "some_pkg.mine")
    with pytest.raises(
        ConfigError, match=r"algo: some_pkg.mine cannot be imported: No module named"
    ):
        config.register_algo(["env=hopper", "algo=dppg,mine"])
    monkeypatch.setitem(sys.modules, "some_pkg", types.ModuleType("some_pkg"))
    module = types.ModuleType("some_pkg.mine")
    monkeypatch.setitem(sys.modules, "some_pkg.mine", module)
    with pytest.raises(ConfigError, match="has no attribute 'CONFIG'"):
        config.algo_schema("mine")
    module.CONFIG = DppgConfig  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="default of `name` must be 'mine', got 'dppg'"):
        config.algo_schema("mine")
    mine = dataclasses.make_dataclass("Mine", [("name", str, "mine")], bases=(DppgConfig,))
    module.CONFIG = mine  # type: ignore[attr-defined]
    assert config.algo_schema("mine") is mine
    with pytest.raises(ValueError, match="algo=dppg is an algorithm of privrl_bench"):
        algorithm_registry.register_algorithm("dppg", "some_pkg.mine")


def test_composing_any_algorithm_imports_no_torch() -> None:
    """So that a typing error is reported at once, whatever the algorithm."""
    code = (
        "import sys\n"
        "from privrl_bench.cli import train\n"
        "from privrl_bench.composition.compose import compose\n"
        "from privrl_bench.composition.hydra_compose import choices, compose_raw\n"
        "compose(['env=hopper'])\n"
        "print(sorted({'torch', 'wandb', 'gymnasium', 'mujoco', 'numpy'} & set(sys.modules)))\n"
        "for algo in choices('algo'):\n"
        "    env = 'sentiment_small' if algo.endswith('_text') else 'chain'\n"
        "    compose_raw([f'algo={algo}', f'env={env}'])\n"
        "print([m for m in ('torch', 'numba', 'gymnasium') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "[]"]


@pytest.mark.parametrize("plus", ["", "+", "++"])
def test_a_mapping_of_kwargs_is_taken_as_one_word(plus):
    run = compose(["env=gym", "env.id=FrozenLake-v1", f"{plus}env.kwargs={{map_name: 8x8}}"])
    assert run.env.kwargs == {"map_name": "8x8"}


def test_paths_with_the_marks_of_run_folders_need_no_quotes(tmp_path) -> None:
    folder = tmp_path / "epsilon=1,seed=0"
    folder.mkdir()
    assert compose(["algo=mean_return", f"algo.policy={folder}"]).algo.policy == str(folder)
    with pytest.raises(ConfigError, match=r"algo.policy: cannot read the value"):
        compose(["algo=mean_return", f"algo.policy={folder}x"])


def test_secure_noise_without_its_library_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"privacy\.noise: secure needs OpenDP: pip install"):
        compose(["algo=dppg", "env=cartpole", "privacy.noise=secure"])


def test_a_task_of_dm_control_says_which_python_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "shimmy", None)
    with pytest.raises(ConfigError, match=r"dm_control is not installed .it needs Python 3.11 or"):
        make_env(compose(["algo=dppg", "env=cartpole_balance"]).env)
