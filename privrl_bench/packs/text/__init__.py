"""Language models that learn from prompts and scores of users: DPPG for RLHF, and PPO."""

from pathlib import Path

from privrl_bench.composition.plugins import Command, Plugin

_SETTINGS = "privrl_bench.packs.text.text_settings"
PLUGIN = Plugin(
    algorithms={
        "dppg_text": ("privrl_bench.packs.text.dppg_text", f"{_SETTINGS}:DppgTextConfig"),
        "ppo_text": ("privrl_bench.packs.text.ppo_text", f"{_SETTINGS}:PpoTextConfig"),
    },
    users={"prompts": ("privrl_bench.packs.text.prompts", "texts")},
    evaluators={"text_policy": "privrl_bench.packs.text.answers"},
    environments={"text": "privrl_bench.packs.text.task"},
    commands={
        "text": Command(
            "privrl_bench.packs.text.command:main",
            "show the small language model and classifier of the text tasks",
        )
    },
    conf=Path(__file__).parent / "conf",
)
