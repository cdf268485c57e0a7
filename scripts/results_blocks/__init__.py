"""Text of the result blocks of README.md and docs/: each function of `BLOCKS` returns that of one block."""

from results_blocks import correlated, dppg, kept_tables, primorl  # noqa: F401  (they register their blocks)
from results_blocks.store import BLOCKS as BLOCKS
