"""The interfaces of evaluators, and evaluations that training does not wait for.

The class for what a run releases is found by `evaluation.evaluator_of`. What depends on how a run is judged is
asked of the class.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor

from privrl_bench.envs.scaling import FrozenScaling
from privrl_bench.errors import EnvironmentFailure
from privrl_bench.evaluation.objective import Objective
from privrl_bench.kernels.pipe_worker import PipeWorker, WorkerDied

# Seconds that an evaluator's process takes to start; below, a run does not need one.
_WORTH_A_PROCESS = 3.0


class Evaluation(Protocol):
    """The evaluation of one replica's released parameters."""

    @property
    def value(self) -> float:
        """The objective's value; NaN if the evaluation is invalid."""
        ...

    @property
    def problem(self) -> str:
        """Why the evaluation is invalid; empty if it is valid."""
        ...

    @property
    def samples(self) -> Sequence[dict[str, Any]]:
        """Readable examples, one record each, for `samples.jsonl`; may be empty."""
        ...

    def metrics(self) -> dict[str, float]:
        """Declared metrics by name. An invalid evaluation has no result among them."""
        ...


@dataclass(frozen=True)
class NumbersEvaluation:
    """Numbers of one replica, the objective's first; see `Evaluation`.

    Attributes:
        numbers: declared metrics by name. The evaluation is invalid if the first is not finite.
        why: why it is not.
    """

    numbers: dict[str, float]
    why: str = "it is not finite"
    samples: ClassVar[tuple[()]] = ()

    @property
    def value(self) -> float:
        """See `Evaluation.value`."""
        value = next(iter(self.numbers.values()))
        return value if math.isfinite(value) else math.nan

    @property
    def problem(self) -> str:
        """See `Evaluation.problem`."""
        name = next(iter(self.numbers)).removeprefix("eval/")
        return f"{name} invalid: {self.why}" if math.isnan(self.value) else ""

    def metrics(self) -> dict[str, float]:
        """See `Evaluation.metrics`."""
        return {} if self.problem else self.numbers


class Evaluator(ABC):
    """Judges released parameters on simulated or public data.

    Class attributes:
        judges: what the releases are.
        objective: what a run is judged by.
        note: what it needs no user's data for, in the guarantee.
        acts: the released policy acts in environments, so that it has exact values where these have tables.
        shows_start: the initial parameters are judged in every run, for examples before and after it.
    """

    judges: ClassVar[str]
    objective: ClassVar[Objective]
    note: ClassVar[str]
    acts: ClassVar[bool] = False
    shows_start: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def of(cls, parts: Any) -> BackgroundEvaluator:
        """The evaluator of a run, of its users, algorithm and streams; it makes environments when it begins."""

    @classmethod
    def start(cls, rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
        """What is reached before any data, by name; `rows`: of `metrics.jsonl`. Empty: it is no reference."""
        return {}

    @classmethod
    def examples(cls, samples: Sequence[Mapping[str, Any]]) -> list[str]:
        """Lines with examples for the end of a run; `samples`: of `samples.jsonl`. None by default."""
        return []

    @abstractmethod
    def evaluate(
        self,
        policy_params: Tensor,
        round_index: int,
        scaling: FrozenScaling,
        ended: Sequence[int] = (),
    ) -> Sequence[Evaluation]:
        """Evaluate each replica; a function of the arguments.

        Args:
            policy_params: [R, P] released parameters.
            round_index: selects the random streams.
            scaling: of observations.
            ended: replicas whose evaluation is not used; they may be skipped.

        Raises:
            EnvironmentFailure: an environment raised.
        """

    def close(self) -> None:  # noqa: B027
        """Free the environments; nothing by default."""


class BackgroundEvaluator:
    """Begins evaluations and takes their results later, in this process or in one of its own.

    The results do not depend on the process.

    Args:
        kind: the evaluator's class.
        arguments: of `kind`.
        aside: in a process of its own, once evaluations have taken longer than a process takes to start.
    """

    def __init__(self, kind: type[Evaluator], *arguments: Any, aside: bool):
        self.objective = kind.objective
        self._kind = kind
        self._arguments = arguments
        self._evaluator: Evaluator | None = None
        self._worker: PipeWorker | None = None
        self._aside = aside
        self._spent = 0.0
        self._found: Sequence[Evaluation] | None = None
        self._begun = False

    def begin(
        self,
        policy_params: Tensor,
        round_index: int,
        scaling: FrozenScaling,
        ended: Sequence[int] = (),
    ) -> None:
        """Begin an evaluation; arguments and errors as `Evaluator.evaluate`.

        Raises:
            RuntimeError: the one before was not taken.
        """
        if self._begun:
            raise RuntimeError("an evaluation was begun before the last one was taken")
        if self._leaves():
            if self._worker is None:
                self._worker = PipeWorker(_Evaluations, self._kind, *self._arguments)
            self._worker.begin((policy_params, round_index, scaling, ended))
        else:
            start = time.perf_counter()
            if self._evaluator is None:
                self._evaluator = self._kind(*self._arguments)
            self._found = self._evaluator.evaluate(policy_params, round_index, scaling, ended)
            self._spent += time.perf_counter() - start
        self._begun = True

    def take(self, wait: bool = True) -> Sequence[Evaluation] | None:
        """The evaluation that was begun; None: not done yet, or none was begun.

        Raises:
            EnvironmentFailure: an environment raised.
        """
        if not self._begun:
            return None
        if self._found is None and self._worker is not None:
            if not wait and not self._worker.ready():
                return None
            self._found = self._answer(self._worker)
        found, self._found, self._begun = self._found, None, False
        return found

    @staticmethod
    def _answer(worker: PipeWorker) -> Any:
        """The result of a process; whatever it raised is an EnvironmentFailure."""
        try:
            return worker.result()
        except WorkerDied:
            raise EnvironmentFailure("an environment worker process died") from None
        except EnvironmentFailure:
            raise
        except Exception as error:
            message = f"evaluate raised {type(error).__name__}: {error}"
            raise EnvironmentFailure(message) from None

    def _leaves(self) -> bool:
        return self._worker is not None or (self._aside and self._spent > _WORTH_A_PROCESS)

    def close(self) -> None:
        """Free the environments."""
        if self._evaluator is not None:
            self._evaluator.close()
        if self._worker is not None:
            self._worker.close()


class _Evaluations:
    """An evaluator in a process of its own; see `pipe_worker.Work`."""

    def __init__(self, kind: type[Evaluator], *arguments: Any):
        self._evaluator = kind(*arguments)

    def run(self, task: tuple[Any, ...]) -> Sequence[Evaluation]:
        """Evaluate with the arguments of `Evaluator.evaluate`."""
        return self._evaluator.evaluate(*task)

    def close(self) -> None:
        """Free the environments."""
        self._evaluator.close()
