"""Text of the result blocks of README.md and docs/: each function of `BLOCKS` returns that of one block."""

from privrl_bench.papers.pages import (  # noqa: F401  (they register their blocks)
    causes,
    correlated,
    dppg,
    figures,
    frontier,
    gap,
    kept_tables,
    language,
    noised_sums,
    primorl,
    readme,
    searches,
    small_epsilon,
    speed,
    state,
)
from privrl_bench.papers.pages.store import BLOCKS as BLOCKS
