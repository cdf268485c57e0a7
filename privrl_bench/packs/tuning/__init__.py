"""Search for hyperparameters inside the guarantee."""

from privrl_bench.composition.plugins import Command, Plugin

PLUGIN = Plugin(
    commands={
        "tune": Command(
            "privrl_bench.packs.tuning.command:main",
            "search for hyperparameters inside the guarantee",
        )
    },
    functions={
        name: f"privrl_bench.packs.tuning.api:{name}"
        for name in ("tune", "tune_plan", "tune_leaks", "tune_epsilon")
    },
)
