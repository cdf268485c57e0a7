"""Episodes of CartPole played by one network, in compiled code, user after user.

No user's episode depends on another's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from privrl_bench.kernels.jit import exact_jit, exact_part, part
from privrl_bench.kernels.mlp_kernel import TANH, dense_row, tanh
from privrl_bench.kernels.simulators import cartpole

_LARGEST = float(np.finfo(np.float32).max)


class TrajectoryBuffer(NamedTuple):
    """Steps of users: arrays [R, U, T, ...] by the names of `types.UserBatch`."""

    obs: np.ndarray
    next_obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    done: np.ndarray
    mask: np.ndarray


class EpisodeState(NamedTuple):
    """Progress of every user's episode, [R, U] each.

    Attributes:
        going: the user acts on.
        over: the episode terminated or was truncated.
        broken: a value left single precision.
        returns: undiscounted.
        lengths: steps of the episode.
        step: the next step in the arrays of the round.
    """

    going: np.ndarray
    over: np.ndarray
    broken: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray
    step: np.ndarray

    @classmethod
    def start(cls, going: np.ndarray) -> EpisodeState:
        """Before the first step of the users `going` [R, U] bool."""
        no, zero = np.zeros_like(going), np.zeros(going.shape)
        return cls(going.copy(), no, no.copy(), zero, zero.astype(np.int64), zero.astype(np.int64))


class SignalArrays(NamedTuple):
    """Scaling of observations and rewards, as `envs.scaling.SignalScaler` has it.

    Attributes:
        mean: [R, D].
        inverse_std: [R, D].
        obs_clip: bound of a scaled observation.
        reward_scale: [R].
        reward_clip: bound of a scaled reward.
    """

    mean: np.ndarray
    inverse_std: np.ndarray
    obs_clip: float
    reward_scale: np.ndarray
    reward_clip: float


@part
def _logits(x, params, widths, activation, noise, added, dropout, y, z):  # type: ignore[no-untyped-def]
    """Fill z[: widths[-1]]; `x` one observation, `noise` of one step, y and z as long as the widest layer."""
    zero, scale = np.float32(0), np.float32(1.0 / (1.0 - dropout))
    at, unit, last = 0, 0, widths.size - 2
    for i in range(x.size):
        y[i] = x[i]
    for k in range(widths.size - 1):
        fan_in, fan_out = widths[k], widths[k + 1]
        if activation == TANH:
            at = dense_row(params, at, y[:fan_in], z[:fan_out])
            if k < last:
                tanh(z[:fan_out])
                y[:fan_out] = z[:fan_out]
            continue
        weights, bias = at, at + fan_in * fan_out
        at = bias + fan_out
        for j in range(fan_out):
            z[j] = params[bias + j]
        for i in range(fan_in):
            v = y[i]
            if v != zero:  # half of the units are dropped
                for j in range(fan_out):
                    z[j] += v * params[weights + i * fan_out + j]
        if k == last:
            return
        for j in range(fan_out):
            value = z[j] if z[j] > zero else (zero if z[j] <= zero else z[j])
            if dropout == 0.5:
                word = int(noise[added + unit // 8])
                value = value * scale if word >> (unit % 8) & 1 else zero
            elif dropout > 0.0:
                value = value * scale if noise[added + unit] >= np.float32(dropout) else zero
            y[j] = value
            unit += 1


@exact_part
def _largest(z, noise, added, count):  # type: ignore[no-untyped-def]
    """The place of the largest, the first of equal ones, or of the first that is NaN, as torch has it."""
    best, place = np.float32(0), -1
    for j in range(count):
        v = z[j] + noise[j] if added else z[j]
        if place < 0 or v > best:
            best, place = v, j
        if v != v:
            return j
    return place


@exact_part
def _action(choices, r, u, t, x, y, z):  # type: ignore[no-untyped-def]
    """The action of user u at step t for what they see, `x`; y and z as in `_logits`."""
    action = choices.forced[min(t, choices.forced.shape[0] - 1), r, u]
    if action >= 0:
        return action
    noise, added = choices.noise[min(t, choices.noise.shape[0] - 1), r, u], choices.added
    widths, params, dropout = choices.widths, choices.params[r], choices.dropout
    _logits(x, params, widths, choices.activation, noise, added, dropout, y, z)
    return _largest(z, noise, added, widths[-1])


@exact_part
def _shown(raw, d, r, noise, shows):  # type: ignore[no-untyped-def]
    """`privacy.devices.DeviceNoise.after_step` of one number."""
    low, high, step = shows.low[d], shows.high[d], shows.grid[r, d]
    x = min(max(raw, low), high)
    if raw != raw or not shows.there[r]:
        x = (low + high) / 2.0
    x += noise
    return np.rint(x / step) * step if step > 0 else x


@exact_part
def _scaled(raw, r, d, signals):  # type: ignore[no-untyped-def]
    """A scaled observation, as `envs.scaling.SignalScaler.obs`."""
    x = (raw - signals.mean[r, d]) * signals.inverse_std[r, d]
    return min(max(x, -signals.obs_clip), signals.obs_clip)


@exact_part
def _record(kept, r, u, t, x, action, reward, shown, ends, signals):  # type: ignore[no-untyped-def]
    """Step t of user u: what they saw, `x`, did and got, and what is shown now."""
    for d in range(x.size):
        kept.obs[r, u, t, d] = x[d]
        kept.next_obs[r, u, t, d] = _scaled(shown[r, u, d], r, d, signals)
    scaled = reward * signals.reward_scale[r]
    kept.actions[r, u, t] = action
    kept.rewards[r, u, t] = min(max(scaled, -signals.reward_clip), signals.reward_clip)
    kept.terminated[r, u, t], kept.done[r, u, t] = ends
    kept.mask[r, u, t] = True


@exact_jit
def play_cartpole(  # type: ignore[no-untyped-def]
    inside, choices, shows, signals, rewards, shown, played, kept, steps
):
    """The episodes of the users who are `going`, to their ends or to step `steps` of the round.

    Every array is changed in place.

    Args:
        inside: (state [4, N], elapsed [N], max_episode_steps, constants) of `CartPoleSlots.inside`.
        choices: `models.choices.Choices`.
        shows: `privacy.devices.DeviceArrays`, what devices add; `noise` has no steps without devices.
        signals: `SignalArrays`.
        rewards: [1 or T, R, U] reward of a step.
        shown: [R, U, D] double precision, the observations that the policies act on, before scaling.
        played: state of the episodes.
        kept: record of the steps, unless it is for none.
        steps: of the round.
    """
    state, elapsed, max_episode_steps, constants = inside
    replicas, users, dim = shown.shape
    widths = choices.widths
    x = np.empty(dim, np.float32)
    y, z = np.empty(widths.max(), np.float32), np.empty(widths.max(), np.float32)
    keeps, noised = kept.mask.shape[2] > 0, shows.noise.shape[0] > 0
    for r in range(replicas):
        for u in range(users):
            n = r * users + u
            for t in range(played.step[r, u], steps):
                if not played.going[r, u]:
                    break
                for d in range(dim):
                    x[d] = _scaled(shown[r, u, d], r, d, signals)
                action = _action(choices, r, u, t, x, y, z)
                over = cartpole(state, n, action, constants)
                elapsed[n] += 1
                reward = rewards[min(t, rewards.shape[0] - 1), r, u]
                fine = abs(reward) <= _LARGEST
                for d in range(dim):
                    raw = np.float64(np.float32(state[d, n]))
                    if noised:
                        raw = _shown(raw, d, r, shows.noise[t, r, u, d], shows)
                    shown[r, u, d] = raw
                    fine = fine and abs(raw) <= _LARGEST
                stop = over or elapsed[n] >= max_episode_steps
                if not fine:
                    played.broken[r, u], stop, reward = True, True, 0.0
                    for d in range(dim):
                        shown[r, u, d] = 0.0
                played.going[r, u] = not stop
                played.over[r, u] = stop and fine
                played.returns[r, u] += reward
                played.lengths[r, u] += 1
                played.step[r, u] = t + 1
                if keeps:
                    ends = (over, stop)
                    _record(kept, r, u, t, x, action, reward, shown, ends, signals)
