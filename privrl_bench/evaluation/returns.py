"""Evaluation episodes: a released policy in simulated environments that are nobody's."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from privrl_bench.collectors.compiled_episodes import EpisodeState, player
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import make_slots
from privrl_bench.envs.remote import Remote
from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.envs.slots import Users
from privrl_bench.functional.rng import Streams
from privrl_bench.kernels.machine import cores
from privrl_bench.models.policy import Policy
from privrl_bench.types import EnvSpec

# An evaluator's process takes about this long to start; a run that evaluates for less has no use for one.
_WORTH_A_PROCESS = 3.0
_BLOCK = 64  # steps whose noise is drawn at once


@dataclass(frozen=True)
class Evaluation:
    """One replica's evaluation episodes.

    Attributes:
        returns, lengths: [E].
        more: further metrics of the released policy, by their declared names.
        samples: what some of the episodes look like, where that can be read.
        invalid: how many episodes met a non-finite reward, observation or action. With one of them the
            whole evaluation is invalid: what remains of that episode is not its return, and a mean of
            the others would leave out the worst.
    """

    returns: np.ndarray
    lengths: np.ndarray
    more: dict[str, float] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    invalid: int = 0

    @property
    def value(self) -> float:
        """What a run is judged by; NaN if the evaluation is invalid."""
        return math.nan if self.invalid else float(self.returns.mean())

    @property
    def problem(self) -> str:
        """Why the evaluation is invalid; empty if it is valid."""
        if not self.invalid:
            return ""
        return (
            f"return invalid: {self.invalid} of {len(self.returns)} evaluation episodes had non-finite "
            "rewards, observations or actions"
        )


class Evaluates(Protocol):
    """What `Evaluations` needs of an evaluator."""

    def run(
        self, actor: Tensor, round_index: int, scaling: FrozenScaling, over: Sequence[int] = ()
    ) -> list[Evaluation]:
        """One evaluation of every replica's policy `actor` [R, P]; nothing of the replicas `over`."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


class Evaluator:
    """Plays whole episodes with released parameters on the evaluation streams.

    Its environments are simulated and belong to no user. Args as `SimulatedCollector`; `episodes` is E, `greedy`
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

    def run(
        self, actor: Tensor, round_index: int, scaling: FrozenScaling, over: Sequence[int] = ()
    ) -> list[Evaluation]:
        """E episodes of every replica's policy `actor` [R, P], the same for the same round.

        The replicas `over` play none; their returns are 0.
        """
        replicas, episodes = len(self._streams), self._episodes
        seeds = [
            s.episode_seed("eval_env", round_index, e)
            for s in self._streams
            for e in range(episodes)
        ]
        everyone = np.arange(replicas * episodes)
        nobody: Users = None if self._spec.users is None else [None] * len(everyone)
        raw = self._slots.reset(everyone, seeds, nobody).reshape(replicas, episodes, -1)
        going = np.ones((replicas, episodes), dtype=bool)
        going[list(over)] = False
        draws = [s.torch("eval_policy", round_index) for s in self._streams]

        def drawn() -> Tensor | None:
            """Noise of the next steps, _BLOCK of them."""
            if self._greedy:
                return None
            return torch.stack([self._policy.draw(g, _BLOCK, episodes) for g in draws], dim=1)

        compiled = player(self._slots, self._policy) if scaling.mean is None else None
        if compiled is not None:
            played, shown = EpisodeState.start(going), np.array(raw, np.float64, order="C")
            for _ in range(0, self._spec.max_episode_steps, _BLOCK):
                if played.going.any():
                    compiled.play(actor, drawn(), shown, played, _BLOCK)
            return _evaluations(played.returns, played.lengths, played.broken)

        returns = np.zeros((replicas, episodes))
        lengths = np.zeros((replicas, episodes), dtype=np.int64)
        broken = going & ~_finite(raw)
        going &= ~broken
        raw = np.where(broken[..., None], 0.0, raw)
        now = torch.zeros(replicas, episodes, self._spec.obs_dim)
        with torch.inference_mode():
            sample = self._policy.sampler(actor)
            for t in range(self._spec.max_episode_steps):
                if not going.any():
                    break
                if t % _BLOCK == 0:
                    noise = drawn()
                now.copy_(torch.from_numpy(scaling.obs(raw)))
                if noise is None:
                    action = self._policy.greedy(actor, now)
                else:
                    action = sample(now, noise[t % _BLOCK])
                acts = _finite(action.numpy().reshape(replicas, episodes, -1))
                broken |= going & ~acts
                going &= acts
                flat = action.numpy().reshape(going.size, *action.shape[2:])
                indices = np.flatnonzero(going)
                if not len(indices):
                    break
                result = self._slots.step(indices, self._policy.to_env(flat[indices]))
                finite = _finite(result.obs) & np.isfinite(result.rewards)
                broken[going] |= ~finite
                returns[going] += np.where(finite, result.rewards, 0.0)
                lengths[going] += 1
                raw[going] = np.where(finite[:, None], result.obs, 0.0)
                going[going] = ~(result.terminated | result.truncated | ~finite)
        return _evaluations(returns, lengths, broken)

    def close(self) -> None:
        """Free the environments."""
        self._slots.close()


def _finite(x: np.ndarray) -> np.ndarray:
    """[...] whether all entries of x [..., D] are finite in single precision, which policies compute in."""
    with np.errstate(over="ignore"):
        return np.asarray(np.isfinite(x.astype(np.float32, copy=False)).all(axis=-1))


def _evaluations(returns: np.ndarray, lengths: np.ndarray, broken: np.ndarray) -> list[Evaluation]:
    """One of each replica, from arrays [R, E]. Finite rewards can have an infinite sum."""
    invalid = (broken | ~np.isfinite(returns)).sum(axis=1)
    return [
        Evaluation(mine, steps, invalid=int(count))
        for mine, steps, count in zip(returns, lengths, invalid, strict=True)
    ]


class Evaluations:
    """Evaluations that training does not wait for: begun with a policy, taken when they are there.

    What they find does not depend on where they run.

    Args:
        kind: the evaluator's class.
        arguments: of `kind`.
        aside: in a process of its own; None: from when evaluations have taken longer than a process
            takes to start, if this program leaves a core idle.
        busy: how many cores training uses.
    """

    def __init__(
        self, kind: Callable[..., Evaluates], *arguments: Any, aside: bool | None, busy: int
    ):
        self._kind = kind
        self._arguments = arguments
        self._evaluator: Evaluates | None = None
        self._remote: Remote | None = None
        self._aside, self._busy = aside, busy
        self._spent = 0.0
        self._found: list[Evaluation] | None = None
        self._begun = False

    def begin(
        self, actor: Tensor, round_index: int, scaling: FrozenScaling, over: Sequence[int] = ()
    ) -> None:
        """Start one; the one before must have been taken. Raises EnvironmentFailure."""
        if self._begun:
            raise RuntimeError("an evaluation was begun before the last one was taken")
        if self._leaves():
            if self._remote is None:
                self._remote = Remote(self._kind, *self._arguments)
            self._remote.send("run", actor.clone(), round_index, scaling, over)
        else:
            start = time.perf_counter()
            if self._evaluator is None:
                self._evaluator = self._kind(*self._arguments)
            self._found = self._evaluator.run(actor, round_index, scaling, over)
            self._spent += time.perf_counter() - start
        self._begun = True

    def take(self, wait: bool = True) -> list[Evaluation] | None:
        """The evaluation that was begun; None: not done yet, or none was begun.

        Raises: EnvironmentFailure.
        """
        if not self._begun:
            return None
        if self._found is None and self._remote is not None:
            if not wait and not self._remote.ready():
                return None
            self._found = self._remote.answer()
        found, self._found, self._begun = self._found, None, False
        return found

    def _leaves(self) -> bool:
        if self._aside is not None or self._remote is not None:
            return bool(self._aside) or self._remote is not None
        alone = multiprocessing.parent_process() is None  # not one of a sweep's processes
        return alone and self._spent > _WORTH_A_PROCESS and cores() > self._busy

    def close(self) -> None:
        """Free the environments."""
        if self._evaluator is not None:
            self._evaluator.close()
        if self._remote is not None:
            self._remote.close()
