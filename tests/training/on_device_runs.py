"""Small runs whose users are simulated in worlds."""

from privrl_bench.composition.compose import compose
from privrl_bench.training.plan import make_plan
from privrl_bench.training.trainer import Trainer

SMALL = (
    *("algo=dppg", "env.backend=torch", "algo.hidden=[8,5]", "log=none", "eval.every=0"),
    *("log.plot=false", "log.progress=false", "privacy.users_per_round=70", "env.user_steps=20"),
)


def of(*words):
    keys = {word.partition("=")[0] for word in words}
    return compose([*(word for word in SMALL if word.partition("=")[0] not in keys), *words])


def trained(configs, rounds=3):
    """Parameters after some rounds."""
    trainer = Trainer(make_plan(configs))
    try:
        for _ in range(rounds):
            trainer.step()
        return trainer.state.tensors
    finally:
        trainer.close()
