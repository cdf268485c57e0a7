"""Users who act in environments with the released policy.

R replicas times U users are stepped together. A user (`env.user`) is one of:

- `segment`: slots are never cut, a user is the next T steps of a slot; one episode can span several
  users (the paper's reading).
- `fresh`: every user starts from a reset and acts for T steps, restarts inside them included.
- `episode`: every user is one whole episode from a reset, padded to T and masked.

With noise on devices (`privacy/devices.py`) the policy, the scaling and the batch get each observation
once, as the user's device shows it, and never the raw one.

An environment may declare real users (`envs/user_declaration.py`). A cohort with members consists of
them: their random numbers are functions of seed, number and round, not of their slot or of other
users. A cohort without members consists of simulated users.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.registry import make_slots
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.envs.slots import UserNumbers
from privrl_bench.functional.rng import Streams
from privrl_bench.models.policy import Policy
from privrl_bench.privacy.devices import DeviceNoise
from privrl_bench.privacy.sampling.sampler import Cohort
from privrl_bench.rollout import advance, finite, lost, rollout
from privrl_bench.types import EnvSpec, UserBatch
from privrl_bench.users.collectors.collector import BatchShape, Collector
from privrl_bench.users.collectors.shards import (
    GroupedSampler,
    blank_of,
    clear_idle,
    train_stats,
)
from privrl_bench.users.collectors.substitutes import SubstituteUser, Substitution


def _stats(finished: list[list[float]], bad_users: np.ndarray) -> list[dict[str, float]]:
    return [train_stats(done, bad_users[r].sum()) for r, done in enumerate(finished)]


class UserSlots:
    """Users in the slots of R replicas with U slots each.

    Args:
        replicas: R.
        users: U.
        declared: Number of users that the environment declares; None: it declares none.

    Attributes:
        numbers: [R, U] declared user of each slot, -1: no user. Simulated users have the number of their
            slot in the round.
        real: Whether they are declared users.
        slots: those of the round that these are.
    """

    def __init__(self, replicas: int, users: int, declared: int | None):
        self._simulated = np.tile(np.arange(users), (replicas, 1))
        self.numbers = self._simulated.copy()
        self.real = False
        self.slots = range(users)
        self._declared = declared

    def assign(self, cohort: Cohort) -> np.ndarray:
        """Assign the users of a cohort to the first slots of each replica; return the mask [R, U].

        Users without numbers are simulated. A number that is not declared is an absent user.
        """
        first = 0 if cohort.slots is None else cohort.slots.start
        self.slots = range(first, first + self._simulated.shape[1])
        self.real = cohort.members is not None
        if cohort.members is None:
            self.numbers = self._simulated + first
            return np.asarray(self._simulated < np.asarray(cohort.sizes)[:, None])
        self.numbers = np.full_like(self._simulated, -1)
        for row, who in zip(self.numbers, cohort.members, strict=True):
            row[: len(who)] = who
        return np.asarray((self.numbers >= 0) & (self.numbers < (self._declared or 0)))

    def batch(self, where: np.ndarray) -> UserNumbers:
        """Return `slots.Users` of the slots `where` [R, U] bool, for `Slots.reset`."""
        if self._declared is None:
            return None
        return [int(k) if self.real else None for k in self.numbers[where]]


class SimulatedCollector(Collector):
    """Users who act in environments.

    Args:
        config: the environment and its unit.
        spec: its public facts.
        policy: the policy class; parameters come with each call.
        streams: random streams of each replica (R of them).
        users: U, slots of one replica.
        steps: T, steps of one user.
        gamma: discount, for running reward statistics only.
        device: clip and noise on the users' own devices; None: observations are seen as they are.
    """

    def __init__(
        self,
        config: EnvConfig,
        spec: EnvSpec,
        policy: Policy,
        streams: list[Streams],
        users: int,
        steps: int,
        gamma: float,
        device: DeviceNoise | None = None,
    ):
        self.device = device
        self.shape = BatchShape(len(streams), users, steps)
        self.scaler = SignalScaler(config, len(streams), users, spec.obs_dim, gamma)
        self.population = spec.users
        self.used_once = spec.users is not None  # in cohorts of fixed size
        self._config = config
        self._spec = spec
        self._policy = policy
        self._streams = streams
        self.slots = make_slots(config, len(streams) * users)
        width = 1 if spec.discrete else spec.actions
        replicas = len(streams)
        self._raw = np.zeros((replicas, users, spec.obs_dim))  # what environments returned
        # What devices show, in the same units. Everything but replay uses these.
        self._shown = self._raw if device is None else np.zeros_like(self._raw)
        self._places = UserSlots(replicas, users, spec.users)
        self._episode = np.zeros((replicas, users), dtype=np.int64)  # resets so far
        self._elapsed = np.zeros((replicas, users), dtype=np.int64)
        self._return = np.zeros((replicas, users))
        self._seeds = np.zeros((replicas, users), dtype=np.int64)
        # Seed and actions restore a slot after a crash, whatever state the simulator has inside.
        keep = spec.max_episode_steps if config.user == "segment" else 0
        self._history = np.zeros((replicas, users, keep, width), dtype=np.float32)
        self._started = False

    def _reset(self, where: np.ndarray, round_index: int, t: int) -> None:
        """Start new episodes before step t in the slots `where` [R, U] bool; observations follow."""
        seeds = []
        for r, u in zip(*np.nonzero(where), strict=True):
            counters = [int(self._places.numbers[r, u]), int(self._episode[r, u])]
            if self._config.user != "segment":
                counters.append(round_index)
            self._seeds[r, u] = self._streams[r].episode_seed("env", *counters)
            self._episode[r, u] += 1
            seeds.append(int(self._seeds[r, u]))
        self._elapsed[where] = 0
        self._return[where] = 0.0
        self.scaler.restart(where)
        self._raw[where] = self.slots.reset(np.flatnonzero(where), seeds, self._places.batch(where))
        if self.device is not None:
            self._shown[where] = self.device.at_reset(self._raw, t)[where]

    def _draw(self, round_index: int) -> Tensor:
        """Random numbers of the policy for the round: [T, R, U, ...]."""
        steps, places, policy = self.shape.steps, self._places, self._policy
        numbers = places.numbers.tolist() if places.real else [None] * self.shape.replicas
        which = [("policy", round_index, places.slots, who) for who in numbers]
        drawn = [
            s.per_user(*one, lambda g, n: policy.draw(g, steps, n))
            for s, one in zip(self._streams, which, strict=True)
        ]
        return torch.stack(drawn, dim=1)

    def collect(self, policy_params: Tensor, round_index: int, cohort: Cohort) -> UserBatch:
        """One round.

        Args:
            policy_params: [R, P].
            round_index: from 0; selects the random streams.
            cohort: users of each replica, at most U: declared users by number, each once, if it has
                members, else simulated ones. A number that the environment does not declare is an
                absent user: not valid.

        Raises:
            EnvironmentFailure: an environment raised.
        """
        active = self._places.assign(cohort)
        carried = self._config.user == "segment" and self._started
        if not carried:
            self._episode[:] = 0
            self._reset(active, round_index, 0)
        self._started = True
        noise = self._draw(round_index)
        bad_users = lost(self._shown, active)
        # An observation that a slot carries over is in the running statistics already.
        first = self.scaler.obs(self._shown, update=None if carried else active & ~bad_users)
        batch, finished = self._act(policy_params, round_index, noise, active, bad_users, first)
        return UserBatch(
            **cast(Any, {name: x.movedim(0, 2).contiguous() for name, x in batch.items()}),
            valid=torch.from_numpy(active & ~bad_users),
            stats=_stats(finished, bad_users),
            numbers=torch.from_numpy(self._places.numbers) if self._places.real else None,
        )

    def _act(
        self,
        policy_params: Tensor,
        round_index: int,
        noise: Tensor,
        active: np.ndarray,
        bad_users: np.ndarray,
        scaled: np.ndarray,
    ) -> tuple[dict[str, Tensor], list[list[float]]]:
        """Steps [T, R, U, ...] of the users `active` [R, U], and returns of episodes that ended.

        `scaled` [R, U, D] are the first observations; `bad_users` [R, U] is updated in place.
        """
        shape, spec, now = self.shape, self._spec, scaled
        # Time comes first: every step writes one contiguous piece.
        batch = blank_of(spec, (shape.steps, shape.replicas, shape.users))
        arrays = {name: x.numpy() for name, x in batch.items()}  # faster for few numbers
        finished: list[list[float]] = [[] for _ in range(shape.replicas)]

        def act(going: np.ndarray, t: int) -> np.ndarray:
            arrays["obs"][t], arrays["mask"][t] = now, going
            arrays["actions"][t] = sample(batch["obs"][t], t).numpy()
            return arrays["actions"][t]

        def restart(stop: np.ndarray, t: int) -> None:
            nonlocal now
            now = self._restart(stop, round_index, t, bad_users, now)

        with torch.inference_mode():
            dim, places = spec.obs_dim, self._places.slots
            sample = GroupedSampler(self._policy, policy_params, noise, dim, places)
            for step in rollout(
                *(self.slots, self._raw, active, act, shape.steps),
                to_env=self._policy.to_env,
                show=None if self.device is None else self._show,
                restart=None if self._config.user == "episode" else restart,
            ):
                t = step.t
                self._remember(step.acted, arrays["actions"][t])
                bad_users |= step.broken
                self._return += step.rewards
                arrays["terminated"][t] = step.terminated
                arrays["done"][t] = step.done
                arrays["rewards"][t] = self.scaler.reward(step.rewards, step.fine)
                now = self.scaler.obs(self._shown, update=step.fine)
                arrays["next_obs"][t] = now
                if step.done.any():
                    for r, u in zip(*np.nonzero(step.done & step.fine), strict=True):
                        finished[r].append(float(self._return[r, u]))
        clear_idle(batch)
        return batch, finished

    def _show(
        self, acted: np.ndarray, rewards: np.ndarray, t: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """What devices of the users `acted` show after step t: observations and rewards."""
        assert self.device is not None
        self._shown[acted] = self.device.after_step(self._raw, t)[acted]
        return self._shown, np.where(acted, self.device.reward(rewards, t), 0.0)

    def _remember(self, acted: np.ndarray, actions: np.ndarray) -> None:
        """Keep actions [R, U, ...] for `set_state`; of slots that were not stepped, until their next step."""
        if self._config.user == "segment":
            at = self._elapsed.ravel()
            flat = self._history.reshape(at.size, *self._history.shape[2:])
            flat[np.arange(at.size), at] = actions.reshape(at.size, -1)
        self._elapsed += acted

    def _restart(
        self,
        stop: np.ndarray,
        round_index: int,
        t: int,
        bad_users: np.ndarray,
        scaled: np.ndarray,
    ) -> np.ndarray:
        """New episodes after step t in the slots `stop`; the scaled observations with theirs."""
        last = t + 1 == self.shape.steps
        if last and self._config.user != "segment":
            return scaled  # no reset: the device would show one more observation
        self._reset(stop, round_index, t + 1)
        broken = stop & ~finite(self._shown).all(axis=-1)
        if broken.any() and not last:  # after the last step it is the next user's
            bad_users |= broken
            self._shown[broken] = 0.0
        begun = self.scaler.obs(self._shown, update=stop & ~broken)
        return np.where(stop[..., None], begun, scaled)

    def get_state(self) -> dict[str, Tensor]:
        """Seeds, actions and statistics, from which `set_state` restores the slots."""
        state = {f"scaler.{k}": v for k, v in self.scaler.get_state().items()}
        if self._config.user == "segment":
            longest = int(self._elapsed.max(initial=0))
            current = np.arange(longest) < self._elapsed[..., None]
            state |= {
                "episode": torch.from_numpy(self._episode.copy()),
                "elapsed": torch.from_numpy(self._elapsed.copy()),
                "seeds": torch.from_numpy(self._seeds.copy()),
                "return": torch.from_numpy(self._return.copy()),
                "raw": torch.from_numpy(self._raw.copy()),
                "history": torch.from_numpy(self._history[:, :, :longest] * current[..., None]),
                "started": torch.full((self.shape.replicas,), self._started),
            }
            if self.device is not None:  # shown already, so never drawn again
                state["shown"] = torch.from_numpy(self._shown.copy())
        return state

    def set_state(self, state: dict[str, Tensor]) -> bool:
        """Restore the slots by replaying their current episodes.

        Returns:
            Whether every slot reached the observation it had, bit for bit. False: the environment
            is not determined by its seed and actions.
        """
        scaler = {k.removeprefix("scaler."): v for k, v in state.items() if k.startswith("scaler.")}
        self.scaler.set_state(scaler)
        if self._config.user != "segment" or not bool(state["started"].all()):
            return True
        arrays = {k: v.numpy() for k, v in state.items() if not k.startswith("scaler.")}
        elapsed = arrays["elapsed"]
        self._started = True
        everyone = np.ones(elapsed.shape, dtype=bool)
        seeds = [int(s) for s in arrays["seeds"].reshape(-1)]
        self._raw[everyone] = self.slots.reset(
            np.flatnonzero(everyone), seeds, self._places.batch(everyone)
        )
        self._elapsed[:] = elapsed
        self._seeds[:] = arrays["seeds"]
        longest = int(elapsed.max(initial=0))
        self._history[:, :, :longest] = replay = arrays["history"][:, :, :longest]
        if self._spec.discrete:
            replay = replay[..., 0].astype(np.int64)
        for t in range(longest):
            advance(self.slots, self._raw, elapsed > t, replay[:, :, t], self._policy.to_env)
        self._episode[:] = arrays["episode"]
        self._return[:] = arrays["return"]
        if self.device is not None:
            self._shown[:] = arrays["shown"]
        return bool(np.array_equal(self._raw, arrays["raw"], equal_nan=True))

    def substituted(self, visit: Any, kind: str) -> Substitution:
        """See `Collector.substituted`: in the slots."""
        return SimulatedSubstitution(self, visit, kind)

    def close(self) -> None:
        """Free the environments."""
        self.slots.close()

    def substitute(self, user: int, kind: str) -> SubstituteUser:
        """Slots that may replace a user, from now on."""
        shares: tuple[str, ...] = ()
        if self.device is not None:
            noised = self.device.ranges.reward is not None
            shares = ("ends",) if noised else ("ends", "rewards")
        one = SubstituteUser(
            self.slots,
            user,
            kind,
            self.shape.steps,
            self._spec.max_episode_steps,
            resets=self._config.user != "segment",
            shares=shares,
        )
        self.slots = cast(Any, one)
        return one


class SimulatedSubstitution(Substitution):
    """Replaces the user in the environments' slots, so that the policy acts on other observations."""

    def _install(self, collector: Any, kind: str) -> list[Any]:
        return self._install_live(collector, kind)

    def _install_live(self, live: SimulatedCollector, kind: str) -> list[Any]:
        self._live: Any = live
        # Also in the model, where it never replaces a user: then all runs are stepped in the same way.
        return [self._follow(live.substitute(self._visit.user, kind))]

    def _follow(self, one: Any) -> Any:
        """`one`, which is in the user's slot of the shard that is collected."""
        live, user = self._live, self._visit.user
        real, size = live.collect, live.shape.users

        def collect(policy_params: Any, round_index: int, cohort: Cohort) -> Any:
            at = user - (0 if cohort.slots is None else cohort.slots.start)
            one.move(at if 0 <= at < size else -1)
            return real(policy_params, round_index, cohort)

        live.collect = collect
        return one

    def watch_devices(self, devices: Any) -> None:
        """Put `devices` in the place of the users' devices."""
        self._live.device = devices
