"""Reference pages of the documentation site, generated from the code: keys and metrics.

    python scripts/reference_pages.py configuration|metrics

prints a page. `scripts/site_hooks.py` adds them to the site, so that there is no copy that could be outdated.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from privrl_bench.algorithms.registry import OURS, algo_schema
from privrl_bench.config.ranges import Section
from privrl_bench.config.schema.algorithm import AlgoConfig
from privrl_bench.config.schema.env import EnvConfig
from privrl_bench.config.schema.privacy import PrivacyConfig
from privrl_bench.config.schema.run import (
    DataConfig,
    EvalConfig,
    HardwareConfig,
    LogConfig,
    RunConfig,
)
from privrl_bench.metrics import METRICS
from privrl_bench.packs.tuning.settings import TuneConfig
from privrl_bench.privacy import mechanisms, sampling

CONF = Path(__file__).resolve().parents[1] / "conf"
SECTIONS = (EnvConfig, PrivacyConfig, EvalConfig, DataConfig, HardwareConfig, LogConfig)
GROUPS = ("algo", "env", "privacy", "hardware", "log", "tuned", "paper", "collect")


# --- configuration


def configuration() -> str:
    """Every key of the configuration: allowed values, default, meaning."""
    page = [
        "# Configuration keys",
        "",
        "Generated from the dataclasses of `privrl_bench/config/schema/` and the algorithms' settings. "
        "A command sets a key as `key=value` and chooses a file of a group as `group=name`. The default "
        "is that of the schema; the files of a group, which the plan names, may set another one.",
        "",
        "## Groups",
        "",
        "| group | choices |",
        "|---|---|",
    ]
    for group in GROUPS:
        folders = (CONF, *CONF.parent.glob("privrl_bench/**/conf"))
        names = sorted({path.stem for one in folders for path in (one / group).glob("*.yaml")})
        chosen = "+" if group in ("paper", "collect") else ""
        page.append(f"| `{chosen}{group}=` | {', '.join(f'`{name}`' for name in names)} |")
    page += ["", "## The run", "", *_table(RunConfig, _own(RunConfig))]
    for section in SECTIONS:
        name = section.prefix.removesuffix(".")
        page += ["", f"## {name}", "", _first_line(section), "", *_table(section, _own(section))]
    note = "Of `privrl tune` ([guide](../guides/tuning.md)); they are no part of a run's configuration."
    page += ["", "## tune", "", note, "", *_table(TuneConfig, _own(TuneConfig))]
    page += ["", "## algo", "", "Every algorithm has the keys below; its own follow."]
    page += ["", *_table(AlgoConfig, _own(AlgoConfig))]
    for algorithm in sorted(OURS):
        schema = algo_schema(algorithm)
        own = [field for field in _own(schema) if field.name not in ("name", "gamma")]
        page += ["", f"### algo={algorithm}", "", _first_line(schema), ""]
        page += _table(schema, own, _shipped(algorithm), _yaml_comments(algorithm))
    return "\n".join(page) + "\n"


def _own(section: type[Section]) -> list[dataclasses.Field[Any]]:
    """The fields that are values, not sections."""
    nested = [field.name for field in dataclasses.fields(RunConfig) if _is_section(field)]
    return [
        f for f in dataclasses.fields(section) if section is not RunConfig or f.name not in nested
    ]


def _is_section(field: dataclasses.Field[Any]) -> bool:
    factory = field.default_factory
    return isinstance(factory, type) and issubclass(factory, Section)


def _first_line(section: type[Section]) -> str:
    return (inspect.getdoc(section) or "").splitlines()[0]


@cache
def _shipped(algorithm: str) -> dict[str, Any]:
    """The values of `conf/algo/<algorithm>.yaml`."""
    read = yaml.safe_load((CONF / "algo" / f"{algorithm}.yaml").read_text())
    values: dict[str, Any] = read.get("algo") or {}
    return values


@cache
def _yaml_comments(algorithm: str) -> dict[str, str]:
    """The comments beside the values of `conf/algo/<algorithm>.yaml`."""
    text = (CONF / "algo" / f"{algorithm}.yaml").read_text()
    return dict(re.findall(r"^  (\w+):.*?  # (.*)$", text, re.MULTILINE))


def _table(
    section: type[Section],
    fields: list[dataclasses.Field[Any]],
    shipped: dict[str, Any] | None = None,
    meanings: dict[str, str] | None = None,
) -> list[str]:
    rows = ["| key | values | default | meaning |", "|---|---|---|---|"]
    for field in fields:
        value = (shipped or {}).get(field.name, _default(field))
        cells = [
            f"`{section.prefix}{field.name}`",
            _values(f"{section.prefix}{field.name}", field),
            f"`{_word(value)}`",
        ]
        meaning = _meaning(section, field.name) or (meanings or {}).get(field.name, "")
        rows.append(f"| {' | '.join([*cells, _cell(meaning)])} |")
    return rows


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if callable(field.default_factory) else None


def _word(value: Any) -> str:
    """A value as the command line has it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int):
        return f"{value:_}"
    return str(value).replace("'", "") if value != "" else "''"


# Keys whose values are the names of a registry.
NAMES = {"privacy.mechanism": mechanisms.names, "privacy.sampling": sampling.names}


def _values(key: str, field: dataclasses.Field[Any]) -> str:
    declared = field.metadata.get("range")
    if key in NAMES:
        return ", ".join(f"`{name}`" for name in NAMES[key]())
    kind = str(field.type).replace(" | None", "").replace("Any", "value")
    for short, full in (("bool", "`true`, `false`"), ("str", "text"), ("int", "integer")):
        kind = re.sub(rf"\b{short}\b", full, kind)
    null = " or null" if "None" in str(field.type) else ""
    if declared is None:
        return _cell(kind + null)
    if declared.options:
        return ", ".join(f"`{option}`" for option in declared.options) + null
    return _cell(f"{declared.rule}{null.replace('null', declared.null)}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _meaning(section: type[Section], name: str) -> str:
    """The comment of a field in the source of the class that declares it."""
    for owner in section.__mro__:
        if name in inspect.get_annotations(owner):
            return _comments(owner).get(name, "")
    return ""


@cache
def _comments(owner: type) -> dict[str, str]:
    """The comments above and beside each annotated field of a class."""
    source = inspect.getsource(owner)
    beside = {
        token.start[0]: (token.string.lstrip("# ").strip(), token.line.strip().startswith("#"))
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        above: list[str] = []
        line = node.lineno - 1
        while beside.get(line, ("", False))[1]:
            above.insert(0, beside[line][0])
            line -= 1
        inline = [
            beside[n][0] for n in range(node.lineno, (node.end_lineno or 0) + 1) if n in beside
        ]
        found[node.target.id] = " ".join([*above, *inline])
    return found


# --- metrics


def metrics() -> str:
    """Every declared metric: unit, direction, who may see it, meaning."""
    page = [
        "# Metrics",
        "",
        "The columns of `metrics.jsonl`. *public*: computed from the configuration. *released*: computed "
        "from released parameters and simulated episodes. *private*: computed from users' data without "
        "noise, or from the time that they took; these stay in the run folder and are never sent to W&B.",
        "",
        "| metric | unit | better | audience | meaning |",
        "|---|---|---|---|---|",
    ]
    for one in METRICS.values():
        cells = [f"`{one.name}`", one.unit or "-", one.direction, one.visibility, one.meaning]
        page.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    return "\n".join(page) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "configuration": configuration,
    "metrics": metrics,
}

if __name__ == "__main__":
    print(PAGES[sys.argv[1]](), end="")
