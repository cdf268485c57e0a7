"""The command `privrl tune`: a search for hyperparameters whose epsilon covers the search."""

from __future__ import annotations

from collections.abc import Sequence

from privrl_bench.cli import audit
from privrl_bench.cli.parsing import (
    CONFIG_DIR,
    OVERRIDES,
    Command,
    Parser,
    dispatch,
)
from privrl_bench.config.overrides import own_folder
from privrl_bench.errors import ConfigError

ABOUT = """Search for hyperparameters inside the guarantee: draw runs, train and score them, keep the best.

Distributions: KEY=uniform(low,high), loguniform(low,high), randint(low,high), choice(a,b,...).
tune.runs       poisson(8) (default), geometric(8), logarithmic(8), negative_binomial(8, 0.5): a random, secret
                number of runs, of which only the best is released; fixed(8), grid: epsilon covers all runs
tune.score      private: the noised mean return of users who did not train (tune.score_range=[low,high],
                tune.score_users, tune.score_z); public: simulated episodes of no user
tune.users      search on this share of privacy.population; the others train the kept settings
tune.public     words of a public simulator to search on, which costs nothing

Example: privrl tune algo=dppg env=cartpole privacy.epsilon=4 privacy.population=10_000 \\
         'algo.lr=loguniform(1e-3,1e-2)' 'tune.score_range=[0,500]'"""

AUDIT = "Test a search: what it publishes, bit for bit; or its epsilon, with a canary in all of its runs."
AUDITS = {
    "leaks": Command(
        f"{__name__}:leaks", "the leak test of a run, and of what the search publishes"
    ),
    "epsilon": Command(f"{__name__}:epsilon", "measure a lower bound on the epsilon of the search"),
}


def main(words: Sequence[str], prog: str = "privrl tune") -> int:
    """Run the command and return its exit code. Raises `ConfigError`."""
    if words[:1] == ["--audit"]:
        return dispatch(f"{prog} --audit", AUDIT, AUDITS, words[1:])
    parser = Parser(prog, ABOUT)
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="override",
        help=f"{OVERRIDES}, tune.key=value, distributions",
    )
    parser.add_argument("--config-dir", metavar="DIR", help=CONFIG_DIR)
    parser.add_argument(
        "--plan", action="store_true", help="show what the search costs; train nothing"
    )
    parser.add_argument(
        "--audit", metavar="KIND", help="as the first argument: test the search; leaks or epsilon"
    )
    args = parser.read(words)
    if args.audit is not None:
        raise ConfigError("--audit", f"must come first: {prog} --audit leaks|epsilon override ...")

    from privrl_bench.packs.tuning.search_plan import plan_search
    from privrl_bench.packs.tuning.settings import read_search
    from privrl_bench.packs.tuning.tune_runs import lines_of, search

    with own_folder(args.config_dir):
        if args.plan:
            print("\n".join(plan_search(read_search(args.overrides)).lines()), flush=True)
            return 0
        result = search(args.overrides, print)
    print("\n".join(lines_of(result)), flush=True)
    return result.exit_code


def leaks(words: Sequence[str], prog: str) -> int:
    """Run the leak test of a search; see `cli.audit.leaks`."""
    from privrl_bench.packs.tuning.api import tune_leaks

    return audit.leaks(words, prog, tune_leaks)


def epsilon(words: Sequence[str], prog: str) -> int:
    """Attack the guarantee of a search; see `cli.audit.epsilon`."""
    from privrl_bench.packs.tuning.api import tune_epsilon

    return audit.epsilon(words, prog, tune_epsilon)
