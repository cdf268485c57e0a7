"""A trained policy in use: observations of the environment in, its actions out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privrl_bench.envs.spaces import ActionMap
from privrl_bench.errors import ConfigError
from privrl_bench.metrics import shown_epsilon
from privrl_bench.models.policy import Sampler
from privrl_bench.run.policy_file import PolicyFile, read_policy


class TrainedPolicy:
    """A released policy with the scaling of its observations and the mapping of its actions.

    Acting is post-processing of released parameters: it costs no privacy, however often it is done.

    Args:
        file: of `policy_file.read_policy`.
        seed: of stochastic actions; None: drawn from the operating system.

    Attributes:
        file: what the policy was read from, with its guarantee.
    """

    def __init__(self, file: PolicyFile, seed: int | None = None):
        self.file = file
        self._params = file.params.unsqueeze(0)
        self._to_space = ActionMap(file.spec.action_space)
        self._generator = torch.Generator()
        if seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(seed)
        self.reset()

    @property
    def guarantee(self) -> dict[str, Any]:
        """The guarantee of the parameters, as in `summary.json`."""
        return self.file.guarantee

    @property
    def epsilon(self) -> float:
        """Epsilon of the parameters; infinite without privacy."""
        return float(self.guarantee["epsilon"])

    def reset(self) -> None:
        """Begin a new episode. Needed by policies with a table for each step (`algo=ucbvi`) only."""
        self._sample: Sampler = self.file.policy.sampler(self._params)

    def act(self, observation: Any, *, greedy: bool = False) -> Any:
        """Actions for observations.

        Args:
            observation: of the environment (an array of the space's shape, a dict, a tuple, an integer), or a
                batch: an array with one more axis, or a list. A flat vector [D] is taken, too.
            greedy: the most likely action instead of a random one.

        Returns:
            An action of the environment's action space, or a batch [B, ...] of them.

        Raises:
            ValueError: the observation has another shape than the policy takes, or is not finite, or the
                actions are not finite.
        """
        flat, batched = self._flat(observation)
        actions = self._to_space(self.choose(flat, greedy=greedy))
        if batched:
            return actions
        return actions[0] if self.file.spec.discrete else actions[0, ...]

    def choose(self, observations: np.ndarray, *, greedy: bool = False) -> np.ndarray:
        """What the policy chooses, before it is made an action of the environment's space.

        Args:
            observations: [B, D], flat.
            greedy: as in `act`.

        Returns:
            Numbers [B, A], or choices [B] or [B, A].

        Raises:
            ValueError: an observation is not finite.
        """
        if not np.isfinite(observations).all():
            raise ValueError("the observation has non-finite values")
        scaled = self.file.scaling.obs(observations[None])
        obs, policy = torch.from_numpy(scaled).float(), self.file.policy
        by_step = getattr(policy, "by_step", False)
        with torch.inference_mode():
            if greedy and not by_step:
                found = policy.greedy(self._params, obs)
            else:
                noise = policy.draw(self._generator, len(observations)).unsqueeze(0)
                found = self._sample(obs, noise)
        return policy.to_env(found[0].numpy())

    def _flat(self, observation: Any) -> tuple[np.ndarray, bool]:
        """Observations [B, D], and whether they are a batch."""
        from gymnasium import spaces

        space, dim = self.file.spec.observation_space, self.file.spec.obs_dim
        if not isinstance(space, spaces.Box):
            return self._flat_of(space, observation)
        array = np.asarray(observation, np.float64)
        for shape in (space.shape, (dim,)):
            if array.shape == shape:
                return array.reshape(1, dim), False
            if array.shape[1:] == shape and array.ndim == len(shape) + 1:
                return array.reshape(len(array), dim), True
        raise ValueError(
            f"the observation has shape {array.shape}; the policy takes {space.shape} or a batch of them"
        )

    def _flat_of(self, space: Any, observation: Any) -> tuple[np.ndarray, bool]:
        """Observations of a space without a shape, as Gymnasium flattens them."""
        from gymnasium import spaces

        dim, array = self.file.spec.obs_dim, isinstance(observation, np.ndarray)
        if array and observation.shape == (dim,) != space.shape and observation.dtype.kind == "f":
            return observation[None].astype(np.float64), False
        states = isinstance(space, spaces.Discrete)
        if isinstance(observation, list) or (array and states and observation.ndim == 1):
            many = [int(x) if states and np.ndim(x) == 0 else x for x in observation]
            return np.concatenate([self._flat_of(space, one)[0] for one in many]), True
        if isinstance(space, spaces.Dict) and isinstance(observation, dict):  # env.obs_parts
            observation = {k: x for k, x in observation.items() if k in space.spaces}
        if not space.contains(observation):
            raise ValueError(f"the observation is not in {space}")
        return np.asarray(spaces.flatten(space, observation), np.float64)[None], False

    def __repr__(self) -> str:
        env, algo = self.file.env, self.file.algo["name"]
        return (
            f"TrainedPolicy({algo} on {env.get('id') or env['name']}, "
            f"epsilon {shown_epsilon(self.epsilon)} {self.guarantee['status']})"
        )


class TrainedPlayer:
    """A released policy as `fixed_policy_episodes.Player`: stochastic actions, of unknown probabilities.

    Args:
        file: of `policy_file.read_policy`.
    """

    def __init__(self, file: PolicyFile):
        self._file = file

    def draws(self, generator: torch.Generator, steps: int) -> Tensor:
        """Return the random numbers [T, ...] of one episode."""
        return self._file.policy.draw(generator, steps)

    def begin(self) -> Callable[[np.ndarray, Tensor], tuple[np.ndarray, None]]:
        """Return the function from observations [n, D] and draws [n, ...] to actions."""
        file, sample = self._file, self._file.policy.sampler(self._file.params.unsqueeze(0))

        def act(obs: np.ndarray, draws: Tensor) -> tuple[np.ndarray, None]:
            scaled = torch.from_numpy(file.scaling.obs(obs[None])).float()
            with torch.inference_mode():
                found = sample(scaled, draws.unsqueeze(0))[0].numpy()
            if not np.isfinite(found).all():
                raise ConfigError("policy", f"{file.path}: its actions are not finite")
            return file.policy.to_env(found), None

        return act


def load_policy(path: str | Path, *, seed: int | None = None) -> TrainedPolicy:
    """Load the policy of a finished run.

    Args:
        path: the run folder, or its `policy.pt`.
        seed: of stochastic actions; None: drawn from the operating system.

    Raises:
        ConfigError: there is no policy that can be read.
    """
    return TrainedPolicy(read_policy(path), seed)
