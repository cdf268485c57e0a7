"""Reproduce a paper's tables and figures: the command `privrl reproduce`, which see."""

from __future__ import annotations

import sys

from privrl_bench.cli.reproduce import main

if __name__ == "__main__":
    sys.exit(main(prog="python scripts/reproduce.py"))
