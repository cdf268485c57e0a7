"""The command `privrl-audit`: tries the privacy of a configuration on the real training code.

Exit codes: 0 nothing contradicts the guarantee; 1 something does; 2 bad input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from privrl_bench.errors import ConfigError, suggest
from privrl_bench.experiment.crash import guarded

USAGE = """privrl-audit tries to break the privacy of a configuration, on the real training code.

  privrl-audit leaks [group=choice ...] [key=value ...]     what gets past the gate, bit for bit
  privrl-audit epsilon [group=choice ...] [key=value ...]   a measured lower bound on epsilon

Groups and keys are those of privrl-bench. Exit codes: 0 nothing contradicts the guarantee; 1 something
does; 2 bad input. Options of each: privrl-audit leaks --help, privrl-audit epsilon --help"""

COMMANDS = ("leaks", "epsilon")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point. Always leaves through `SystemExit`."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # env.id=my_pkg:MyEnv-v0 finds a package in this folder
    words = list(sys.argv[1:] if argv is None else argv)
    sys.exit(guarded(lambda: _main(words), "nothing was kept; the same command starts anew"))


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    command, *rest = words
    if command not in COMMANDS:
        raise ConfigError(
            "", f"no command {command!r}; {' or '.join(COMMANDS)}{suggest(command, COMMANDS)}"
        )
    # Each part is imported when it is asked for: both are slow to import.
    if command == "leaks":
        from privrl_bench.audit import leaks

        return leaks.main(rest)
    from privrl_bench.audit import lower_bound as epsilon

    return epsilon.main(rest)


if __name__ == "__main__":
    main()
