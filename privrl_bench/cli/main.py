"""The command `privrl`: everything but training, which is `privrl-bench`."""

from __future__ import annotations

from collections.abc import Sequence

from privrl_bench.cli.parsing import add_working_directory, dispatch, given
from privrl_bench.config.registry import Command
from privrl_bench.training.crash import guarded, version

ABOUT = (
    """Tools around training runs under differential privacy. Training itself is privrl-bench."""
)

COMMANDS = {
    "audit": Command(
        "privrl_bench.cli.audit:main", "test the privacy of a configuration on the training code"
    ),
    "check-env": Command(
        "privrl_bench.cli.check_env:main",
        "check an environment: spaces, values, episodes, users, scaling",
    ),
    "evaluate": Command(
        "privrl_bench.cli.runs:evaluate", "evaluate trained policies in simulated episodes"
    ),
    "export": Command(
        "privrl_bench.cli.runs:export", "write a trained policy as ONNX or TorchScript"
    ),
    "play": Command(
        "privrl_bench.cli.runs:play", "play a trained policy in a window or a video file"
    ),
    "plan": Command(
        "privrl_bench.cli.plan:main", "show rounds, noise and epsilon of a run before training"
    ),
    "explain": Command(
        "privrl_bench.cli.runs:explain",
        "explain the guarantee of a run, with every caveat and note",
    ),
    "report": Command(
        "privrl_bench.cli.report:main", "make tables, plots and a page from run folders"
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    add_working_directory()
    words = given(arguments)
    if words == ["--version"]:
        print(f"privrl {version()}")
        return 0

    def run() -> int:
        from privrl_bench.composition import plugins

        return dispatch("privrl", ABOUT, COMMANDS | plugins.commands(), words)

    return guarded(run)


if __name__ == "__main__":
    raise SystemExit(main())
