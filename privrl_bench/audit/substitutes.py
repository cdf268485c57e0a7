"""Where another user is put in the user's place, by what a run's users come from."""

from __future__ import annotations

from typing import Any, cast

from privrl_bench.audit.replacement_data import (
    CRAFTED,
    OtherAnswer,
    OtherPerson,
    OtherPrompt,
    OtherStart,
    OtherTrajectory,
)
from privrl_bench.audit.visits import Visit
from privrl_bench.collectors.behavior import BehaviorCollector
from privrl_bench.collectors.dataset import DatasetCollector
from privrl_bench.collectors.prompts import PromptCollector
from privrl_bench.collectors.returning_users import ReturningUsers
from privrl_bench.collectors.simulated import SimulatedCollector
from privrl_bench.experiment.trainer import Trainer


def _live(rollout: Any) -> SimulatedCollector | None:
    """Who steps environments."""
    rollout = rollout.rollout if isinstance(rollout, ReturningUsers) else rollout
    return rollout if isinstance(rollout, SimulatedCollector) else None


def plays_compiled(rollout: Any) -> bool:
    """Whether episodes are played in compiled code, before anything is substituted."""
    live = _live(rollout)
    return live is not None and live.compiled() is not None


def substitutes(session: Trainer, visit: Visit, person: str) -> list[Any]:
    """What puts another user in the user's place while its `present` is set.

    Args:
        session: not stepped yet; its rollout is changed.
        visit: whose place, and whether the round number is moved.
        person: null | crafted; empty: a model, whose user stays the same.
    """
    rollout, parts = session.rollout, session.parts
    if isinstance(rollout, ReturningUsers | PromptCollector) and visit.start:
        # Their users are used up: in a moved run they come as in the first rounds.
        collect: Any = rollout.collect
        moved: Any = rollout
        moved.collect = lambda actor, index, who: collect(actor, index - visit.start, who)
    if isinstance(rollout, DatasetCollector | BehaviorCollector):
        rollout.instead = trajectory = OtherTrajectory(visit.user, person)
        return [trajectory]
    if isinstance(rollout, PromptCollector):
        rollout.instead = answer = OtherAnswer(visit.user, person)
        if person != CRAFTED:
            return [answer]
        prompt = OtherPrompt(rollout.answers, visit.user)
        rollout.answers = cast(Any, prompt)
        return [answer, prompt]
    live = _live(rollout)
    assert live is not None
    if visit.compiled:
        return [OtherStart(live.slots, visit.user, person)]
    exact = ("ends",) if parts.config.privacy.rewards == "noised" else ("ends", "rewards")
    # A model's, too, never present there: all worlds are then stepped alike, none in compiled code, whose
    # rounding is its own.
    live.slots = OtherPerson(
        live.slots,
        visit.user,
        person,
        parts.steps,
        parts.spec.max_episode_steps,
        resets=parts.config.env.user != "segment",
        shares=() if parts.gate.local is None else exact,
    )
    return [live.slots]
