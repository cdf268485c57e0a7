"""Policies in environments: rounds of user data.

R replicas times U users are stepped together. What one user is (`env.user`) is decided here:

- `segment`: slots are never cut, a user is the next T steps of a slot; one episode can span several
  users (the paper's reading).
- `fresh`: every user starts from a reset and acts for T steps, restarts inside them included.
- `episode`: every user is one whole episode from a reset, padded to T and masked.

With local noise (`privacy/devices.py`) a user's device stands between her environment and everything here: the
policy, the scaling and the batch know what it shows, once for each observation, and no raw one.

An environment may declare real users (`envs/declared.py`). `meet` plays those it is given, by number: their
random numbers are functions of seed, number and round, whatever their slot and whoever else takes part.
`collect` plays simulated users.

Where `episodes.player` has a player, whole episodes are played in compiled code, from the same random numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from privrl_bench.collectors.compiled_episodes import (
    EpisodeState,
    Player,
    TrajectoryBuffer,
    as_tensors,
    player,
)
from privrl_bench.config.schema import EnvConfig
from privrl_bench.envs.places import Places
from privrl_bench.envs.registry import make_slots
from privrl_bench.envs.scaling import SignalScaler
from privrl_bench.functional.rng import Streams
from privrl_bench.models.policy import Policy
from privrl_bench.privacy.devices import LocalNoise
from privrl_bench.types import EnvSpec, UserBatch

_LARGEST = float(np.finfo(np.float32).max)


def _finite(x: np.ndarray) -> np.ndarray:
    """Which numbers are finite in single precision, the precision of learning."""
    return np.abs(x) <= _LARGEST


def _all_finite(obs: np.ndarray, rewards: np.ndarray) -> bool:
    """Whether everything is finite, at the price of two sums; may say no to absurdly large numbers."""
    return bool(np.abs(obs).sum() + np.abs(rewards).sum() <= _LARGEST)


def _stats(finished: list[list[float]], bad_users: np.ndarray) -> list[dict[str, float]]:
    """Private metrics of each replica: returns of the episodes that ended, and users without usable numbers."""
    return [
        {
            "train/return_mean": float(np.mean(done)) if done else float("nan"),
            "train/episodes": float(len(done)),
            "train/invalid_users": float(bad_users[r].sum()),
        }
        for r, done in enumerate(finished)
    ]


class _Record:
    """What users did in one round. Time comes first: every step writes one contiguous piece."""

    def __init__(self, shape: tuple[int, int, int], spec: EnvSpec):
        replicas, users, steps = shape
        first = (steps, replicas, users)
        self.obs = torch.zeros(*first, spec.obs_dim)
        self.next_obs = torch.zeros_like(self.obs)
        self.actions = torch.zeros(*first, dtype=torch.long)
        if not spec.discrete:
            self.actions = torch.zeros(*first, spec.actions)
        self.rewards = np.zeros(first, dtype=np.float32)
        self.terminated, self.done, self.mask = (np.zeros(first, dtype=bool) for _ in range(3))

    def users(
        self, valid: np.ndarray, stats: list[dict[str, float]], numbers: np.ndarray | None
    ) -> UserBatch:
        """The same by user: [R, U, T, ...]. Steps that did not happen hold nothing of anybody."""
        if not self.mask.all():
            idle = torch.from_numpy(~self.mask)
            for x in (self.obs, self.next_obs, self.actions):
                x[idle] = 0

        def by_user(x: Tensor | np.ndarray) -> Tensor:
            tensor = torch.from_numpy(x) if isinstance(x, np.ndarray) else x
            return tensor.movedim(0, 2).contiguous()

        return UserBatch(
            obs=by_user(self.obs),
            next_obs=by_user(self.next_obs),
            actions=by_user(self.actions),
            rewards=by_user(self.rewards),
            terminated=by_user(self.terminated),
            done=by_user(self.done),
            mask=by_user(self.mask),
            valid=torch.from_numpy(valid),
            stats=stats,
            numbers=None if numbers is None else torch.from_numpy(numbers),
        )


class SimulatedCollector:
    """Collects one round of users.

    Args:
        config: the environment and its unit.
        spec: its public facts.
        policy: the policy class; parameters come with each call.
        streams: random streams of each replica (R of them).
        users: U, slots of one replica.
        steps: T, steps of one user.
        gamma: discount, for running reward statistics only.
        workers: processes that step environments.
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
        workers: int = 0,
        device: LocalNoise | None = None,
    ):
        self.device = device
        self.shape = (len(streams), users, steps)
        self.scaler = SignalScaler(config, len(streams), users, spec.obs_dim, gamma)
        self._config = config
        self._spec = spec
        self._policy = policy
        self._streams = streams
        self.slots = make_slots(config, len(streams) * users, workers)
        width = 1 if spec.discrete else spec.actions
        replicas = len(streams)
        self._raw = np.zeros((replicas, users, spec.obs_dim))  # what environments said
        # What leaves the devices, in the same units: everything but replay reads this one.
        self._shown = self._raw if device is None else np.zeros_like(self._raw)
        self._places = Places(replicas, users, spec.users)
        self._episode = np.zeros((replicas, users), dtype=np.int64)  # resets so far
        self._elapsed = np.zeros((replicas, users), dtype=np.int64)
        self._return = np.zeros((replicas, users))
        self._seeds = np.zeros((replicas, users), dtype=np.int64)
        # (seed, actions) bring a slot back after a crash, whatever the simulator hides inside.
        keep = spec.max_episode_steps if config.user == "segment" else 0
        self._history = np.zeros((replicas, users, keep, width), dtype=np.float32)
        self._started = False

    # -- slots ------------------------------------------------------------------------------

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

    def compiled(self) -> Player | None:
        """Who plays whole episodes in compiled code; None: they are stepped."""
        plain = self._config.obs_scaling == self._config.reward_scaling == "none"
        whole_episode = self._config.user == "episode"
        return player(self.slots, self._policy) if whole_episode and plain else None

    def _draw(self, round_index: int) -> Tensor:
        """Random numbers of the policy for the round: [T, R, U, ...]."""
        _, users, steps = self.shape
        draw, drawn = self._policy.draw, []
        for stream, who in zip(self._streams, self._places.numbers.tolist(), strict=True):
            if self._places.real:
                each = [stream.torch("policy", round_index, max(k, 0)) for k in who]
                drawn.append(torch.cat([draw(g, steps, 1) for g in each], dim=1))
            else:
                drawn.append(draw(stream.torch("policy", round_index), steps, users))
        return torch.stack(drawn, dim=1)

    def collect(self, actor: Tensor, round_index: int, cohort: list[int]) -> UserBatch:
        """One round of simulated users.

        Args:
            actor: [R, P] policy parameters.
            round_index: from 0; selects the random streams.
            cohort: number of users of each replica, at most U.

        Raises:
            EnvironmentFailure: an environment raised.
        """
        return self._act(actor, round_index, self._places.simulate(cohort))

    def meet(self, actor: Tensor, round_index: int, members: list[np.ndarray]) -> UserBatch:
        """One round of the users whom the environment declares.

        Args:
            actor: [R, P] policy parameters.
            round_index: from 0; selects the random streams.
            members: numbers of each replica's users, at most U, each once. A number that the environment
                does not declare is an absent user's: not valid.

        Raises:
            EnvironmentFailure: an environment raised.
        """
        return self._act(actor, round_index, self._places.seat(members))

    def _act(self, actor: Tensor, round_index: int, active: np.ndarray) -> UserBatch:
        """The round of the slots `active` [R, U] bool."""
        replicas, _, steps = self.shape
        whole_episode = self._config.user == "episode"
        begins = self._config.user != "segment" or not self._started
        if begins:
            self._episode[:] = 0
            self._reset(active, round_index, 0)
        self._started = True

        noise = self._draw(round_index)
        bad_users = active & ~_finite(self._shown).all(axis=-1)
        self._shown[bad_users] = 0.0
        compiled = self.compiled()
        if compiled is not None:
            return self._at_once(compiled, actor, noise, active, bad_users)

        batch = _Record(self.shape, self._spec)
        finished: list[list[float]] = [[] for _ in range(replicas)]
        going = active.copy()
        # What a slot carries over entered running statistics when it was first seen.
        scaled = self.scaler.obs(self._shown, update=going & ~bad_users if begins else None)
        fine = going
        with torch.inference_mode():
            sample = self._policy.sampler(actor)
            for t in range(steps):
                if not going.any():
                    break
                now = batch.obs[t].copy_(torch.from_numpy(scaled))
                action = sample(now, noise[t])
                batch.actions[t] = action
                batch.mask[t] = going
                reward, over, cut = self._step(going, action.numpy())
                if self.device is not None:
                    self._shown[going] = self.device.after_step(self._raw, t)[going]
                    reward = np.where(going, self.device.reward(reward, t), 0.0)
                fine = going
                if not _all_finite(self._shown, reward):
                    broken = going & ~(_finite(self._shown).all(axis=-1) & _finite(reward))
                    # The user's row will be zero; the slot starts afresh so that it can go on.
                    bad_users |= broken
                    self._shown[broken] = 0.0
                    reward = np.where(broken, 0.0, reward)
                    cut = cut | broken
                    fine = going & ~broken
                stop = over | cut
                self._return += reward
                batch.terminated[t] = over
                batch.done[t] = stop
                batch.rewards[t] = self.scaler.reward(reward, fine)
                scaled = self.scaler.obs(self._shown, update=fine)
                batch.next_obs[t] = torch.from_numpy(scaled)
                if stop.any():
                    for r, u in zip(*np.nonzero(stop & fine), strict=True):
                        finished[r].append(float(self._return[r, u]))
                    if whole_episode:
                        going = going & ~stop
                    elif t + 1 < steps or self._config.user == "segment":
                        # A fresh user has no reset after the last step: they would show one more observation.
                        self._reset(stop, round_index, t + 1)
                        lost = stop & ~_finite(self._shown).all(axis=-1)
                        if lost.any() and t + 1 < steps:  # after the last step: the next user's
                            bad_users |= lost
                            self._shown[lost] = 0.0
                        begun = self.scaler.obs(self._shown, update=stop & ~lost)
                        scaled = np.where(stop[..., None], begun, scaled)
        valid, numbers = active & ~bad_users, self._places.numbers if self._places.real else None
        return batch.users(valid, _stats(finished, bad_users), numbers)

    def _at_once(
        self,
        compiled: Player,
        actor: Tensor,
        noise: Tensor,
        active: np.ndarray,
        bad_users: np.ndarray,
    ) -> UserBatch:
        """The round of whole episodes in compiled code, from where `collect` begins its first step."""
        replicas, users, steps = self.shape
        played = EpisodeState.start(active)
        kept = TrajectoryBuffer.room(replicas, users, steps, self._spec.obs_dim)
        compiled.play(actor, noise, self._shown, played, steps, self.device, kept)
        bad_users |= played.broken
        finished = [played.returns[r][played.over[r]].tolist() for r in range(replicas)]
        valid = torch.from_numpy(active & ~bad_users)
        return UserBatch(**as_tensors(kept), valid=valid, stats=_stats(finished, bad_users))

    def _step(
        self, going: np.ndarray, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Advance the slots `going`; returns rewards, terminated, truncated, each [R, U]."""
        indices = np.flatnonzero(going)
        flat = actions.reshape(going.size, *actions.shape[2:])[indices]
        result = self.slots.step(indices, self._policy.to_env(flat))
        if self._history.shape[2]:
            slots = self._history.reshape(going.size, *self._history.shape[2:])
            slots[indices, self._elapsed.ravel()[indices]] = flat.reshape(len(indices), -1)
        self._elapsed += going
        if len(indices) == going.size:
            self._raw[:] = result.obs.reshape(self._raw.shape)
            parts = (result.rewards, result.terminated, result.truncated)
            return tuple(x.reshape(going.shape) for x in parts)  # type: ignore[return-value]
        rewards = np.zeros(going.shape)
        terminated = np.zeros(going.shape, dtype=bool)
        truncated = np.zeros(going.shape, dtype=bool)
        self._raw[going] = result.obs
        rewards[going] = result.rewards
        terminated[going] = result.terminated
        truncated[going] = result.truncated
        return rewards, terminated, truncated

    # -- resume -----------------------------------------------------------------------------

    def get_state(self) -> dict[str, Tensor]:
        """Tensors from which `set_state` restores the slots: seeds, actions and statistics."""
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
                "started": torch.full((self.shape[0],), self._started),
            }
            if self.device is not None:  # told already, so never drawn again
                state["shown"] = torch.from_numpy(self._shown.copy())
        return state

    def set_state(self, state: dict[str, Tensor]) -> bool:
        """Bring the slots back by replaying their current episodes.

        Returns: whether every slot reached the observation it had, bit for bit. False means that the
        environment is not determined by its seed and actions.
        """
        scaler = {k.removeprefix("scaler."): v for k, v in state.items() if k.startswith("scaler.")}
        self.scaler.set_state(scaler)
        if self._config.user != "segment" or not bool(state["started"].all()):
            return True
        arrays = {k: v.numpy() for k, v in state.items() if not k.startswith("scaler.")}
        elapsed = arrays["elapsed"].copy()
        self._started = True
        everyone = np.ones(elapsed.shape, dtype=bool)
        seeds = [int(s) for s in arrays["seeds"].reshape(-1)]
        self._raw[everyone] = self.slots.reset(
            np.flatnonzero(everyone), seeds, self._places.batch(everyone)
        )
        self._elapsed[:] = 0
        self._seeds[:] = arrays["seeds"]
        replay = arrays["history"]
        if self._spec.discrete:
            replay = replay[..., 0].astype(np.int64)
        for t in range(int(elapsed.max(initial=0))):
            self._step(elapsed > t, replay[:, :, t])
        self._episode[:] = arrays["episode"]
        self._return[:] = arrays["return"]
        if self.device is not None:
            self._shown[:] = arrays["shown"]
        return bool(np.array_equal(self._raw, arrays["raw"], equal_nan=True))

    def close(self) -> None:
        """Free the environments."""
        self.slots.close()
