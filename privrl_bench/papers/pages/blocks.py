"""Text of the result blocks of README.md and docs/: each function of `BLOCKS` returns that of one block."""

from privrl_bench.papers.pages import (  # noqa: F401  (they register their blocks)
    dppg,
    kept_tables,
    primorl,
    speed,
    state,
)
from privrl_bench.papers.pages.store import BLOCKS as BLOCKS
