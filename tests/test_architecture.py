"""Who may import whom, who may draw noise, who may construct a release."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "privrl_bench"
FILES = sorted(ROOT.rglob("*.py"))


def module(path):
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "privrl_bench":
            yield from (f"privrl_bench.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


# package -> what of privrl_bench it may import, beside itself
ALLOWED = {
    "errors": set(),
    "schema": {"errors", "ranges"},
    "identity": {"errors", "schema"},
    "crash": {"errors"},
    "ranges": {"errors"},
    "writable": {"errors"},
    "presets": {"words"},
    "machine": {"errors", "schema"},
    "jit": set(),
    "measure": set(),
    "metrics": set(),
    "types": set(),
    "streams": {"types"},
    "maths": {"types"},
    "nets": {"errors", "schema", "types"},
    "data": {"errors"},
    "text": {"crash", "types", "schema", "errors", "nets"},
    "text_rollout": {"envs", "nets", "schema", "streams", "text", "types"},
    "text_evaluate": {"envs", "evaluate", "nets", "streams", "text", "text_rollout"},
    "envs": {"data", "jit", "text", "types", "schema", "errors"},
    "source": {"data", "envs", "errors", "presets", "schema", "types"},
    "episodes": {"envs", "jit", "nets", "privacy"},
    "rollout": {"types", "nets", "envs", "episodes", "privacy", "schema", "streams"},
    "people": {"rollout", "types"},
    "evaluate": {"machine", "types", "nets", "envs", "episodes", "schema", "streams"},
    "privacy": {"types", "schema", "errors", "metrics"},
    "algos": {"errors", "jit", "types", "maths", "nets", "privacy", "schema", "streams", "text"},
    "real_users": {"errors", "schema", "types"},
    "assemble": {
        *("algos", "envs", "errors", "identity", "metrics", "nets", "privacy", "real_users"),
        *("rollout", "review", "schema", "source", "streams", "text", "text_rollout", "types"),
    },
    "rundir": {"crash", "errors", "identity", "schema"},
    "log": {"errors", "measure", "metrics", "schema"},
    "report": {"crash", "envs", "errors", "measure", "metrics", "privacy", "schema", "writable"},
    "trivial": {"config", "envs", "evaluate", "nets", "report", "streams"},
    "reproduce": {
        "cli",
        "collect",
        "config",
        "data",
        "errors",
        "jobs",
        "privacy",  # the z of a target epsilon
        "report",
        "sweep",
        "trivial",
        "words",
    },
    "exact": {"envs", "maths", "nets", "schema"},
    "played": {"envs", "nets", "rollout", "schema", "streams", "types"},
    "values": {"algos", "envs", "maths", "measure", "played", "schema", "streams", "types"},
    "session": {
        *("algos", "assemble", "evaluate", "exact", "people", "played", "rollout"),
        *("source", "text_evaluate", "text_rollout", "types", "values"),
    },
    "policy_file": {"session"},
    "review": {"algos", "identity", "privacy", "rundir", "schema"},
    "rows": {"evaluate", "log", "metrics", "privacy", "report", "rundir", "session", "values"},
    "signals": set(),
    "training": {
        *("assemble", "crash", "errors", "jit", "log", "measure", "metrics", "policy_file"),
        *("privacy", "report", "rows"),
        *("rundir", "session", "signals"),
    },
    "run": {
        "assemble",
        "errors",
        "machine",
        "measure",
        "metrics",
        "privacy",
        "real_users",
        "review",
        "rundir",
        "schema",
        "session",
        "signals",
        "training",
    },
    "audit": {
        *("assemble", "config", "errors", "machine", "metrics", "mistakes", "people", "played"),
        *(
            "crash",
            "envs",
            "jit",
            "policy_file",
            "privacy",
            "report",
            "review",
            "rollout",
            "rows",
            "run",
            "schema",
            "session",
        ),
        *("source", "text_rollout", "types", "values", "writable"),
    },
    "collect": {
        *(
            "assemble",
            "config",
            "crash",
            "data",
            "envs",
            "errors",
            "log",
            "machine",
            "nets",
            "play",
        ),
        *("report", "rundir", "schema", "session", "signals", "words"),
    },
    "play": {"data", "envs", "nets", "schema", "streams", "types"},
    "mistakes": {"errors"},
    "words": {"errors", "mistakes", "schema"},
    "explicit": {"errors", "schema"},
    "config": {"errors", "explicit", "mistakes", "ranges", "schema", "words"},
    "jobs": {"crash", "errors", "machine", "run", "schema"},
    "sweep": {"identity", "jobs", "machine", "run", "schema"},
    "cli": {
        *("config", "crash", "errors", "jobs", "machine", "measure", "metrics", "mistakes"),
        *("schema", "words"),
    },
}


@pytest.mark.parametrize("path", FILES, ids=module)
def test_imports_go_one_way(path):
    parts = module(path).split(".")
    if len(parts) == 1 or parts[1] == "__init__":
        return
    package = parts[1]
    assert package in ALLOWED, f"say in ALLOWED what {package} may import"
    used = {name.split(".")[1] for name in imports(path) if name.startswith("privrl_bench.")}
    extra = used - ALLOWED[package] - {package}
    assert not extra, f"{module(path)} must not import {sorted(extra)}"


@pytest.mark.parametrize("path", FILES, ids=module)
def test_hydra_stays_at_the_door(path):
    if path.name in ("cli.py", "config.py", "mistakes.py"):
        return
    assert not [name for name in imports(path) if name.split(".")[0] in ("hydra", "omegaconf")]


def calls(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            function = node.func
            yield (
                function.attr
                if isinstance(function, ast.Attribute)
                else getattr(function, "id", "")
            )


@pytest.mark.parametrize("path", FILES, ids=module)
def test_only_the_gate_makes_releases_and_noise(path):
    inside = path.relative_to(ROOT).parts
    if inside[0] == "privacy":
        return
    made = set(calls(path))
    assert not made & {"Released", "Guarantee"}
    assert "Ledger" not in made or inside == ("assemble.py",)
    assert not made & {"SeededNoise", "SecureNoise", "clip_rows"}
    # Initial weights and action noise are drawn in nets, first states of simulators in envs.
    if "nets" not in inside and "envs" not in inside:
        gaussian = {
            "randn",
            "randn_like",
            "normal_",
            "normal",
            "standard_normal",
            "gauss",
            "rsample",
        }
        assert not made & gaussian, "Gaussian draws belong to the gate"


@pytest.mark.parametrize("path", FILES, ids=module)
def test_nobody_reaches_into_the_gate(path):
    if path.relative_to(ROOT).parts[0] == "privacy":
        return
    tree = ast.parse(path.read_text())
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and "privacy" in (node.module or "")
        for alias in node.names
    }
    assert not names & {"_GATE", "_content"}
    words = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert not words & {"_GATE", "_content"}
    renamed = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if alias.asname and "privacy" in (getattr(node, "module", "") or alias.name)
    }
    assert not renamed, "other names for the gate's things escape these tests"
    relative = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
    assert not relative, "relative imports escape these tests"


def test_importing_the_schema_is_light():
    import subprocess
    import sys

    heavy = "torch", "wandb", "gymnasium", "hydra", "dp_accounting", "matplotlib"
    code = (
        "import sys, privrl_bench.config.schema, privrl_bench.metrics\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_import_leads_back():
    found = {}
    for path in FILES:
        parts = module(path).split(".")
        if len(parts) > 1 and parts[1] != "__init__":
            used = {n.split(".")[1] for n in imports(path) if n.startswith("privrl_bench.")}
            found.setdefault(parts[1], set()).update(used - {parts[1]})
    TopologicalSorter(found).prepare()  # raises CycleError
