"""The command `privrl check-env`: what an environment is, and whether it can be trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from privrl_bench.cli.parsing import CONFIG_DIR, OVERRIDES, Parser, check_at_least
from privrl_bench.composition.compose import compose
from privrl_bench.composition.hydra_compose import choices
from privrl_bench.config.overrides import own_folder
from privrl_bench.config.schema import RunConfig
from privrl_bench.envs.check import ERROR, WARNING, EnvReport, check_env
from privrl_bench.errors import ConfigError

ABOUT = """Check an environment before training: Gymnasium's checker, spaces, determinism, finite numbers,
lengths of episodes, users; and a YAML file with public scaling constants from random actions.

  privrl check-env my_pkg:MyEnv-v0
  privrl check-env env=gym env.id=my_pkg:MyEnv-v0 +env.kwargs.size=5 --json

An environment that declares users is reset with {"user": None, "evaluation": True} only: no user takes part."""
CODES = "Exit codes: 0 nothing or warnings found; 1 an error found; 2 bad input."


def main(words: Sequence[str], prog: str) -> int:
    """Run the command and return its exit code."""
    parser = Parser(prog, ABOUT, CODES)
    parser.add_argument(
        "words", nargs="+", metavar="ID or word", help=f"a Gymnasium id, or {OVERRIDES}"
    )
    parser.add_argument("--steps", type=int, default=5000, help="of random actions (5000)")
    parser.add_argument("--config-dir", help=CONFIG_DIR)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.read(words)
    check_at_least("--steps", args.steps, 1)
    with own_folder(args.config_dir):
        run = compose(overrides(args.words))
        report = check_env(run.env, args.steps)
    if args.json:
        print(json.dumps(as_json(report), indent=2))
    else:
        print("\n".join(as_text(report, run)))
    return 0 if report.ok else 1


def overrides(words: Sequence[str]) -> list[str]:
    """The words of a run. A first word without `=` is the name of an environment, or an id.

    >>> overrides(["CartPole-v1"]), overrides(["hopper", "env.user_steps=9"])
    (['env=gym', 'env.id=CartPole-v1'], ['env=hopper', 'env.user_steps=9'])
    """
    first, *rest = words
    if "=" in first or first.startswith("~"):
        return list(words)
    if any("=" not in word and not word.startswith("~") for word in rest):
        raise ConfigError("", "write one id, then words key=value")
    chosen = [f"env={first}"] if first in choices("env") else ["env=gym", f"env.id={first}"]
    return [*chosen, *rest]


def as_json(report: EnvReport) -> dict[str, Any]:
    """The report for programs. Nothing is proposed for an environment that was chosen by its YAML file."""
    return {
        "env": report.label,
        "ok": report.ok,
        "findings": [vars(one) for one in report.findings],
        "yaml": report.proposed,
    }


def as_text(report: EnvReport, run: RunConfig) -> list[str]:
    """The report in lines."""
    lines = [report.label]
    for one in report.findings:
        mark = {"error": "ERROR", "warning": "warn", "fine": "ok"}[one.severity]
        lines.append(f"  {mark:6}{one.check:14}{one.text}")
    lines.append(f"  {'':6}{'values':14}{run.hyperparameter_source}")
    if report.proposed is not None:
        name = yaml.safe_load(report.proposed)["name"]
        lines += [
            "",
            f"Proposed: put this into DIR/env/{name}.yaml, any folder DIR; then: "
            f"privrl-bench --config-dir DIR env={name}",
            "",
            report.proposed,
        ]
    errors, warnings = (
        sum(one.severity == severity for one in report.findings) for severity in (ERROR, WARNING)
    )
    said = f"{errors} error{'' if errors == 1 else 's'}"
    return [*lines, "", f"{said}, {warnings} warning{'' if warnings == 1 else 's'}"]
