"""Bad command lines: each ends with exit code 2 and one line on stderr that names the key; no folder is made.

They run in this process; real ones are in test_train.py and test_main.py.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import exit_code

from privrl_bench.cli import main as privrl
from privrl_bench.cli import train as cli
from privrl_bench.composition.compose import compose
from privrl_bench.envs import construction as making

COMMANDS: dict[str, Callable[[list[str]], object]] = {
    "privrl-bench": cli.main,
    "privrl": privrl.main,
}
GYM = "env=gym env.id="
EVALUATE = "algo=gpope env=chain data.policy=uniform"
OFFLINE = "algo=primorl env=pendulum data.id=pendulum/ddpg-v0"

# command line -> how the line after `error: ` begins. Words are separated by spaces.
BAD = {
    # a word, a flag
    "privacy.=1": "cannot read 'privacy.=1'",
    "privacy..z=1": "cannot read 'privacy..z=1'",
    "env.id=Wälder-v0": "env.id: cannot read the value 'Wälder-v0'; check its brackets and commas, or quote ",
    "env@foo=hopper": "env: ",
    "--package=x": "--package: goes with --cfg",
    "--config-dir=/nonexistent": "--config-dir: no such folder",
    "--config-name=foo": "--config-name: is not supported",
    "--cfg=bogus": "--cfg: must be one of job, hydra, all, got 'bogus'; see privrl-bench --help",
    "hydra.mode=MULTIRUNN": "hydra.mode: must be null or one of RUN, MULTIRUN",
    "hydra/sweeper=optuna": "hydra/sweeper: -m takes values; privrl tune searches, inside the guarantee",
    "hydra/launcher=rq": "hydra/launcher: rq is not supported; use joblib, ray, submitit_slurm or ",
    "-m privacy.z=interval(0.1,1)": "privacy.z: interval(0.1,1) is a range to draw from, and a sweep takes "
    "values: -m privacy.z=a,b; privrl tune draws: privacy.z=uniform(0.1,1)",
    "privacy.z=interval(0.1,1)": "privacy.z: interval(0.1,1) is a range to draw from, and a sweep takes ",
    "-m algo.lr=loguniform(1e-3,1e-2)": "algo.lr: loguniform(1e-3,1e-2) is a range to draw from, and a sweep "
    "takes values: -m algo.lr=a,b; privrl tune draws: algo.lr=loguniform(1e-3,1e-2)",
    "algo.lr=uniform(1e-3,1e-2)": "algo.lr: uniform(1e-3,1e-2) is a range to draw from",
    "hydra.run.dir=/dev/null/x": "hydra.run.dir: cannot make the folder /dev/null/x: Not a directory",
    "hydra.run.dir=/proc/nope": "hydra.run.dir: cannot make the folder /proc/nope",
    "-m hydra.sweep.dir=/proc/nope seed=1,2": "hydra.sweep.dir: cannot make the folder /proc/nope",
    "-m --cfg job": "--cfg: shows one run, and -m is a sweep",
    "-m env=glob(h*)": "env: glob is not supported; write the names, env=a,b",
    "-m seed=range(0)": "seed: range(0) is empty",
    # a setting without effect
    "algo.anneal_server=false algo.anneal_after=0.5": "algo.anneal_after: has no effect with "
    "algo.anneal_server=false; use algo.anneal_server=true, or algo.anneal_after=0.0, got 0.5",
    "algo.step_kl=0.3": "algo.step_kl: has no effect with algo.metric=euclidean; use algo.metric=fisher, or ",
    "algo.metric=fisher": "algo.metric: fisher needs algo.user_update=gradient",
    "algo.metric=riemann": "algo.metric: must be one of euclidean, fisher",
    "algo.clipped_share=0.5": "algo.clipped_share: needs algo.user_update=gradient",
    "algo.clipped_share=0": "algo.clipped_share: must be in (0, 1]",
    "+paper=dppg algo.anneal_after=0.5": "algo.anneal_after: has no effect with algo.anneal_server=false",
    # what only files set
    "env.name=hopper": "env.name: set by the env group; choose it with env=<name>",
    "algo.name=ppo": "algo.name: set by the algo group; choose it with algo=<name>",
    "hyperparameter_source=mine": "hyperparameter_source: set by the file that holds the values",
    "-m env.name=hopper,cartpole": "env.name: set by the env group",
    "privrl audit epsilon ++algo.name=ppo": "algo.name: set by the algo group",
    "privrl collect env=chain policy=uniform env.name=hopper": "env.name: set by the env group",
    "nosuch=1": "nosuch: no such key; allowed: algo, env, privacy, hardware, log, eval, data, budget, "
    "total_steps, rounds, fit_population, seed, plan_only, plugins, resume, search, tuned, paper\n",
    # twice, or removed
    "algo=dppg algo=ppo": "algo: given twice, as algo=dppg and algo=ppo",
    "env=cartpole env=hopper": "env: given twice",
    "privacy.z=1 ++privacy.z=2": "privacy.z: given twice",
    "-m seed=range(3) seed=4": "seed: given twice",
    "+paper=dppg paper=dqn": "paper: given twice",
    "-m seed=0,0": "seed: 0,0 has a value twice; give each value once",
    "-m privacy.z=1,2,1.0": "privacy.z: 1,2,1.0 has a value twice; give each value once",
    # values that Hydra cannot read
    "-m seed=rang(5)": "seed: no such function 'rang' (did you mean range?); allowed: range, ",
    "-m seed=range(5": "seed: cannot read the value 'range(5'; check its brackets",
    "-m seed=range(a)": "seed: cannot read the value 'range(a)'; check its brackets",
    "-m privacy.z=0.5,,1": "privacy.z: cannot read the value '0.5,,1'; check its brackets and commas",
    "privrl tune algo.lr=logunifrm(1e-3,1e-2)": "algo.lr: no such function 'logunifrm' "
    "(did you mean loguniform?); allowed: ",
    "~privacy": "privacy: takes one choice",
    "~privacy.z": "privacy.z: a key cannot be removed",
    "~nosuch": "nosuch: no such key",
    # choices of groups; a name with little likeness is not suggested
    "env=nope": "env: no such choice 'nope'; allowed: ",
    "env.foo=3": "env.foo: no such key; allowed: env.kind, ",
    "algo=dppg.yaml": "algo: no such choice 'dppg.yaml'",
    "algo=../algo/dppg": "algo: no such choice '../algo/dppg'",
    "algo=null": "algo: no such choice 'None'",
    "env=[hopper]": "env: takes one choice",
    "log=": "log: no such choice ''",
    "hardware=tpu": "hardware: no such choice 'tpu' (did you mean gpu?)",
    "tuned=dppg_mujocoo": "tuned: no such choice 'dppg_mujocoo' (did you mean dppg_mujoco?)",
    "-m tuned=dppg_mujoco,dppg_mujocoo": "tuned: no such choice 'dppg_mujocoo' (did you mean dppg_mujoco?)",
    "algo=ppo tuned=dppg_mujoco env=hopper": "tuned: dppg_mujoco is for algo=dppg, got algo=ppo",
    "paper=dpppg": "paper: no such choice 'dpppg' (did you mean dppg?)",
    "paper/column=dppg_nosuch": "paper/column: no such choice",
    "+paper=reinforce": "paper: its values do not fit this algorithm",
    # types and sizes
    "++seed=a": "seed: must be an integer, got 'a'",
    "seed=true": "seed: must be an integer, got True",
    "seed=99999999999999": "seed: must be ",
    "privacy.z=0x10": "privacy.z: must be auto or a number",
    "privacy.z=[1,2]": "privacy.z: must be auto or a number",
    "privacy.z=nan": "privacy.z: must be finite",
    "privacy.z=1e9": "privacy.z: must be auto or 0 or in",
    "privacy.clip=1e300": "privacy.clip: must be in [1e-9, 1e9]",
    "privacy.delta=1e-320": "privacy.delta: must be in [1e-100, 1)",
    "privacy.epsilon=1e-300": "privacy.epsilon: must be null or >= 1e-4",
    "privacy.epsilon=-1": "privacy.epsilon: must be null or >= 1e-4",
    "privacy.users_per_round=1000000000000": "privacy.users_per_round: must be at most 10_000_000",
    "privacy=poisson privacy.population=99999999999999": "privacy.population: must be at most",
    "privacy=poisson privacy.population=null": "privacy.population: privacy.sampling=poisson needs the "
    "number of users, at least privacy.users_per_round=64, got null",
    "rounds=1000000000000000": "rounds: must be at most 1_000_000_000",
    "rounds=-5": "rounds: must be null or an integer >= 1",
    "total_steps=1": "total_steps: one round takes 64 users x 64 steps = 4096, got 1",
    "eval.episodes=1000000000": "eval.episodes: must be at most 100_000",
    "eval.window=-1": "eval.window: must be an integer >= 1",
    "eval.solved=inf": "eval.solved: must be finite",
    "hardware.threads=2": "hardware.threads: no such key",
    "hardware.workers=1000000": "hardware.workers: must be at most",
    "-m seed=1,2 hardware.workers=5000": "hardware.workers: must be at most",
    "log.lines=-1": "log.lines: must be an integer >= 1",
    "log.project=": "log.project: must be 1 to 128 characters",
    "log.project=a/b": "log.project: must be 1 to 128 characters",
    "log.tags=['']": "log.tags: must be a list of texts of 1 to 64 characters",
    "algo.lr=inf": "algo.lr: must be finite",
    "algo.hidden=64": "algo.hidden: must be a list of integers",
    "algo.hidden=[99999999]": "algo.hidden: must be at most 100_000",
    "env.reward_scale=inf": "env.reward_scale: must be finite",
    "env.max_episode_steps=0": "env.max_episode_steps: must be null or an integer >= 1",
    # settings without effect, and contradictions
    "algo=dppg rounds=5 total_steps=60000": "total_steps: contradicts rounds: 5 rounds of 4096 steps are 20480",
    "algo=dqn rounds=5 total_steps=60000": "total_steps: and rounds=5 both give the length",
    "env.user=episode env.user_steps=9": "env.user_steps: has no effect with env.user=episode",
    "env.domain=walker": "env.domain: is for dm_control",
    "env=dmc env.domain=walker env.task=walk env.id=X-v0": "env.id: is a Gymnasium id",
    "env.text.holdout=5": "env.text.holdout: is for texts",
    "data.users=5": "data.users: splits a dataset",
    "data.part=1/2": "data.part: splits a dataset",
    "data.part=3/2": "data.part: must be null or one of 1/2, 2/2, 1/3",
    "data.part=1/11": "data.part: must be null or one of 1/2, 2/2, 1/3",
    "env.obs_scaling=none env.obs_mean=[0,0,0,0]": "env.obs_mean: has no effect with env.obs_scaling=none",
    "env.obs_mean=[0,0] env.obs_scaling=public": "env.obs_mean: needs 4 numbers, one per observation, got 2",
    "env.obs_std=[1,1]": "env.obs_std: needs 4 numbers, one per observation, got 2",
    "privacy=tree": "privacy.mechanism: algo=dppg takes correlated, gaussian, got 'tree'",
    "privacy.epsilon=0.0001 privacy.delta=1e-90": "privacy.epsilon: 0.0001 at delta 1e-90 takes z = ",
    "privacy.epsilon=0.001 privacy.accountant=rdp": "privacy.epsilon: no noise multiplier gives "
    "epsilon 0.001 after 146 rounds; give another, privacy.accountant=pld, a tighter bound, or privacy.z",
    "algo=mean_return algo.policy=/nonexistent": "algo.policy: there is no /nonexistent; name a run",
    # environments
    GYM
    + "CarRacing-v3": "env.id: CarRacing-v3 needs a package that is not installed; pip install ",
    GYM + "Walker-v5": "env.id: Gymnasium cannot make 'Walker-v5' (did you mean Walker2d-v5?)",
    GYM
    + "'Wälder-v0'": "env.id: Gymnasium cannot make 'Wälder-v0': Environment `Wälder` doesn't exist",
    GYM
    + "MiniGrid-Empty-5x5-v0": "env.id: 'MiniGrid-Empty-5x5-v0' is an environment of the package minigrid",
    GYM
    + "ALE/Pong-v5": "env.id: 'ALE/Pong-v5' is an environment of the package ale-py: pip install ale-py, "
    "then env.id=ale_py:ALE/Pong-v5",
    GYM
    + "PongNoFrameskip-v4": "env.id: 'PongNoFrameskip-v4' is an environment of the package ale-py: ",
    GYM
    + "FetchReach-v4": "env.id: 'FetchReach-v4' is an environment of the package gymnasium-robotics: ",
    GYM
    + "ale_py:ALE/Pong-v5": "env.id: cannot import 'ale_py': the package was not found; pip install ale-py",
    GYM + "Mine/Env-v0": "env.id: no environment 'Mine/Env-v0' is registered; name the package",
    GYM + "Hopper-v3": "env.id: making Hopper-v3 raised ImportError",
    GYM + "no_such_pkg:Env-v0": "env.id: cannot import 'no_such_pkg': the package was not found",
    GYM + "FrozenLake-v1 +env.kwargs.map_name=9x9": "env.id: making FrozenLake-v1 with env.kwargs=",
    GYM
    + "FrozenLake-v1 env.kwargs={nosuch:9}": "env.kwargs: FrozenLake-v1 cannot be made with {'nosuch'",
    GYM + "CartPole-v1 env.kwargs=5": "env.kwargs: must be a mapping {name: value}, got 5",
    GYM + "CartPole-v1 env.kwargs={foo:1} privacy.z=a": "privacy.z: must be auto or a number",
    GYM + "FrozenLake-v1 +env.kwargs.nosuch=9": "env.kwargs: FrozenLake-v1 cannot be made with",
    "-m env=gym,dmc env.id=NoSuch-v0 env.domain=walker env.task=walk": "env.domain: is for dm_control",
    "env=dmc env.domain=walker env.task=wlk": "env.task: walker has no 'wlk' (did you mean walk?)",
    # algorithms and what they go with
    "algo=dppg_kl env=hopper": "env: algo=dppg_kl needs discrete actions",
    "algo=dppg_kl env=hopper total_steps=5": "env: algo=dppg_kl needs discrete actions",
    "algo=ucbvi env=pendulum total_steps=5": "env: algo=ucbvi needs discrete actions and finitely many",
    "algo=dqn env=pendulum total_steps=20_000": "env: algo=dqn needs discrete actions",
    "algo=dqn total_steps=20_000": "total_steps: 8 rounds have 40 users, and privacy.users_per_round=200 of "
    "them are drawn for a round: at least total_steps=102500, got 20000",
    "algo=ppo privacy.epsilon=1": "privacy.epsilon: algo=ppo is not private; for a private run use algo=dppg",
    "algo=sac env=riverswim": "env: algo=sac needs actions in a bounded box",
    "algo=dqn privacy=fixed": "privacy.sampling: algo=dqn takes poisson, got",
    "algo=ucbvi env=riverswim privacy=fresh_noise_per_round privacy.epsilon=1": "privacy.epsilon: "
    "nothing is bounded",
    EVALUATE: "privacy.population: give the number of users",
    f"{EVALUATE} privacy.population=-3": "privacy.population: must be",
    "algo=gpope env=chain data.policy=unifrom privacy.population=9": "data.policy: no policy 'unifrom' (did",
    OFFLINE: "data.id: no dataset 'pendulum/ddpg-v0' here; this makes it: privrl collect +collect=primorl",
    "algo=primorl env=pendulum data.id=../../etc/passwd-v0": "data.id: must have the form name-v0",
    "env=sentiment_small privacy.z=0 env.text.prompts=/nonexistent.txt": "env.text.prompts: no such file or",
    "env=sentiment_small algo=dppg": "env: sentiment_small is prompts and answers, from which "
    "algo=dppg does not learn; use algo=dppg_text",
    # the other commands
    "privrl audit leaks privacy.z=1 privacy.z=2": "privacy.z: given twice",
    "privrl audit leaks tuned=nope": "tuned: no such choice 'nope'",
    "privrl audit leaks --round=x": "--round: must be an integer, got 'x'; see privrl audit leaks",
    "privrl audit leaks --round=1000000": "--round: the plan has 146 rounds, so the last is 145, got 1000000",
    "privrl audit leaks --json=/nope/x.json": "--json: there is no folder /nope",
    "privrl audit leaks --json=/tmp": "--json: cannot write /tmp: Is a directory",
    "privrl audit epsilon --folder=/proc/x": "--folder: cannot make the folder /proc/x",
    "privrl audit epsilon --folder=/dev/null": "--folder: cannot write /dev/null: Not a directory",
    "privrl report .": "DIR: no finished run below .",
    "privrl report . --out=/dev/null": "--out: cannot write /dev/null: Not a directory",
    "privrl audit epsilon hardware.workers=100000": "hardware.workers: must be at most",
    "privrl audit epsilon algo=dppg rounds=5 total_steps=60000": "total_steps: contradicts rounds",
    "privrl report /nonexistent": "DIR: /nonexistent does not exist",
    "privrl report /dev/null": "DIR: /dev/null is a file",
    "privrl report --bogus": "DIR: is required",
    "privrl collect env=pendulum runs=2 runs=3": "runs: given twice",
    "privrl collect env=pendulum total_steps=5": "total_steps: is set by this command, which takes runs",
    "privrl collect env=pendulum steps=99999999999999999999": "total_steps: must be at most",
    "privrl collect env=chain policy=uniform together=nan": "together: must be an integer >= 1",
    "privrl collect env=pendulum seed=1 seed=2": "seed: given twice",
    "privrl collect env=chain policy=uniform name=a/b-v0": "name: must have the form "
    "name-v0 or group/name-v0, of letters, digits, _ and -, a group of at least two, got 'a/b-v0'",
    # a typo in each command
    "privrl plna": "no command 'plna' (did you mean plan?); allowed: ",
    "privrl collect": "env: is missing; for example env=pendulum",
    "privrl audit epsilon --trials 0": "--trials: no such argument; see privrl audit epsilon --help",
    "privrl audit epsilon --scores 0": "--scores: must be an integer >= 20, got 0",
    "privrl audti leaks": "no command 'audti' (did you mean audit?); allowed: audit, ",
    "privrl audit leak": "no command 'leak' (did you mean leaks?); allowed: leaks, epsilon",
    "privrl audit leaks algo=dpgp": "algo: no such choice 'dpgp' (did you mean dppg?)",
    "privrl export /nonexistent --to=foo": "--to: must be one of onnx, torchscript, got 'foo'",
    "privrl evaluate /nonexistent": "RUN: there is no /nonexistent; name a run folder",
    "privrl tune algo.lr=uniform(1e-3,1e-2) hydra.sweep.dir=x": "hydra.sweep.dir: has no effect on a search; "
    "its folder is hydra.run.dir",
    "privrl tune algo.lr=uniform(1e-3,1e-2) hydra/launcher=ray": "hydra/launcher: has no effect on a search",
    "privrl tune algo.lr=uniform(1e-3,1e-2) tune.runs=fixed(2) tune.score=public plan_only=true": "plan_only: "
    "privrl tune trains; --plan shows what a search costs",
    "--config-dir=": "--config-dir: must not be empty",
    "privrl plan --config-dir=": "--config-dir: must not be empty",
    "--config-dir=c1 --config-dir=c2": "--config-dir: given twice, as c1 and c2; give it once",
    "privrl play x --video=a.gif --video=b.gif": "--video: given twice, as a.gif and b.gif; give it once",
    "privrl report . --out=a --out=b": "--out: given twice, as a and b; give it once",
    "hydra.run.dir=''": "hydra.run.dir: must not be empty; give a folder",
    "privrl tune algo.lr=uniform(1e-3,1e-2) tune.runs=fixed(3) tune.score=private tune.score_range=[0,500] "
    "privacy.population=600 rounds=9": "rounds: 9 rounds of 64 users need 576 users, each used once; "
    "privacy.population says 540: at most 8 rounds, total_steps=32768 (60 of the 600 users score",
    "privrl audit leaks --usr=1": "--usr: no such argument (did you mean --user?); see privrl audit",
    "privrl audit leaks --rou=1": "--rou: no such argument",
    "privrl audit epsilon --replica=9": "--replica: no such argument (did you mean --replicas?)",
    "privrl audit epsilon --config-dir=/nonexistent": "--config-dir: no such folder",
    "privrl collect env=pendulm": "env: no such choice 'pendulm' (did you mean pendulum?)",
    "privrl collect --runs=6 env=pendulum": "--runs: no such argument; see privrl collect --help",
    "privrl report . --ot=x": "--ot: no such argument (did you mean --out?); see privrl report",
    "privrl reproduce dppg-tabel1": "item: no such item dppg-tabel1 (did you mean dppg-table1?)",
    "privrl reproduce all --scale=smoky": "--scale: must be one of ",
    "privrl reproduce all --seeds=0": "--seeds: must be an integer >= 1, got 0",
    "privrl reproduce": "ITEM: is required; see privrl reproduce --help",
    "privrl text size=small": "size: no such argument; see privrl text",
    "--multirum seed=1,2": "--multirum: no such argument (did you mean --multirun?); see privrl-bench",
}


def code_of(line: str) -> int:
    """Exit code of a command line, run in this process."""
    words = line.split()
    name = words.pop(0) if words[0] in COMMANDS else "privrl-bench"
    return exit_code(COMMANDS[name], words)


def check(code: int, stderr: str, start: str) -> None:
    """Exit code 2, and one line that begins so."""
    assert code == 2, stderr
    assert stderr.startswith(f"error: {start}")
    assert stderr.count("\n") == 1


def test_there_are_a_hundred() -> None:
    assert len(BAD) >= 100


@pytest.mark.fast_every(5)
@pytest.mark.parametrize("line", BAD)
def test_a_bad_command_line_is_one_line(
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "sets"))  # no datasets
    code = code_of(line)
    check(code, capsys.readouterr().err, BAD[line])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["report", ""], "DIR"),
        (["report", ".", "--out", ""], "--out"),
        (["evaluate", ""], "RUN"),
        (["explain", ""], "RUN"),
        (["plan", "--results", ""], "--results"),
        (["check-env", "--config-dir", ""], "--config-dir"),
    ],
)
def test_an_empty_path(words: list[str], key: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It would be the working directory."""
    code = privrl.main(words)
    check(code, capsys.readouterr().err, f"{key}: must not be empty; see privrl {words[0]} --help")


# --- a user's own package, in the folder of the command

PACKAGE = """
import gymnasium as gym
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple


class Own(gym.Env):
    observation_space, action_space = Box(0.0, 1.0, (2,)), Discrete(2)

    def __init__(self, broken=""):
        if broken == "make":
            raise RuntimeError("no licence\\nfound")
        spaces = {
            "mission": ("observation_space", Dict({"image": Box(0.0, 1.0, (2,)), "mission": Text(9)})),
            "text": ("observation_space", Text(5)),
            "tuple": ("action_space", Tuple([Discrete(2), Discrete(2)])),
        }
        if broken in spaces:
            setattr(self, *spaces[broken])
        self.broken = broken

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.broken == "reset":
            raise ZeroDivisionError("no data")
        shape = 3 if self.broken == "shape" else 2
        return [0.5] * shape, {}

    def step(self, action):
        return [0.5] * 2, 0.0, False, False, {}


class Clinic(Own):
    metadata = {"users": 12}

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class NoSpaces(gym.Env):
    pass


gym.register("Own-v0", entry_point=Own, max_episode_steps=4)
gym.register("Endless-v0", entry_point=Own)
gym.register("NoSpaces-v0", entry_point=NoSpaces)
gym.register("Ward-v0", entry_point=Clinic, max_episode_steps=4)
"""

OWN = {
    "mission": "env.id: observations of own_pkg:Own-v0 have no fixed size: Dict ('mission' is Text)",
    "text": "env.id: observations of own_pkg:Own-v0 have no fixed size: Text; use a wrapper",
    "tuple": "env.id: actions must be Discrete, Box, MultiDiscrete or MultiBinary, own_pkg:Own-v0 has Tuple",
    "make": "env.id: making own_pkg:Own-v0 with env.kwargs={'broken': 'make'} raised RuntimeError: no licen",
    "reset": "env.id: the first reset of own_pkg:Own-v0 raised ZeroDivisionError: no data",
    "shape": "env.id: the first reset of own_pkg:Own-v0 returned an observation of shape (3,)",
}


@pytest.fixture
def own_pkg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is in the folder of the command."""
    (tmp_path / "own_pkg.py").write_text(PACKAGE)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_pkg", raising=False)


@pytest.mark.parametrize("broken", OWN)
@pytest.mark.usefixtures("own_pkg")
def test_an_environment_that_cannot_be_used(
    broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = code_of(f"{GYM}own_pkg:Own-v0 +env.kwargs.broken={broken}")
    check(code, capsys.readouterr().err, OWN[broken])
    assert [path.name for path in tmp_path.iterdir()] == ["own_pkg.py"]


@pytest.mark.usefixtures("own_pkg")
def test_a_wrong_shape_of_declared_users_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code = code_of(f"{GYM}own_pkg:Ward-v0 +env.kwargs.broken=shape")
    check(code, capsys.readouterr().err, OWN["shape"].replace("Own-v0", "Ward-v0"))


@pytest.mark.parametrize("command", ["", "privrl check-env "])
@pytest.mark.usefixtures("own_pkg")
def test_an_environment_without_spaces(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = code_of(f"{command}{GYM}own_pkg:NoSpaces-v0 env.max_episode_steps=4")
    said = "env.id: own_pkg:NoSpaces-v0 has no observation_space; set self.observation_space in its __init__"
    check(code, capsys.readouterr().err, said)


@pytest.mark.usefixtures("own_pkg")
def test_no_time_limit_names_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    code = code_of(f"{GYM}own_pkg:Endless-v0")
    check(
        code, capsys.readouterr().err, "env.max_episode_steps: own_pkg:Endless-v0 has no time limit"
    )


@pytest.mark.usefixtures("own_pkg")
def test_declared_users_are_refused_before_sizes_change(capsys: pytest.CaptureFixture[str]) -> None:
    code = code_of(f"privrl audit epsilon {GYM}own_pkg:Ward-v0")
    check(code, capsys.readouterr().err, "env: own_pkg:Ward-v0 declares 12 users, and an attack")


@pytest.mark.usefixtures("own_pkg")
def test_a_warning_of_making_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = compose(["env=gym", "env.id=own_pkg:Ward-v0"]).env  # makes it, too
    monkeypatch.setattr(making, "_SHOWN", set())
    with warnings.catch_warnings(record=True) as batch:
        warnings.simplefilter("always")
        for _ in range(3):
            making.make_env(spec).close()
    assert len([one for one in batch if "render" in str(one.message)]) == 1


def test_a_tiny_epsilon_warns_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # an error would be exit code 1
        assert code_of("privacy.epsilon=0.0001 plan_only=true log=none") == 2


def test_an_interrupted_audit_does_not_promise_to_resume(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(words: list[str], prog: str) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("privrl_bench.cli.audit._leak_arguments", stop)
    assert code_of("privrl audit leaks") == 130
    assert (
        capsys.readouterr().err
        == "interrupted; no results were kept; rerun the same command to start again\n"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def f(:\n", "importing 'bad_pkg' raised SyntaxError: invalid syntax"),
        (
            "import not_installed_at_all\n",
            "cannot import 'bad_pkg': it needs 'not_installed_at_all'",
        ),
        ("raise SystemExit('bye')\n", "importing 'bad_pkg' raised SystemExit: bye"),
    ],
)
def test_a_package_that_fails_on_import(
    text: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "bad_pkg.py").write_text(text)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code = code_of(f"{GYM}bad_pkg:Env-v0")
    check(code, capsys.readouterr().err, f"env.id: {problem}")
    assert not (tmp_path / "outputs").exists()
