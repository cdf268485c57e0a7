"""Users who are in a dataset: learning with models of the environment, and evaluation of policies."""

from pathlib import Path

from privrl_bench.composition.plugins import Command, Plugin

_HERE = "privrl_bench.packs.offline"
_EVALUATION = f"{_HERE}.ope.ope_settings"
_MODELS = f"{_HERE}.model_based.model_based_settings"
PLUGIN = Plugin(
    algorithms={
        "gpope": (f"{_HERE}.ope.gpope", f"{_EVALUATION}:GpopeConfig"),
        "dp_lsw": (f"{_HERE}.ope.dp_lsw", f"{_EVALUATION}:DpLswConfig"),
        "dp_lsl": (f"{_HERE}.ope.dp_lsl", f"{_EVALUATION}:DpLslConfig"),
        "dp_lstd": (f"{_HERE}.ope.dp_lstd", f"{_EVALUATION}:DpLstdConfig"),
        "lstd": (f"{_HERE}.ope.lstd", f"{_EVALUATION}:LstdConfig"),
        "wis_lstd": (f"{_HERE}.ope.wis_lstd", f"{_EVALUATION}:WisLstdConfig"),
        "primorl": (f"{_HERE}.model_based.primorl", f"{_MODELS}:PrimorlConfig"),
        "mopo": (f"{_HERE}.model_based.mopo", f"{_MODELS}:MopoConfig"),
    },
    users={
        "recorded": (f"{_HERE}.recorded", "recorded"),
        "behavior": (f"{_HERE}.behavior", "acted"),
    },
    evaluators={"values": f"{_HERE}.ope.mspbe"},
    commands={
        "collect": Command(
            f"{_HERE}.collect:main", "record episodes of training runs or a policy as a dataset"
        )
    },
    conf=Path(__file__).parent / "conf",
)
