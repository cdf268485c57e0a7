"""R replicas in training: one round, evaluation, and what a checkpoint holds. Writes no files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from privrl_bench.evaluation import evaluator_of
from privrl_bench.evaluation.evaluator import Evaluation
from privrl_bench.evaluation.tabular import exact
from privrl_bench.functional.averaging import deployed
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.training.plan import Plan
from privrl_bench.training.workers import ShardWork, WorkerPool, make_collector, slots_of
from privrl_bench.types import State
from privrl_bench.users.collectors.collector import Collector

CHECKPOINT_VERSION = 5


class Trainer:
    """R replicas in training. `step()` is one round; nothing here writes files.

    Args:
        parts: the plan, with its ledgers. Tests replace `parts.gate` to replay releases.

    Attributes:
        evaluator: how released parameters are judged.
        diagnostics: metrics of the last round, of each replica; some are private.
    """

    def __init__(self, parts: Plan):
        config = parts.config
        self.parts = parts
        self.state: State = parts.algo.init(parts.streams)
        self.diagnostics: list[dict[str, float]] = []
        self._frozen: dict[int, dict[str, Tensor]] = {}
        self.work = ShardWork(parts, make_collector(parts))
        self.pool = WorkerPool(parts, self.work)
        judge = evaluator_of(config)
        self.evaluator = judge.of(parts)
        # With noised observations users act with another policy than the one with known values.
        hidden = parts.gate.devices is not None or not judge.acts
        self._exact = None if hidden else exact(config.env, parts.algo.policy)
        self._regret = torch.zeros(len(parts.configs), dtype=torch.float64)

    @property
    def collector(self) -> Collector:
        """Where the users of a round come from."""
        return self.work.collector

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.state.round

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.round >= self.parts.iterations or self.parts.algo.progress(self.state).finished

    def releases(self, r: int) -> int:
        """How many releases the parameters of replica r have seen."""
        counted = self.parts.algo.progress(self.state).releases
        return self.round if counted is None else counted[r]

    def step(self) -> None:
        """One round: cohort, shards, user updates, release, next state, `after_release`.

        After the last release: `after_release` alone.
        """
        parts = self.parts
        index = self.state.round
        before = parts.algo.actor(self.state)
        asked = parts.algo.progress(self.state).needs_release
        needs_release = asked or (True,) * len(parts.configs)
        if index < parts.rounds and any(needs_release):
            state, seen = self._release(before, needs_release)
        else:
            state, seen = State(index + 1, dict(self.state.tensors)), [{} for _ in parts.configs]
        state = parts.algo.after_release(state, parts.streams)
        if state.round != index + 1:
            raise RuntimeError(f"round {index} left the state at round {state.round}")
        for r, kept in self._frozen.items():
            for name, x in kept.items():
                state.tensors[name][r] = x
        after = parts.algo.actor(state)
        self.state = state
        measured = parts.algo.metrics(state)
        self.diagnostics = [
            {
                "release/norm": float(torch.linalg.vector_norm(after[r] - before[r])),
                "policy/norm": float(torch.linalg.vector_norm(after[r])),
                **seen[r],
                **measured[r],
            }
            for r in range(len(parts.configs))
        ]

    def _release(
        self, actor: Tensor, needs_release: tuple[bool, ...]
    ) -> tuple[State, list[dict[str, float]]]:
        """One release: the next state, and metrics of each replica's round."""
        parts, index = self.parts, self.state.round
        private = parts.gate.mechanism.private
        for r, wanted in enumerate(needs_release):
            if private and not wanted:
                parts.gate.end(r)
        if not parts.users.from_data:  # users act with what was released
            parts.gate.sync()
        parts.gate.announce(index)
        self.collector.scaler.use(parts.algo.scaling(self.state))
        values = self._exact_values(actor)
        gate = parts.gate
        stats = self.pool.run(self.state, actor, self.cohort(index), gate.add, gate.merge).metrics()
        released = parts.gate.release(index)
        seen = [
            {
                "train/clipped_fraction": parts.gate.diagnostics[r]["clipped_fraction"],
                **values[r],
                **stats[r],
                "train/invalid_users": parts.gate.diagnostics[r]["invalid_users"]
                + stats[r].get("train/invalid_users", 0.0),
            }
            for r in range(len(parts.configs))
        ]
        return parts.algo.server(self.state, released), seen

    def cohort(self, index: int) -> Cohort:
        """The users of a round, drawn by the gate, with their slots."""
        gate, collector = self.parts.gate, self.collector
        gate.begin_devices(index)
        drawn = gate.draw(index, collector.population, collector.used_once)
        return drawn.part(0, slots_of(self.parts, drawn))

    def collect(self, policy_params: Tensor, index: int) -> Any:
        """The users of a round that has one shard."""
        (users,) = self.collector.shards(policy_params, index, self.cohort(index))
        return users

    def _exact_values(self, actor: Tensor) -> list[dict[str, float]]:
        """Expected return of the policy of this round, and the regret so far, with U users a round.

        Both are released: how many users a Poisson cohort really has is secret.
        """
        users = self.parts.gate.expected_cohort()
        if self._exact is None:
            return [{} for _ in users]
        values = self._exact.values(actor, self.collector.scaler.frozen())
        self._regret += torch.tensor(users) * (self._exact.best - torch.from_numpy(values))
        return [
            {"exact/return": float(value), "exact/regret": float(total)}
            for value, total in zip(values, self._regret, strict=True)
        ]

    def diverged(self) -> list[bool]:
        """Which replicas have non-finite parameters."""
        parameters = deployed(self.state.tensors, self.parts.algo.actor(self.state))
        return (~torch.isfinite(parameters).all(-1)).tolist()

    def freeze(self, r: int, snapshot: dict[str, Any]) -> None:
        """Replica r stays as it was in `snapshot` and releases nothing more.

        It keeps its place along the replica axis: the others are then computed by the same operations on
        the same shapes as before, so that their results do not depend on r.
        """
        self.parts.gate.end(r)
        self._frozen[r] = {name: x[r].clone() for name, x in snapshot["state"].items()}
        for name, x in self._frozen[r].items():
            self.state.tensors[name][r] = x

    def evaluate(self) -> Sequence[Evaluation]:
        """The evaluation of the current parameters."""
        self.begin_evaluation()
        found = self.take_evaluation()
        assert found is not None
        return found

    def begin_evaluation(self) -> None:
        """Begin an evaluation of the current parameters, beside training where that saves time."""
        self.parts.gate.sync()
        self.collector.scaler.use(self.parts.algo.scaling(self.state))
        scaling = self.collector.scaler.frozen()
        parameters = deployed(self.state.tensors, self.parts.algo.actor(self.state))
        self.evaluator.begin(parameters, self.state.round, scaling, sorted(self._frozen))

    def take_evaluation(self, wait: bool = True) -> Sequence[Evaluation] | None:
        """The evaluation that was begun; None: it is not done, or none was begun."""
        return self.evaluator.take(wait)

    def snapshot(self) -> dict[str, Any]:
        """Everything from which a run resumes, of all replicas, in memory; `checkpoint` is for the disk.

        It holds no noise; with noise on devices it holds what devices showed last, beside the raw
        observation, if slots are carried over (`env.user=segment`).
        """
        return {
            "state": self.state.clone().tensors,
            "round": self.state.round,
            "collector": self.collector.get_state(),
            "regret": self._regret.clone(),
            "ledger": [tuple(ledger.mark) for ledger in self.parts.gate.ledgers],
        }

    def checkpoint(self, snapshot: dict[str, Any], r: int) -> dict[str, Any]:
        """What is saved of replica r of a snapshot. Waits until the lines of all releases are on the disk.

        Raises:
            OSError: the ledger cannot be written.
        """
        self.parts.gate.sync()
        return {
            "version": CHECKPOINT_VERSION,
            "round": snapshot["round"],
            "state": {k: v[r : r + 1].clone() for k, v in snapshot["state"].items()},
            "collector": {k: v[r : r + 1].clone() for k, v in snapshot["collector"].items()},
            "regret": snapshot["regret"][r : r + 1].clone(),
            "ledger": snapshot["ledger"][r],  # what it has seen of it
        }

    def restore(self, saved: list[dict[str, Any]]) -> bool:
        """Continue from one checkpoint of each replica, all at the same round.

        Returns: whether the environments came back bit for bit.
        """
        self.state = State(saved[0]["round"], _join([one["state"] for one in saved]))
        self._regret = torch.cat([one["regret"] for one in saved])
        return self.collector.set_state(_join([one["collector"] for one in saved]))

    def close(self) -> None:
        """Free the environments and the workers."""
        self.pool.close()
        self.collector.close()
        self.evaluator.close()


def _join(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack replicas. Where time (axis 2) has other lengths, zeros are appended."""
    joined = {}
    for key in parts[0]:
        pieces = [part[key] for part in parts]
        if pieces[0].dim() > 2:
            longest = max(p.shape[2] for p in pieces)
            pieces = [
                torch.nn.functional.pad(p, (*[0, 0] * (p.dim() - 3), 0, longest - p.shape[2]))
                for p in pieces
            ]
        joined[key] = torch.cat(pieces)
    return joined
