"""Evaluation episodes: a released policy in simulated environments that are nobody's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from privrl_bench.envs.registry import make_slots
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.nets.policy import Policy
from privrl_bench.schema import EnvConfig
from privrl_bench.streams import Streams
from privrl_bench.types import EnvSpec


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of one replica's evaluation episodes, [E] each."""

    returns: np.ndarray
    lengths: np.ndarray


class Evaluator:
    """Plays whole episodes with released parameters on the evaluation streams.

    Its environments are simulated and belong to no user. Args as `Rollout`; `episodes` is E, `greedy`
    takes the most likely action.
    """

    def __init__(
        self,
        config: EnvConfig,
        spec: EnvSpec,
        policy: Policy,
        streams: list[Streams],
        episodes: int,
        greedy: bool,
        workers: int = 0,
    ):
        self._spec = spec
        self._policy = policy
        self._streams = streams
        self._episodes = episodes
        self._greedy = greedy
        self._slots = make_slots(config, len(streams) * episodes, workers)

    def run(self, actor: Tensor, round_index: int, scaler: SignalScaler) -> list[Evaluation]:
        """E episodes of every replica's policy `actor` [R, P], the same for the same round."""
        replicas, episodes = len(self._streams), self._episodes
        seeds = [
            s.episode_seed("eval_env", round_index, e)
            for s in self._streams
            for e in range(episodes)
        ]
        everyone = np.arange(replicas * episodes)
        raw = self._slots.reset(everyone, seeds).reshape(replicas, episodes, -1)
        going = np.ones((replicas, episodes), dtype=bool)
        returns = np.zeros((replicas, episodes))
        lengths = np.zeros((replicas, episodes), dtype=np.int64)
        draws = [s.torch("eval_policy", round_index) for s in self._streams]
        block = 64
        now = torch.zeros(replicas, episodes, self._spec.obs_dim)
        with torch.inference_mode():
            sample = self._policy.sampler(actor)
            for t in range(self._spec.limit):
                if not going.any():
                    break
                if t % block == 0 and not self._greedy:
                    noise = torch.stack(
                        [self._policy.draw(g, block, episodes) for g in draws], dim=1
                    )
                now.copy_(torch.from_numpy(scaler.frozen_obs(raw)))
                if self._greedy:
                    action = self._policy.greedy(actor, now)
                else:
                    action = sample(now, noise[t % block])
                flat = action.numpy().reshape(going.size, *action.shape[2:])
                indices = np.flatnonzero(going)
                result = self._slots.step(indices, self._policy.to_env(flat[indices]))
                finite = np.isfinite(result.obs).all(axis=-1) & np.isfinite(result.rewards)
                returns[going] += np.where(finite, result.rewards, 0.0)
                lengths[going] += 1
                raw[going] = np.where(finite[:, None], result.obs, 0.0)
                going[going] = ~(result.terminated | result.truncated | ~finite)
        return [Evaluation(returns[r], lengths[r]) for r in range(replicas)]

    def close(self) -> None:
        """Free the environments."""
        self._slots.close()
