"""The command `privrl collect`: records episodes as a local Minari dataset."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from privrl_bench.cli.parsing import CONFIG_DIR, OVERRIDES, Parser, add_working_directory, given
from privrl_bench.composition import hydra_compose as config
from privrl_bench.composition.compose import compose
from privrl_bench.config.diagnostics import check_repeated
from privrl_bench.config.overrides import (
    explicit_keys,
    file_of,
    later_wins,
    own_folder,
    plain_groups,
)
from privrl_bench.config.schema import RunConfig
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.recording import Order, record_policy, record_runs, trained
from privrl_bench.privacy.rules import rules
from privrl_bench.training.crash import guarded
from privrl_bench.training.trained_policy import changed_env, env_words
from privrl_bench.users import kind_of

ABOUT = """Record the episodes of training runs, or of a policy that does not change, as a local Minari dataset.

  {0} env=pendulum algo=ddpg runs=6 steps=20_000 name=pendulum/small-v0
  {0} +collect=primorl env=pendulum
  {0} env=mountain_car env.max_episode_steps=1000 policy=mountain_car:epsilon:0.05 episodes=1_000
  {0} policy=outputs/sac/pendulum/seed=0 episodes=100 name=pendulum/sac-expert-v0

of training runs:      runs=8 steps=20_000 together=64 name=<env>/<algo>-v0, or a preset +collect=<name>
of a known policy:     policy=<name> episodes=1_000 together=256 name=<env>/<policy>-v0
of a finished run:     policy=<run folder or policy.pt> episodes=1_000 together=256 name=<env>/<algo>-policy-v0
together:              runs or episodes that are played at the same time

With a known policy (uniform, or a file of action values; see fixed_policies.py) every step has the
probability of its action: data for policy evaluation. The policy of a run acts stochastically, in the
environment of its training unless `env` names another. The card of the dataset (a plot of returns, provenance,
the overrides) is in outputs/collect/<name>. Rerun the same command to resume: it keeps the groups of `together`
runs or episodes that were done. Words win over those of a preset."""
ROOT = Path("outputs/collect")
_OF_RUNS = ("runs", "steps", "name", "together")
_OF_POLICY = ("policy", "episodes", "name", "together")
_NOT_OF_POLICY = ("runs", "steps", "collect", "algo", "privacy", "data")
_QUIET = ("log=none", "eval.every=0")


def main(arguments: Sequence[str] | None = None, prog: str = "privrl collect") -> int:
    """Run the command and return its exit code."""
    add_working_directory()
    return guarded(lambda: _collect(given(arguments), prog))


def _collect(words: Sequence[str], prog: str) -> int:
    parser = Parser(prog, ABOUT.format(prog))
    parser.add_argument("words", nargs="*", metavar="key=value", help=f"the above, or {OVERRIDES}")
    parser.add_argument("--config-dir", metavar="DIR", help=CONFIG_DIR)
    args = parser.read(words)
    with own_folder(args.config_dir):
        return collect(parse(args.words), ROOT)


def collect(order: Order, root: Path) -> int:
    """Record an order, print the dataset and return the exit code. Raises `ConfigError`."""
    if order.runs:
        return record_runs(order, configs_of(order), root)
    return record_policy(order, _config_of(order), root)


def configs_of(order: Order) -> list[RunConfig]:
    """Return the configuration of each run; they differ in the seed. Raises `ConfigError`."""
    words = later_wins(order.words, [f"total_steps={order.steps}", "rounds=null"], _QUIET)
    first = compose(words)
    if rules(first.privacy).mechanism.private or kind_of(first).from_data:
        raise ConfigError("algo", f"algo={first.algo.name} does not collect; use ddpg, sac or ppo")
    return [compose(later_wins(words, [f"seed={first.seed + i}"])) for i in range(order.runs)]


def _config_of(order: Order) -> RunConfig:
    """Return the configuration; a trained policy brings its environment. Raises `ConfigError`."""
    file, words = trained(order.policy), order.words
    if file is None or _value("env", words):
        return compose(later_wins(words, _QUIET))
    found = compose(later_wins(env_words(file), words, _QUIET))
    return replace(found, env=changed_env(file, found.env, words))


# --- words


def parse(arguments: Sequence[str]) -> Order:
    """Return the order of a command. Raises `ConfigError`."""
    plays = any(word.startswith("policy=") for word in arguments)
    keys, other = (_OF_POLICY, _NOT_OF_POLICY) if plays else (_OF_RUNS, ("episodes",))
    own: dict[str, str] = {}
    rest: list[str] = []
    for word in arguments:
        key, _, value = word.partition("=")
        if key.lstrip("+") in other:
            whose = "training runs" if plays else "policy=<name>"
            raise ConfigError(key.lstrip("+"), f"goes with {whose}; this takes {', '.join(keys)}")
        if key not in keys:
            rest.append(word)
        elif own.setdefault(key, value) != value:
            raise ConfigError(key, f"given twice, as {own[key]} and {value}; give it once")
    check_repeated(config.parse(plain_groups(rest)))
    for key in ("rounds", "total_steps", "eval.every", "log"):
        if key in explicit_keys(rest):
            raise ConfigError(key, f"is set by this command, which takes {', '.join(keys)}")
    return _policy_order(own, rest) if plays else _runs_order(own, rest)


def _runs_order(own: dict[str, str], rest: list[str]) -> Order:
    preset: dict[str, Any] = {}
    for word in [word for word in rest if word.startswith("+collect=")]:
        rest.remove(word)
        preset = _preset(word.partition("=")[2], _value("env", rest))
    rest = later_wins(preset.pop("words", ()), rest)
    own = {"runs": "8", "steps": "20_000", **{k: str(v) for k, v in preset.items()}, **own}
    env = _given("env", rest, "env=pendulum runs=6 steps=20_000; see privrl collect --help")
    if not _value("algo", rest):
        rest.insert(0, "algo=ddpg")
    numbers = {key: _integer(key, own[key]) for key in ("runs", "steps")}
    return _order(own, f"{env}/{_value('algo', rest)}", "64", rest, **numbers)


def _policy_order(own: dict[str, str], rest: list[str]) -> Order:
    policy = own["policy"]
    file = trained(policy)
    if file is None:
        env = _given("env", rest, "env=chain policy=uniform episodes=1_000")
        short = re.sub(r"^.*/|\.json", "", policy)  # of a path, the file's name
    else:
        env = _value("env", rest) or str(file.env["name"])
        short = f"{file.algo['name']}-policy"
    short = re.sub(r"[^a-zA-Z0-9]+", "-", short).strip("-").lower()
    episodes = _integer("episodes", own.get("episodes", "1_000"))
    return _order(own, f"{env}/{short}", "256", rest, policy=policy, episodes=episodes)


def _order(own: dict[str, str], name: str, together: str, rest: list[str], **more: Any) -> Order:
    """Return an order with these values where the words give none."""
    name = own.get("name", f"{name}-v0".replace("_", "-"))
    return Order(name, _integer("together", own.get("together", together)), tuple(rest), **more)


def _given(key: str, words: Sequence[str], example: str) -> str:
    """Return the value of a key. Raises `ConfigError`: it is missing."""
    found = _value(key, words)
    if not found:
        raise ConfigError(key, f"is missing; for example {example}")
    return found


def _value(key: str, words: Sequence[str]) -> str:
    """Return the value of the first word of a key, or an empty string."""
    return next((w.partition("=")[2] for w in words if w.startswith(f"{key}=")), "")


def _integer(key: str, text: str) -> int:
    """Return a positive integer. Raises `ConfigError`."""
    try:
        found = int(text.replace("_", ""))
    except ValueError:
        found = 0
    if found < 1:
        raise ConfigError(key, f"must be an integer >= 1, got {text}")
    return found


def _preset(name: str, env: str) -> dict[str, Any]:
    """Return the entry of an environment in a file of the group collect. Raises `ConfigError`."""
    import yaml

    allowed, path = config.choices("collect"), file_of("collect", name)
    if path is None:
        raise ConfigError("collect", f"no such preset {name}; allowed: {', '.join(allowed)}")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if env not in content:
        raise ConfigError("env", f"collect={name} is for {', '.join(content)}, got {env!r}")
    found: dict[str, Any] = content[env]
    return dict(found)
