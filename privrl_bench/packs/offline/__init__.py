"""Users who are in a dataset: learning with models of the environment, and evaluation of policies."""

from pathlib import Path

from privrl_bench.composition.plugins import Command, Plugin

_HERE = "privrl_bench.packs.offline"
_LINEAR, _OUTPUT = f"{_HERE}.ope.linear_evaluation", f"{_HERE}.ope.output_perturbation"
_EVALUATION = f"{_HERE}.ope.ope_settings"
_MODELS = f"{_HERE}.model_based.model_based_settings"
_LEARNING = f"{_HERE}.learning"
PLUGIN = Plugin(
    algorithms={
        "gpope": (f"{_LINEAR}:Gpope", f"{_EVALUATION}:GpopeConfig"),
        "dp_lsw": (f"{_OUTPUT}:DpLsw", f"{_EVALUATION}:DpLswConfig"),
        "dp_lsl": (f"{_OUTPUT}:DpLsl", f"{_EVALUATION}:DpLslConfig"),
        "dp_lstd": (f"{_LINEAR}:DpLstd", f"{_EVALUATION}:DpLstdConfig"),
        "dp_is": (f"{_HERE}.ope.importance_sampling:DpIs", f"{_EVALUATION}:DpIsConfig"),
        "dp_fqe": (f"{_HERE}.ope.dp_fqe", f"{_LEARNING}.learning_settings:DpFqeConfig"),
        "lstd": (f"{_LINEAR}:Lstd", f"{_EVALUATION}:LstdConfig"),
        "wis_lstd": (f"{_LINEAR}:WisLstd", f"{_EVALUATION}:WisLstdConfig"),
        "primorl": (f"{_HERE}.model_based.primorl", f"{_MODELS}:PrimorlConfig"),
        "dp_bc": (f"{_LEARNING}.dp_bc", f"{_LEARNING}.learning_settings:DpBcConfig"),
        "dp_lspi": (f"{_LEARNING}.dp_lspi", f"{_LEARNING}.learning_settings:DpLspiConfig"),
        "dp_cql": (f"{_LEARNING}.dp_cql", f"{_LEARNING}.learning_settings:DpCqlConfig"),
        "mopo": (f"{_HERE}.model_based.mopo", f"{_MODELS}:MopoConfig"),
    },
    users={
        "recorded": (f"{_HERE}.recorded", "recorded"),
        "behavior": (f"{_HERE}.behavior", "acted"),
    },
    evaluators={
        "values": f"{_HERE}.ope.mspbe",
        "values@logs": f"{_HERE}.ope.start_value",
        "estimate": f"{_HERE}.ope.importance_sampling",
        "policy@logs": f"{_LEARNING}.agreement",
    },
    environments={"logs": f"{_HERE}.logs.space"},
    commands={
        "collect": Command(
            f"{_HERE}.collect:main", "record episodes of training runs or a policy as a dataset"
        ),
        "import": Command(f"{_HERE}.logs.command:main", "make a dataset of logs in a table"),
        "budget": Command(
            f"{_HERE}.budget_command:main", "one budget for all runs about the same people"
        ),
    },
    functions={
        "import_logs": f"{_HERE}.logs.command:import_logs",
        **{
            name: f"{_HERE}.budget_command:{name}"
            for name in ("create_budget", "open_budget", "verify_budget")
        },
    },
    conf=Path(__file__).parent / "conf",
)
