"""Measure the structure of the program: sizes, contracts, circles of files, names, docstrings.

    python scripts/count_structure.py [--check] [--root FOLDER]

--check prints one line for each count that is over its limit (all places, where none is allowed), and returns 1
if there is one. `make lint` runs it. A limit only falls, in the commit that makes the count smaller.
"""

from __future__ import annotations

import argparse
import ast
import math
import re
from collections import defaultdict
from pathlib import Path

PACKAGE = "privrl_bench"

# Class of a contract -> its folders; most methods and properties of its body.
CONTRACTS = {
    "Noise": (("privacy/",), 10),  # of a mechanism; goal: 8
    "Accounting": (("privacy/",), 9),  # of a mechanism; goal: 8
    "Description": (("privacy/",), 6),  # of a mechanism; goal: 8
    "Sampler": (("privacy/",), 11),  # goal: 8
    "Algorithm": (("algorithms/",), 11),
    "Users": (("users/",), 18),  # goal: 13
    "Evaluator": (("evaluation/",), 5),
    "Account": (("privacy/",), 14),  # goal: 12
    "Gate": (("privacy/",), 17),  # goal: 12
    "Trainer": (("training/",), 19),  # goal: 12
}
LITERALS = 0
CIRCLES = 0  # with imports for types, too
SAME_NAMES = 0
DOCUMENTED = 1.0  # share of public names; goal: not lower
# Group -> folders, most files and lines, docstrings counted. The core is the package without packs and papers.
PACKS, PAPERS = ("privrl_bench/packs",), ("privrl_bench/papers", "scripts", "hydra_plugins")
SIZES = {
    "core": ((PACKAGE,), 226, 36_830),  # goal: 260 files, 33,000 lines
    "packs": (PACKS, 76, 13_270),  # goal: 7,000, and 5,000 for logs: import, learning, evaluation
    "papers, scripts, plugins": (PAPERS, 39, 7_640),  # goal: 6,500
    "tests": (("tests",), 238, 40_760),  # goal: 36,500, before logs
}

# The names of classes in these folders are literals in their own files only.
NAMED = ("privacy/mechanisms/", "privacy/sampling/", "users/", "evaluation/")

# Word, what else it is: files in which it is that, and never the registered name.
ALLOWED = """
none, a way of scaling: algorithms/evaluation/mean_return.py config/schema/env.py envs/check.py
    envs/registry.py envs/scaling.py evaluation/baselines.py users/refusals.py
none, status of a guarantee: api/explaining.py audit/leaks.py privacy/guarantee.py
    privacy/accounting/accountants.py reporting/page.py reporting/plots.py audit/finding.py
    training/results.py training/wandb_logger.py
none, a metric without a better end: metrics.py
none, no W&B: config/schema/run.py
none, no critic or baseline: algorithms/loglinear/loglinear_settings.py
    algorithms/loglinear/trajectory_gradient.py algorithms/policy_gradient/dppg.py
    algorithms/policy_gradient/policy_gradient_settings.py algorithms/policy_gradient/critics.py
none, a word of another library or of a text: algorithms/value/q_learning.py reporting/style.py
    training/trained_policy.py
gaussian, kind of an event or an accountant: audit/canary.py privacy/accounting/accountants.py
    privacy/accounting/cost.py privacy/mechanisms/local.py privacy/mechanisms/tree.py
    privacy/sampling/sampler.py privacy/mechanisms/declarations.py privacy/accounting/filters.py
gaussian, default of the configuration or an accountant: config/schema/privacy.py
fixed, default of the configuration: config/schema/privacy.py
declared, a caveat that the leak test found: audit/leaks.py
local, notion of privacy: api/explaining.py
dataset, key of the notes or a folder: privacy/account.py
mspbe, a metric: evaluation/objective.py metrics.py
simulated, who wrote a dataset or a text: reporting/runs.py
"""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Nodes = dict[str, list[ast.AST]]  # file of the package -> its module and all nodes in it


def parsed(folder: Path) -> Nodes:
    """The files of the package, by their path in it."""
    files = sorted(folder.rglob("*.py"))
    return {x.relative_to(folder).as_posix(): [*ast.walk(ast.parse(x.read_text()))] for x in files}


def classes(tree: Nodes, folders: tuple[str, ...] = ("",)) -> list[tuple[str, ast.ClassDef]]:
    """Each class with its file, also those inside functions and classes."""
    found = [(path, node) for path, nodes in tree.items() for node in nodes]
    return [(p, x) for p, x in found if isinstance(x, ast.ClassDef) and p.startswith(folders)]


def methods(tree: Nodes, contract: str) -> float:
    """Methods and properties that the body of a contract's class defines; infinite: there is no such class."""
    bodies = {node.name: node.body for _, node in classes(tree, CONTRACTS[contract][0])}
    body = bodies.get(contract)
    return math.inf if body is None else len({x.name for x in body if isinstance(x, FUNCTIONS)})


def text(node: ast.expr | None) -> str | None:
    """The value of a string constant."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def assigned(node: ast.AST) -> dict[str, ast.expr]:
    """Names that the body of a module or class assigns, with the values."""
    found = {}
    for line in getattr(node, "body", []):
        if isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
            for target in line.targets if isinstance(line, ast.Assign) else [line.target]:
                found[getattr(target, "id", "")] = line.value
    return found


def registered(tree: Nodes) -> dict[str, set[str]]:
    """Name of each mechanism, sampler, kind of users and evaluator -> its own files."""
    own: dict[str, set[str]] = defaultdict(set)
    for path, node in classes(tree, NAMED):
        if word := text(assigned(node).get("name")):
            own[word].add(path)
    return own


def constants(nodes: list[ast.AST]) -> list[tuple[int, str]]:
    """Line and value of each string constant that is no docstring or piece of an f-string."""
    texts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts |= {id(piece) for x in nodes if isinstance(x, ast.JoinedStr) for piece in x.values}
    found = [x for x in nodes if isinstance(x, ast.Constant) and id(x) not in texts]
    return [(node.lineno, node.value) for node in found if isinstance(node.value, str)]


def literals(tree: Nodes) -> list[str]:
    """Each place of the core, outside of its own files, where a registered name is a literal."""
    own, allowed = registered(tree), set()
    for word, files in re.findall(r"^(\w+),[^:]*:((?:\s+\S+\.py)+)", ALLOWED, re.MULTILINE):
        allowed |= {(path, word) for path in files.split()}
    return [
        f"{path}:{line}: {word!r}"
        for path, nodes in tree.items()
        if not path.startswith(("packs/", "papers/"))
        for line, word in constants(nodes)
        if word in own and path not in own[word] and (path, word) not in allowed
    ]


def imported(nodes: list[ast.AST], known: dict[str, str]) -> set[str]:
    """The package's files that a file imports, anywhere in it, also by `import_module` of a constant.

    Args:
        nodes: of the file.
        known: name of each module -> its file.
    """
    named, found = assigned(nodes[0]), set[str | None]()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in inner}
        elif isinstance(node, ast.Call):
            function = getattr(node.func, "attr", getattr(node.func, "id", ""))
            for value in node.args[:1] if function == "import_module" else []:
                found.add(text(named.get(value.id) if isinstance(value, ast.Name) else value))
    return {known[name] for name in found if name in known}


def circles(tree: Nodes) -> list[str]:
    """Sets of files of which each imports all others, directly or through others."""
    names = {path: f"{PACKAGE}/{path[:-3]}".replace("/", ".") for path in tree}
    known = {name.removesuffix(".__init__"): path for path, name in names.items()}
    graph = {path: imported(nodes, known) - {path} for path, nodes in tree.items()}
    reached: dict[str, set[str]] = {}
    for start in graph:
        ahead, reached[start] = [start], set()
        while ahead:
            new = graph[ahead.pop()] - reached[start]
            reached[start] |= new
            ahead += new
    inside = [a for a in graph if a in reached[a]]
    sets = ([b for b in inside if b in reached[a] and a in reached[b]] for a in inside)
    return sorted(set(map(" ".join, sets)))


def same_names(tree: Nodes) -> list[str]:
    """Names that several classes of the package have, with the files."""
    places = defaultdict(list)
    for path, node in classes(tree):
        places[node.name].append(f"{path}:{node.lineno}")
    return [f"{name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1]


def documented(tree: Nodes) -> tuple[int, int]:
    """Public functions, classes and methods with a docstring, and all of them."""
    found, bodies = list[bool](), [getattr(nodes[0], "body", []) for nodes in tree.values()]
    while bodies:
        has: dict[str, bool] = {}  # the functions of a property are one name
        for node in bodies.pop():
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and not node.name.startswith("_"):
                has[node.name] = has.get(node.name, False) or ast.get_docstring(node) is not None
                bodies += [node.body] if isinstance(node, ast.ClassDef) else []
        found += has.values()
    return sum(found), len(found)


def sizes(root: Path, folder: str) -> dict[str, list[int]]:
    """Files, lines and code lines (no docstrings, comments, blank lines) of a folder and of those in it."""
    found: dict[str, list[int]] = {folder: [0, 0, 0]}
    for path in sorted((root / folder).rglob("*.py")):
        lines = path.read_text().splitlines()
        code = {i for i, x in enumerate(lines, 1) if x.strip() and not x.lstrip().startswith("#")}
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.Expr) and text(node.value) is not None:
                code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        parts = path.relative_to(root).parts
        inner = "/".join(parts[: 3 if parts[1] == "packs" else 2])
        for name in {folder, inner if len(parts) > 2 else folder}:
            before = found.get(name, [0, 0, 0])
            found[name] = [before[0] + 1, before[1] + len(lines), before[2] + len(code)]
    return found


def groups(root: Path) -> dict[str, tuple[int, int]]:
    """Files and lines of each group of `SIZES`."""
    found = {}
    for name, (folders, _, _) in SIZES.items():
        every = [sizes(root, folder)[folder] for folder in folders]
        files, lines = (sum(one[k] for one in every) for k in (0, 1))
        found[name] = (files, lines)
    apart = [sizes(root, folder)[folder] for folder in (*PACKS, PAPERS[0])]
    files, lines = found["core"]
    found["core"] = (files - sum(x[0] for x in apart), lines - sum(x[1] for x in apart))
    return found


def counted(root: Path) -> list[tuple[str, float, float, list[str]]]:
    """What is counted, the count, its limit, and where it is; docstrings count by what is missing."""
    tree = parsed(root / PACKAGE)
    has, names = documented(tree)
    lists = (
        ("registered names as literals", literals(tree), LITERALS),
        ("circles of files", circles(tree), CIRCLES),
        ("classes of one name", same_names(tree), SAME_NAMES),
    )
    return [
        *((f"methods of {c}", methods(tree, c), CONTRACTS[c][1], []) for c in CONTRACTS),
        *((what, len(places), limit, places) for what, places, limit in lists),
        ("share without docstrings", 1 - has / max(names, 1), 1 - DOCUMENTED, []),
        *((f"files of {g}", n, SIZES[g][1], []) for g, (n, _) in groups(root).items()),
        *((f"lines of {g}", n, SIZES[g][2], []) for g, (_, n) in groups(root).items()),
    ]


def main() -> int:
    """Print the counts, or what is over a limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="only what is over its limit")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    given = parser.parse_args()
    counts = counted(given.root)
    if given.check:
        over = [row for row in counts if row[1] > row[2]]
        for what, count, limit, places in over:
            print(f"{what}: {count:.6g}, at most {limit:.6g}", *([] if limit else places), sep="; ")
        return 1 if over else 0
    print(f"{'folder':34}{'files':>7}{'lines':>8}{'code':>8}")
    for folder in (PACKAGE, *PAPERS[1:], "tests"):
        for name, numbers in sorted(sizes(given.root, folder).items()):
            print(f"{name:34}{numbers[0]:7}{numbers[1]:8}{numbers[2]:8}")
    print(f"\n{'count':34}{'today':>11}{'limit':>12}")
    for what, count, limit, _ in counts:
        print(f"{what:34}{count:11.6g}{limit:12.6g}")
    for what, _, _, places in counts:
        if places:
            print(f"\n{what}:", *places, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
