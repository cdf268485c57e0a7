"""DQN with a memory of the steps of all users: the reference, and the private variant of Doulazmi and Odonnat.

    repeat for every round:
        one user acts, epsilon-greedy with Q; their steps enter the memory and the oldest leave it
        for every step, once the memory has a batch:
            B steps of the memory, drawn without replacement
            privacy=none: g <- mean gradient of the temporal-difference loss
            privacy.mechanism=per_transition: g <- mean of (gradient of one step, clipped to norm clip,
                + N(0, (z clip)^2 I)), which is N(0, (z clip)^2 / B I) on the mean
            Q <- AdamW along g;  target <- target + tau (Q - target)

Neither protects a user; see the guarantee's caveats. `dqn.py` is.

Deviations from the authors' code: the gradients of a round follow its steps instead of alternating with them
(`env.user=segment env.user_steps=1` is theirs; epsilon is also per round); with noise, every gradient is
clipped, and the noise is that of their algorithm 3 (their code does not clip and adds sqrt(B) times less).

Source: Doulazmi and Odonnat, "Central and local differential privacy for reinforcement learning", algorithm 3.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from privrl_bench.algorithms.base import AlgorithmContext, AlgorithmTerms
from privrl_bench.algorithms.pooled_algorithm import POOLED
from privrl_bench.algorithms.value.actor_critic import Batch, Rates
from privrl_bench.algorithms.value.q_learning import QLearner
from privrl_bench.algorithms.value.replay import Replay
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.models.q_network import QPolicy
from privrl_bench.packs.imitations import q_training
from privrl_bench.packs.imitations.per_transition import PER_TRANSITION, sample_noise
from privrl_bench.packs.imitations.replay_settings import DqnReplayConfig
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.types import State


class DqnReplay(Replay):
    """DQN with a replay memory; see the module. State tensors: those of `q_learning` and `replay`.

    Args:
        config: settings of the algorithm.
        context: Context of the run.

    Raises:
        ConfigError: `algo.updates` is not 1 with noise on transitions.
    """

    config: DqnReplayConfig
    policy: QPolicy

    def __init__(self, config: DqnReplayConfig, context: AlgorithmContext):
        self._noisy = context.privacy.mechanism.transition_noise
        if self._noisy and config.updates != 1:
            raise ConfigError(
                "algo.updates",
                f"privacy.mechanism=per_transition counts one update for every step: 1, got {config.updates:g}",
            )
        policy = QPolicy(context.spec, tuple(config.hidden))
        self._q = QLearner(policy, Rates(config.lr, config.tau, config.decay))
        super().__init__(config, context, self._q)

    def terms(self) -> AlgorithmTerms:
        """All data bypass the gate; with noise on transitions that is the unit, and what it does not cover."""
        if not self._noisy:
            return super().terms()
        batch, memory = self.config.batch, self.config.memory
        unit = Unit(
            f"one transition of {self._context.spec.one_user}, not an episode or a person: {batch} of {memory} "
            f"in a full memory are drawn in each of {memory} updates",
            None,
            (batch, memory),
        )
        return AlgorithmTerms(unit=unit, caveats={POOLED: PER_TRANSITION})

    def init(self, streams: list[Streams]) -> State:
        """See `Algorithm.init`."""
        state = super().init(streams)
        return State(0, self._explore(state.tensors))

    def _explore(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors with the next round's epsilon, a function of the steps taken."""
        config = self.config
        span = config.exploration_start - config.exploration_end
        actor = tensors["actor"].clone()
        gone = torch.exp(-tensors["seen"] / config.exploration_steps)
        actor[:, -1:] = (config.exploration_end + span * gone).to(actor.dtype)
        return tensors | {"actor": actor}

    def _learn(
        self, tensors: dict[str, Tensor], index: int, steps: Tensor, streams: list[Streams]
    ) -> dict[str, Tensor]:
        """Gradient steps of each replica, one per step of the round after which the memory had a batch."""
        config = self.config
        ready = (tensors["seen"][:, 0] - config.batch + 1).clamp_min(0)
        counts = (torch.minimum(steps, ready) * config.updates).round().long()
        filled = tensors["seen"][:, 0].clamp(max=config.memory).long()
        rows = [
            _rows(s, index, int(count), int(there), config.batch)
            for s, count, there in zip(streams, counts, filled, strict=True)
        ]
        draws = [s.torch("user_update", index) for s in streams]
        memory = [tensors[f"memory_{name}"] for name in Batch._fields]
        learned = {k: x.clone() for k, x in tensors.items() if not k.startswith("memory_")}
        return self._explore(tensors | self._train(learned, memory, rows, draws))

    def _train(
        self,
        learned: dict[str, Tensor],
        memory: list[Tensor],
        rows: list[Tensor],
        draws: list[torch.Generator],
    ) -> dict[str, Tensor]:
        """One replica after the other in compiled code, distributed over torch's threads."""
        net, config = self.policy.net, self.config
        widths = np.array([net.inputs, *net.hidden, net.outputs])
        rates = (config.lr, config.decay, config.tau)
        bound = self._context.privacy.clip if self._noisy else math.inf
        names = ("target", "m", "v", "peak")
        kept = {name: learned[name].numpy() for name in names}
        q, places = learned["actor"][:, :-1].contiguous(), [x.numpy() for x in memory]
        counts = [len(x) for x in rows]

        def one(r: int) -> None:
            drawn = counts[r] if self._noisy and self._context.schedule.z[r] > 0 else 0
            noise = torch.empty(drawn, net.size)
            for line in noise:
                line.copy_(sample_noise(draws[r : r + 1], net.size)[0])
            q_training.learn(
                q[r].numpy(),
                *(kept[name][r] for name in names),
                int(learned["updates"][r, 0]),
                tuple(x[r] for x in places),
                rows[r].numpy(),
                noise.numpy(),
                widths,
                rates,
                bound,
                np.float32(
                    self._context.schedule.z[r] * bound / math.sqrt(config.batch) if drawn else 0.0
                ),
            )

        busy = [r for r, count in enumerate(counts) if count]
        with ThreadPoolExecutor(max(torch.get_num_threads(), 1)) as pool:
            list(pool.map(one, busy))
        learned["actor"] = torch.cat([q, learned["actor"][:, -1:]], dim=-1)
        taken = torch.tensor(counts, dtype=learned["updates"].dtype).unsqueeze(-1)
        return learned | {"updates": learned["updates"] + taken}


def _rows(streams: Streams, index: int, count: int, filled: int, batch: int) -> Tensor:
    """[count, batch] indices into the memory, without repetition in a row."""
    g = np.random.default_rng(streams.episode_seed("user_update", index, 1))
    drawn = [g.choice(filled, batch, replace=False, shuffle=False) for _ in range(count)]
    return torch.from_numpy(np.array(drawn, np.int64).reshape(count, batch))


ALGORITHM = DqnReplay
