"""A plugin of privrl_bench: REINFORCE with a private critic, and a thermostat."""

from pathlib import Path

from privrl_bench import Plugin

PLUGIN = Plugin(
    algorithms={"critic_reinforce": "privrl_example.critic_reinforce"},
    conf=Path(__file__).parent / "conf",
)
