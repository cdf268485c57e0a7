"""R replicas in training: one round, evaluation, and what a checkpoint holds. Writes no files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from privrl_bench.algorithms.ope.linear_evaluation import EvaluationAlgorithm
from privrl_bench.collectors.behavior import BehaviorCollector, piece
from privrl_bench.collectors.dataset import DatasetCollector
from privrl_bench.collectors.prompts import PromptCollector
from privrl_bench.collectors.returning_users import ReturningUsers
from privrl_bench.collectors.simulated import SimulatedCollector
from privrl_bench.evaluation.generations import TextEvaluator
from privrl_bench.evaluation.mspbe import ValueEvaluation, ValueEvaluations
from privrl_bench.evaluation.returns import Evaluation, Evaluations, Evaluator
from privrl_bench.evaluation.tabular import exact
from privrl_bench.experiment.builder import RunComponents
from privrl_bench.types import State, TextBatch, UserBatch

CHECKPOINT_VERSION = 3
# Of a round that takes everybody in pieces.
_NO_STATS = {"train/invalid_users": 0.0}


class Trainer:
    """R replicas in training. `step()` is one round; nothing here writes files.

    Args:
        parts: what `build` built. Tests replace `parts.gate` to replay releases.
    """

    def __init__(self, parts: RunComponents):
        config = parts.config
        self.parts = parts
        self.state: State = parts.algo.init(parts.streams)
        self.diagnostics: list[dict[str, float]] = []
        self._frozen: dict[int, dict[str, Tensor]] = {}
        self.rollout = _users_of(parts)
        # Users whose observations are noised play another policy than the one with known values.
        hidden = parts.gate.local is not None or config.algo.evaluates or parts.task is not None
        self._exact = None if hidden else exact(config.env, parts.algo.policy)
        self._regret = torch.zeros(len(parts.configs), dtype=torch.float64)
        self._evaluations = _evaluations_of(parts)

    @property
    def round(self) -> int:
        """Rounds done."""
        return self.state.round

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return self.round >= self.parts.iterations or self.parts.algo.finished(self.state)

    def releases(self, r: int) -> int:
        """How many releases the parameters of replica r have seen."""
        counted = self.parts.algo.releases(self.state)
        return self.round if counted is None else counted[r]

    def step(self) -> None:
        """One round: users, rows, release, next state. After the last release: `after_release` alone."""
        parts = self.parts
        index = self.state.round
        before = parts.algo.actor(self.state)
        needs_release = parts.algo.needs_release(self.state) or [True] * len(parts.configs)
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
        measured = parts.algo.metrics(state) or [{} for _ in parts.configs]
        self.diagnostics = [
            {
                "release/norm": float(torch.linalg.vector_norm(after[r] - before[r])),
                "policy/norm": float(torch.linalg.vector_norm(after[r])),
                **measured[r],
                **seen[r],
            }
            for r in range(len(parts.configs))
        ]

    def _release(
        self, actor: Tensor, needs_release: list[bool]
    ) -> tuple[State, list[dict[str, float]]]:
        """One release: the next state, and what is seen of each replica's round."""
        parts, index = self.parts, self.state.round
        private = parts.gate.mechanism.private
        for r, wanted in enumerate(needs_release):
            if private and not wanted:
                parts.gate.end(r)
        parts.gate.announce(index)
        self.rollout.scaler.use(parts.algo.scaling(self.state))
        values = self._exact_values(actor)
        if parts.config.algo.full_batch:
            stats = [_NO_STATS for _ in needs_release]
            pieces = self.full_batch(actor, index)
            contribution = parts.algo.local_of_all(self.state, pieces, parts.streams)
        else:
            users: Any = self.collect(actor, index)  # as the algorithm takes them
            stats = users.stats
            contribution = parts.algo.local(self.state, users, parts.streams)
            del users  # raw data end here
        diagnostics = contribution.diagnostics
        released = parts.gate.release(contribution, index)
        seen = [
            {
                "train/clipped_fraction": parts.gate.diagnostics[r]["clipped_fraction"],
                **values[r],
                **stats[r],
                "train/invalid_users": parts.gate.diagnostics[r]["invalid_users"]
                + stats[r]["train/invalid_users"],
                **(diagnostics[r] if diagnostics else {}),
            }
            for r in range(len(parts.configs))
        ]
        return parts.algo.server(self.state, released), seen

    def collect(self, actor: Tensor, index: int) -> UserBatch | TextBatch:
        """The users of a round: those whom the policies meet, or who joins of a dataset's."""
        plan = self.parts.gate
        if isinstance(self.rollout, DatasetCollector | BehaviorCollector):
            return self.rollout.collect(
                index, plan.draw(index, self.rollout.people, False).numbers()
            )
        if isinstance(self.rollout, ReturningUsers):
            return self.rollout.collect(
                actor, index, plan.draw(index, self.rollout.people, False).numbers()
            )
        plan.begin_local(index)
        declared = self.parts.spec.users
        if declared is not None and isinstance(self.rollout, SimulatedCollector):
            return self.rollout.meet(actor, index, plan.draw(index, declared, True).numbers())
        return self.rollout.collect(actor, index, plan.draw(index, None, False).sizes)

    def full_batch(self, actor: Tensor, index: int) -> Iterator[UserBatch]:
        """All people of a round, in pieces."""
        assert isinstance(self.rollout, DatasetCollector | BehaviorCollector)
        members = self.parts.gate.draw(index, self.rollout.people, False).numbers()
        _, room, _ = self.rollout.shape
        for start in range(0, max(len(who) for who in members), room):
            yield self.rollout.collect(index, [who[start : start + room] for who in members])

    def _exact_values(self, actor: Tensor) -> list[dict[str, float]]:
        """Expected return of the policy of this round, and the regret so far, with U users in every round.

        Both are released: how many users a Poisson cohort really has is secret.
        """
        users = self.parts.gate.expected_cohort()
        if self._exact is None:
            return [{} for _ in users]
        values = self._exact.values(actor, self.rollout.scaler.frozen())
        self._regret += torch.tensor(users) * (self._exact.best - torch.from_numpy(values))
        return [
            {"exact/return": float(value), "exact/regret": float(total)}
            for value, total in zip(values, self._regret, strict=True)
        ]

    def diverged(self) -> list[bool]:
        """Which replicas have non-finite parameters."""
        return (~torch.isfinite(self.parts.algo.actor(self.state)).all(-1)).tolist()

    def freeze(self, r: int, snapshot: dict[str, Any]) -> None:
        """Replica r stays as it was in `snapshot` and releases nothing more.

        It keeps its place along the replica axis: the others are then computed by the same operations
        on the same shapes as before, so that nothing in their numbers tells that r is gone.
        """
        self.parts.gate.end(r)
        self._frozen[r] = {name: x[r].clone() for name, x in snapshot["state"].items()}
        for name, x in self._frozen[r].items():
            self.state.tensors[name][r] = x

    def evaluate(self) -> list[Evaluation] | list[ValueEvaluation]:
        """Evaluation episodes of the current policies."""
        self.begin_evaluation()
        found = self.take_evaluation()
        assert found is not None
        return found

    def begin_evaluation(self) -> None:
        """Start evaluation episodes of the current policies, beside training where that pays."""
        self.rollout.scaler.use(self.parts.algo.scaling(self.state))
        actor, scaling = self.parts.algo.actor(self.state), self.rollout.scaler.frozen()
        self._evaluations.begin(actor, self.state.round, scaling, sorted(self._frozen))

    def take_evaluation(self, wait: bool = True) -> list[Evaluation] | list[ValueEvaluation] | None:
        """What `begin_evaluation` began, once it is there; None if it is not, or nothing was begun."""
        return self._evaluations.take(wait)

    def snapshot(self) -> dict[str, Any]:
        """Everything a resumed session needs, of all replicas. Holds no noise, but with local noise what
        devices showed last, beside the raw observation, if slots are carried over (`env.user=segment`)."""
        return {
            "state": self.state.clone().tensors,
            "round": self.state.round,
            "rollout": self.rollout.get_state(),
            "regret": self._regret.clone(),
            "ledger": [tuple(ledger.mark) for ledger in self.parts.gate.ledgers],
        }

    def restore(self, saved: list[dict[str, Any]]) -> bool:
        """Continue from one checkpoint of each replica, all at the same round.

        Returns: whether the environments came back bit for bit.
        """
        self.state = State(saved[0]["round"], _join([one["state"] for one in saved]))
        self._regret = torch.cat([one["regret"] for one in saved])
        return self.rollout.set_state(_join([one["rollout"] for one in saved]))

    def close(self) -> None:
        """Free the environments."""
        self.rollout.close()
        self._evaluations.close()


def _users_of(
    parts: RunComponents,
) -> SimulatedCollector | DatasetCollector | ReturningUsers | BehaviorCollector | PromptCollector:
    """Where a run's users come from: live environments, whether they keep what they did, a dataset, prompts."""
    config, replicas = parts.config, len(parts.configs)
    if parts.task is not None:
        adapter = parts.algo.adapter
        return PromptCollector(config.env, parts.task, adapter, parts.streams, parts.gate.slots)
    keeps, slots = config.algo.keeps, parts.gate.slots
    if config.algo.full_batch:
        slots = piece(parts.spec, parts.steps)
    if parts.data is not None:
        return DatasetCollector(parts.data, config.env, replicas, slots, parts.steps)
    if config.algo.evaluates:
        return BehaviorCollector(
            config.env,
            parts.spec,
            cast(EvaluationAlgorithm, parts.algo).policy,
            parts.streams,
            int(config.privacy.population or 0),
            slots,
            parts.steps,
            config.hardware.env_workers,
        )
    rollout = SimulatedCollector(
        config.env,
        parts.spec,
        parts.algo.policy,
        parts.streams,
        len(config.algo.arrivals(0)) if keeps else slots,
        parts.steps,
        config.algo.gamma,
        config.hardware.env_workers,
        parts.gate.local,
    )
    if not keeps:
        return rollout
    people = config.algo.people(parts.rounds)
    return ReturningUsers(rollout, parts.spec, people, slots, config.algo.arrivals)


def _evaluations_of(parts: RunComponents) -> Evaluations | ValueEvaluations:
    """How what is released is judged: episodes in simulators, answers to public prompts, errors of values."""
    config, hardware = parts.config, parts.config.hardware
    if config.algo.evaluates:
        algo = cast(EvaluationAlgorithm, parts.algo)
        return ValueEvaluations(config.env, parts.spec, algo)
    if parts.task is not None:
        asked = (parts.task, parts.algo.adapter, parts.streams, config.eval.episodes)
        return Evaluations(TextEvaluator, *asked, aside=False, busy=hardware.threads)
    return Evaluations(
        Evaluator,
        config.env,
        parts.spec,
        parts.algo.policy,
        parts.streams,
        config.eval.episodes,
        config.eval.policy == "greedy",
        hardware.env_workers,
        aside=hardware.eval_process,
        busy=hardware.threads + hardware.env_workers,
    )


def one_replica(snapshot: dict[str, Any], r: int) -> dict[str, Any]:
    """The checkpoint of one replica."""
    return {
        "version": CHECKPOINT_VERSION,
        "round": snapshot["round"],
        "state": {k: v[r : r + 1].clone() for k, v in snapshot["state"].items()},
        "rollout": {k: v[r : r + 1].clone() for k, v in snapshot["rollout"].items()},
        "regret": snapshot["regret"][r : r + 1].clone(),
        "ledger": snapshot["ledger"][r],  # what it has seen of it
    }


def _join(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack replicas; histories and what people keep, of different length (axis 2), are padded with zeros."""
    joined = {}
    for key in parts[0]:
        pieces = [part[key] for part in parts]
        if key == "history" or key.startswith("people."):
            longest = max(p.shape[2] for p in pieces)
            pieces = [
                torch.nn.functional.pad(p, (*[0, 0] * (p.dim() - 3), 0, longest - p.shape[2]))
                for p in pieces
            ]
        joined[key] = torch.cat(pieces)
    return joined
