"""What papers do and what leaks: for comparison with them only. Guarantees are `heuristic` or none."""

from pathlib import Path

from privrl_bench.composition.plugins import Plugin

_HERE = "privrl_bench.packs.imitations"
PLUGIN = Plugin(
    algorithms={"dqn_replay": (f"{_HERE}.dqn_replay", f"{_HERE}.replay_settings")},
    mechanisms={
        "fresh_noise_per_round": f"{_HERE}.fresh_noise_per_round",
        "per_transition": f"{_HERE}.per_transition",
    },
    conf=Path(__file__).parent / "conf",
)
