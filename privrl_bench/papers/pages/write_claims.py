"""Write docs/claims.md: the epsilons that four papers print, the exact ones, and the handling of 35 holes.

    python -m privrl_bench.papers.pages.write_claims [--check]

claims_data.yaml has the facts, claims_page.md the text; all other numbers are computed. --check writes nothing
and exits with 1 if the page differs. The exit code is 2 if a test, module, caveat or note does not exist, or a
fate is not one of `FATES`.
"""

from __future__ import annotations

import argparse
import ast
import logging
import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent, epsilon_paper
from privrl_bench.reporting.table_writer import compact

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "claims.md"
DATA = Path(__file__).with_name("claims_data.yaml")
TEMPLATE = Path(__file__).with_name("claims_page.md")
COVERED, NOT_COVERED, UNDETERMINED = "covered", "not covered", "cannot be determined"
FATES = ("closed", "caveat", "note", "limit")
RELATIONS = ("zero-out", "replace-one")
PRINTED_HEAD = (
    *("where", "printed", "delta", "mechanism", "exact, zero-out", "exact, replace-one"),
    *("number", "claim", "why"),
)
UNSAID_HEAD = (
    *("paper", "noise", "delta", "one release, zero-out", "replace-one"),
    *("unit, zero-out", "replace-one", "unit"),
)


# -- exact epsilons of the mechanisms that the papers print ------------------------------------


def gaussian(z: float, delta: float, adjacency: str, releases: int = 1) -> float:
    """Exact epsilon of Gaussian releases about one user."""
    return ledger_epsilon(
        [ReleaseEvent("gaussian", z, adjacency, sampling="fixed")] * releases, delta
    )


def classical_z(value: float, delta: float) -> float:
    """The z that the classical formula gives for an epsilon."""
    return math.sqrt(2 * math.log(1.25 / delta)) / value


@cache
def poisson_rdp(z: float, q: float, rounds: int, delta: float) -> float:
    """What a moments accountant prints: dp-accounting's RDP with default orders."""
    return ledger_epsilon(
        [ReleaseEvent("gaussian", z, "add_or_remove", q, sampling="poisson")] * rounds, delta, "rdp"
    )


@cache
def poisson(z: float, q: float, rounds: int, delta: float, replace: bool = False) -> float:
    """The tight value: privacy loss distributions. For Poisson sampling, zero-out is add-or-remove."""
    if not replace:
        return ledger_epsilon(
            [ReleaseEvent("gaussian", z, "add_or_remove", q, sampling="poisson")] * rounds, delta
        )
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    ledger = PLDAccountant(relation, value_discretization_interval=1e-3)
    ledger.compose(dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z)), rounds)
    return float(ledger.get_epsilon(delta))


def poisson_count(z: float, q: float, rounds: int, delta: float, adjacency: str) -> float:
    """Upper bound where PLD cannot go: half of delta for taking part more often than k times."""
    from scipy import stats

    k = int(stats.binom.isf(delta / 2, rounds, q))
    return gaussian(z / math.sqrt(k), delta / 2, adjacency)


def rounds_for(cost: Callable[[int], float], target: float, start: int, tolerance: float) -> int:
    """The T at which a rising `cost` reaches `target`: secant steps, until within `tolerance` of T."""
    low, high = start, round(1.4 * start)
    at_low, at_high = cost(low), cost(high)
    while True:
        step = (target - at_high) * (high - low) / (at_high - at_low)
        low, at_low, high = high, at_high, max(1, round(high + step))
        if abs(high - low) <= max(1.0, tolerance * high):
            return high
        at_high = cost(high)


def rdp_floor(delta: float) -> float:
    """What dp-accounting's conversion costs at its largest default order, before any loss."""
    from dp_accounting.rdp import rdp_privacy_accountant

    order = max(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def delta_at(z: float, value: float) -> float:
    """Delta of one Gaussian release at an epsilon (Balle and Wang 2018)."""
    from scipy import stats

    mu = 1 / z
    below = stats.norm.logcdf(-mu / 2 - value / mu) + value
    return float(stats.norm.cdf(mu / 2 - value / mu) - math.exp(below))


# -- words --------------------------------------------------------------------------------------


def number(value: float | None, digits: int = 4) -> str:
    """An epsilon, rounded up, with as many digits as the computation supports."""
    if value is None:
        return "–"
    if math.isinf(value):
        return "∞"
    if value >= 1e5:
        return shown_epsilon(value, 2).replace("e+0", "e").replace("e+", "e")
    places = 1 if value >= 100 else digits
    return f"{math.ceil(value * 10**places * (1 - 1e-12)) / 10**places:.{places}f}"


def thousands(value: int) -> str:
    """Three significant digits, as many as the printed epsilon supports."""
    return f"{round(value, 3 - len(str(value))):,}"


# -- part 1: printed epsilons -------------------------------------------------------------------


def pendulum(target: float, delta: float, multipliers: tuple[float, ...]) -> str:
    """The number of rounds T for each z."""

    def cost(z: float, t: int) -> float:
        return poisson_rdp(z, 1e-3, t, delta)

    found = [rounds_for(partial(cost, z), target, 3000, 1e-3) for z in multipliers]
    return ", ".join(thousands(t) for t in found[:-1]) + f" and {thousands(found[-1])}"


def judge(row: dict[str, Any]) -> dict[str, Any]:
    """The computed content of one row: text, exact epsilons and verdicts."""
    if row.get("infinite"):
        words = {"mechanism": "no noise", "number": "holds", "claim": COVERED, "why": row["why"]}
        return {**row, **words, "zero_out": math.inf, "replace_one": math.inf}
    mechanism, delta = row.get("mechanism"), row["delta"]
    figures: dict[str, Any] = {"rdp_floor": number(rdp_floor(delta))}
    zero = replace = None
    label = "not said"
    if mechanism and mechanism["kind"] == "gaussian":
        z = mechanism.get("z") or classical_z(mechanism["classical_epsilon"], delta)
        zero, replace = (gaussian(z, delta, a) for a in ("zero_out", "replace_one"))
        label = f"one Gaussian release, z = {z:.4g}"
        figures |= {
            "classical": number(classical_z(1.0, delta) / z, 2),
            "second": number(epsilon_paper(z, delta), 2),
            "delta_needed": f"{delta_at(z, float(row['printed'].strip('≈ '))):.2f}",
            "over": f"{epsilon_paper(z, delta) / zero - 1:.0%}",
        }
        m = mechanism.get("participation", 1)
        for adjacency in ("zero_out", "replace_one"):
            figures[f"unit_{adjacency}"] = number(gaussian(z, delta, adjacency, m), 2)
    elif mechanism:
        z, q, printed = mechanism["z"], mechanism["q"], float(row["printed"])
        rounds = rounds_for(lambda t: poisson_rdp(z, q, t, delta), printed, 5000, 1e-3)
        zero, replace = (poisson(z, q, rounds, delta, r) for r in (False, True))
        covered = rounds_for(lambda t: poisson(z, q, t, delta), printed, rounds, 1e-2)
        label = f"{thousands(rounds)} Poisson rounds, q = {q:g}, z = {z:g}"
        figures |= {"T": thousands(rounds), "T_covered": thousands(covered)}
    elif "pendulum" in row["why"]:
        figures["pendulum_low"] = pendulum(22.3, delta, (0.30, 0.35, 0.40))
        figures["pendulum_high"] = pendulum(5.1, delta, (0.45, 0.50, 0.55))
    figures |= {"zero_out": number(zero), "replace_one": number(replace)}
    holds = [value is not None and value <= row.get("at_most", 0.0) for value in (zero, replace)]
    words = {
        "mechanism": label,
        "number": "–"
        if zero is None
        else {2: "holds", 1: "zero-out only", 0: "too small"}[sum(holds)],
        "claim": UNDETERMINED
        if zero is None or row.get("undetermined")
        else NOT_COVERED
        if row.get("outside") or not holds[0]
        else COVERED,
        "why": " ".join(row["why"].format(**figures).split()),
    }
    return {**row, **words, "zero_out": zero, "replace_one": replace}


def printed_rows(judged: list[dict[str, Any]]) -> list[list[str]]:
    """The cells of the first table."""
    rows = []
    for row in judged:
        delta = "–" if row.get("infinite") else f"{row['delta']:.0e}".replace("e-0", "e-")
        digits = 1 if "Poisson" in row["mechanism"] else 4  # T is known to 3 digits
        rows.append(
            [
                f"{row['paper']}, {row['where']}",
                row["printed"],
                delta if row.get("delta_stated") or row.get("infinite") else f"{delta} (ours)",
                row["mechanism"],
                number(row["zero_out"], digits),
                number(row["replace_one"], digits),
                row["number"],
                f"**{row['claim']}**",
                row["why"],
            ]
        )
    return rows


def curve_rows(curve: dict[str, Any]) -> list[list[str]]:
    """The paper's formula and the exact values along the curve of DPPG's figures."""
    m = curve["participation"]
    rows = []
    for z in curve["z"]:
        cells = [f"{z:g}"]
        for delta in (1e-3, 1e-5):
            cells.append(number(epsilon_paper(z, delta)))
            cells += [number(gaussian(z, delta, a)) for a in ("zero_out", "replace_one")]
        cells += [number(gaussian(z, 1e-3, a, m), 2) for a in ("zero_out", "replace_one")]
        rows.append(cells)
    return rows


def unsaid_rows(unsaid: list[dict[str, Any]]) -> list[list[str]]:
    """Levels of noise without an epsilon."""
    rows = []
    for row in unsaid:
        mechanism, delta = row["mechanism"], row["delta"]
        if mechanism["kind"] == "none":
            values = [math.inf] * 4
        elif mechanism["kind"] == "gaussian":
            values = [
                gaussian(mechanism["z"], delta, adjacency, releases)
                for releases in (1, mechanism["participation"])
                for adjacency in ("zero_out", "replace_one")
            ]
        else:
            z, q, t = (mechanism[key] for key in ("z", "q", "rounds"))
            bounds = [poisson_count(z, q, t, delta, a) for a in ("zero_out", "replace_one")]
            one = [gaussian(z, delta, a) for a in ("zero_out", "replace_one")]
            values = [*one, *bounds]
        cells = [number(value, 2) for value in values]
        shown = f"{delta:.0e}".replace("e-0", "e-")
        rows.append([row["paper"], row["what"], shown, *cells, row["note"]])
    return rows


# -- part 2: holes ------------------------------------------------------------------------------


@cache
def source_strings() -> frozenset[str]:
    """Every string constant in the package's source."""
    found = set()
    for path in (ROOT / "privrl_bench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return frozenset(found)


@cache
def test_names(path: str) -> frozenset[str]:
    """The test functions of a file."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def missing(data: dict[str, Any]) -> list[str]:
    """References of the page that do not exist, unknown fates, and incomplete fates."""
    problems = []
    if [hole["number"] for hole in data["holes"]] != list(range(1, 36)):
        problems.append("the holes are not numbered 1 to 35")
    problems += [f"no file {path}" for path in data["audits"] if not (ROOT / path).is_file()]
    for hole in data["holes"]:
        if not hole["fates"]:
            problems.append(f"hole {hole['number']}: no fate")
        for fate in hole["fates"]:
            where = f"hole {hole['number']} ({fate['fate']})"
            if fate["fate"] not in FATES:
                problems.append(f"{where}: a fate must be one of {', '.join(FATES)}")
            if fate["fate"] == "closed" and not (fate.get("module") and fate.get("tests")):
                problems.append(f"{where}: closed needs a module and a test")
            if fate["fate"] in ("caveat", "note") and fate["name"] not in source_strings():
                problems.append(f"{where}: no {fate['name']!r} in the source")
            if "module" in fate and not (ROOT / fate["module"]).is_file():
                problems.append(f"{where}: no module {fate['module']}")
            for test in fate.get("tests", []):
                path, _, name = test.partition("::")
                if not (ROOT / path).is_file():
                    problems.append(f"{where}: no file {path}")
                elif name and name not in test_names(path):
                    problems.append(f"{where}: no test {name} in {path}")
    return problems


def hole_rows(holes: list[dict[str, Any]]) -> list[list[str]]:
    """The cells of the holes' table."""
    rows = []
    for hole in holes:
        fates, places = [], []
        for fate in hole["fates"]:
            label = f"**{fate['fate']}**"
            if "name" in fate:
                label += f' "{fate["name"]}"'
            fates.append(f"{label}: {fate['text']}")
            places += [f"`{fate['module']}`"] if "module" in fate else []
            places += [f"`{test}`" for test in fate.get("tests", [])]
        rows.append(
            [str(hole["number"]), hole["hole"], "; ".join(fates), "<br>".join(places) or "–"]
        )
    return rows


# -- the page -----------------------------------------------------------------------------------


def kinds(hole: dict[str, Any]) -> set[str]:
    """The kinds of fate of a hole."""
    return {fate["fate"] for fate in hole["fates"]}


def summaries(data: dict[str, Any], judged: list[dict[str, Any]]) -> tuple[str, str]:
    """Totals of the printed epsilons and of the holes."""
    finite = [row for row in judged if not row.get("infinite")]
    claims = Counter(row["claim"] for row in finite)
    papers = Counter(row["paper"] for row in finite)
    first = (
        f"**{len(finite)} finite epsilons are printed** (DPPG {papers['DPPG']}, PriMORL "
        f"{papers['PriMORL']}, D&O none, GPOPE none that can be read): {claims[COVERED]} are covered, "
        f"{claims[NOT_COVERED]} are not, and {claims[UNDETERMINED]} cannot be determined."
    )
    sets = [kinds(hole) for hole in data["holes"]]
    closed = [found for found in sets if "closed" in found]
    whole = sum(found == {"closed"} for found in closed)
    limits = sum("limit" in found and "closed" not in found for found in sets)
    second = (
        f"Of the {len(sets)}, {len(closed)} are closed ({whole} of them without a condition; for the others "
        f"the table names the setting that allows them, or what remains) and {limits} are limits. "
        f"{sum('caveat' in found for found in sets)} can be allowed by a setting, as a caveat."
    )
    return first, second


def render(data: dict[str, Any]) -> str:
    """The whole page: claims_page.md with tables and totals."""
    judged = [judge(row) for row in data["printed"]]
    finite, handled = summaries(data, judged)
    columns = [f"{word}, delta {d}" for d in ("1e-3", "1e-5") for word in ("formula", *RELATIONS)]
    columns += [f"episode, {word}, delta 1e-3" for word in RELATIONS]
    return TEMPLATE.read_text().format(
        finite=finite,
        printed_table=compact(PRINTED_HEAD, printed_rows(judged)),
        curve_table=compact(["z", *columns], curve_rows(data["curve"])),
        unsaid_table=compact(UNSAID_HEAD, unsaid_rows(data["unsaid"])),
        handled=handled,
        holes_table=compact(["", "hole", "handling", "where"], hole_rows(data["holes"])),
        audits=", ".join(f"`{path}`" for path in data["audits"]),
    )


def main() -> int:
    """Parse, check references, write or compare. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if the page differs")
    arguments = parser.parse_args()
    data = yaml.safe_load(DATA.read_text())
    problems = missing(data)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        return 2
    logging.disable(logging.WARNING)  # orders that dp-accounting drops cannot lower a bound
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        page = render(data)
    if arguments.check:
        same = PAGE.exists() and PAGE.read_text() == page
        print(f"{PAGE.relative_to(ROOT)} is {'up to date' if same else 'not up to date'}")
        return 0 if same else 1
    PAGE.write_text(page)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
