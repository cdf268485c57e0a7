"""The mean return of a policy among private users, who each play one whole episode with it.

    repeat for every round:
        every user plays an episode of the fixed policy
        release the noised mean of clip(return - center, -privacy.clip, privacy.clip)
    the result is center + the mean of the releases

One user changes one number of the sum by at most `privacy.clip` (zero-out: an absent user counts as `center`).
The returns are undiscounted and in the units of the environment.
"""

from __future__ import annotations

import math

import torch

from privrl_bench.algorithms.base import Algorithm, AlgorithmContext, AlgorithmTerms
from privrl_bench.algorithms.evaluation.evaluation_settings import MeanReturnConfig
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.metrics import shown_epsilon
from privrl_bench.privacy.contribution import Block, Contribution, Released
from privrl_bench.types import EnvSpec, State, UserBatch

SCALINGS = ("none", "public")  # of the policy's observations: constants of the environment
_SIZES = ("obs_dim", "discrete", "actions", "choices")
_SAME = ("obs_scaling", "obs_mean", "obs_std", "obs_clip")


class MeanReturn(Algorithm):
    """The noised mean return of a trained policy; see the module.

    State tensors: `actor` [R, P], which stays as it is, `mean_return` [R, 1].

    Args:
        config: settings of the algorithm.
        context: of the run.

    Raises:
        ConfigError: there is no policy, it is of another environment, or its scaling was learned from users.
    """

    def __init__(self, config: MeanReturnConfig, context: AlgorithmContext):
        if config.policy is None:
            raise ConfigError("algo.policy", "name the folder of a finished run, or its policy.pt")
        assert context.env is not None
        assert context.read_policy is not None
        if context.env.reward_scaling != "none":
            rule = "must be none: returns are in the environment's units"
            raise ConfigError("env.reward_scaling", f"{rule}, got {context.env.reward_scaling}")
        file = context.read_policy(config.policy, "algo.policy")
        ours, theirs = context.spec, file.spec
        if any(getattr(ours, name) != getattr(theirs, name) for name in _SIZES):
            raise ConfigError(
                "algo.policy",
                f"{config.policy} is of another environment: it takes {_sizes(theirs)}; "
                f"env={context.env.label} has {_sizes(ours)}",
            )
        if file.env["obs_scaling"] not in SCALINGS:
            what = f"its observations were scaled with env.obs_scaling={file.env['obs_scaling']}"
            raise ConfigError("algo.policy", f"{what}; must be one of {', '.join(SCALINGS)}")
        for name in _SAME:
            if getattr(context.env, name) != file.env[name]:
                rule = f"must be that of the policy, {file.env[name]}"
                raise ConfigError(f"env.{name}", f"{rule}, got {getattr(context.env, name)}")
        self.policy = file.policy
        self._policy_guarantee = file.guarantee
        self._params = file.params
        self._center, self._clip = config.center, context.privacy.clip

    def blocks(self) -> tuple[Block, ...]:
        """One number: the return of an episode, minus `center`."""
        return (Block("return", 1, self._clip),)

    def terms(self) -> AlgorithmTerms:
        """How the policy was trained is not covered: it is given."""
        known = self._policy_guarantee
        status, epsilon = known.get("status", "unknown"), float(known.get("epsilon", math.inf))
        notes = {
            "policy": "algo.policy is given, and with it what its evaluations show: this epsilon does not "
            f"cover how it was trained (status {status}, epsilon {shown_epsilon(epsilon)})"
        }
        return AlgorithmTerms(notes=notes, policy_guarantee=known)

    def init(self, streams: list[Streams]) -> State:
        """The policy, and `center` in place of a mean."""
        count = len(streams)
        mean = torch.full((count, 1), self._center)
        return State(0, {"actor": self._params.expand(count, -1).clone(), "mean_return": mean})

    def user_update(self, state: State, users: UserBatch, streams: list[Streams]) -> Contribution:
        """[R, U, 1] returns minus `center`.

        Guarantee: row u is a function of user u's episode under the fixed policy.
        """
        total = (users.rewards * users.mask.to(users.rewards.dtype)).sum(-1, keepdim=True)
        return Contribution({"return": total - self._center}, users.valid)

    def server(self, state: State, released: Released) -> State:
        """The mean of all releases so far."""
        index = state.round + 1
        new = self._center + released.values["return"]
        mean = new if index == 1 else torch.lerp(state.tensors["mean_return"], new, 1.0 / index)
        return State(index, {"actor": state.tensors["actor"], "mean_return": mean})

    def metrics(self, state: State) -> list[dict[str, float]]:
        """The released mean."""
        return [{"release/mean_return": float(x)} for x in state.tensors["mean_return"][:, 0]]


def _sizes(spec: EnvSpec) -> str:
    """The sizes of observations and actions in words."""
    kind = "choices of a discrete action" if spec.discrete else "numbers of an action"
    choices = "" if spec.choices is None else f" with {list(spec.choices)} choices"
    return f"{spec.obs_dim} numbers of an observation and {spec.actions} {kind}{choices}"


ALGORITHM = MeanReturn
