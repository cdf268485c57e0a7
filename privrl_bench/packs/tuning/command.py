"""The command `privrl tune`: a search for hyperparameters whose epsilon covers the search."""

from __future__ import annotations

from collections.abc import Sequence

from privrl_bench.cli.parsing import CONFIG_DIR, OVERRIDES, Parser, add_working_directory, given
from privrl_bench.run.crash import guarded

ABOUT = """Search for hyperparameters inside the guarantee: draw runs, train and score them, keep the best.

Distributions: KEY=uniform(low,high), loguniform(low,high), randint(low,high), choice(a,b,...).
tune.runs       poisson(8) (default), geometric(8), logarithmic(8), negative_binomial(8, 0.5): a random, secret
                number of runs, of which only the best is released; fixed(8), grid: epsilon covers all runs
tune.score      private: the noised mean return of users who did not train (tune.score_range=[low,high],
                tune.score_users, tune.score_z); public: simulated episodes of no user
tune.users      search on this share of privacy.population; the others train the kept settings
tune.public     words of a public simulator to search on, which costs nothing
tune.sampler    random; tpe: Optuna's, with tune.runs=fixed(n)

Example: privrl tune algo=dppg env=cartpole privacy.epsilon=4 privacy.population=10_000 \\
         'algo.lr=loguniform(1e-3,1e-2)' 'tune.score_range=[0,500]'"""


def main(arguments: Sequence[str] | None = None, prog: str = "privrl tune") -> int:
    """Run the command and return its exit code."""
    add_working_directory()
    words = given(arguments)
    return guarded(lambda: _tune(words, prog))


def _tune(words: Sequence[str], prog: str) -> int:
    parser = Parser(prog, ABOUT)
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="override",
        help=f"{OVERRIDES}, tune.key=value, distributions",
    )
    parser.add_argument("--config-dir", metavar="DIR", help=CONFIG_DIR)
    args = parser.read(words)

    from privrl_bench.packs.tuning.tune_runs import tune

    result = tune(args.overrides, args.config_dir)
    print("\n".join(result.lines()), flush=True)
    return result.exit_code
