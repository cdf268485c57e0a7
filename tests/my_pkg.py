"""A user's own package of Gymnasium environments, as `env.id=my_pkg:MyEnv-v0` finds it."""

import json
import os

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple

_clock = iter(range(10**9))  # what `drift` reads: not determined by seed and actions


class MyEnv(gym.Env):
    """Five states in a row; 1 goes right, 0 back to the start; reward 1 in the last state.

    In 20 steps always-right scores 17, uniform play 17 / 16 on average (four times right in a row).
    """

    def __init__(self):
        self.observation_space = Box(0.0, 1.0, (5,), np.float32)
        self.action_space = Discrete(2)
        self._state = 0

    def _obs(self):
        return np.eye(5, dtype=np.float32)[self._state]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._state = 0
        return self._obs(), {}

    def step(self, action):
        self._state = min(self._state + 1, 4) if action == 1 else 0
        return self._obs(), float(self._state == 4), False, False, {}


class Clock(gym.Env):
    """Observation (step, length), reward step; over after `length` steps, drawn from 2 to 7.

    Where `length` is 6 the environment is `spoiled`: "obs", "huge", "reward", "raise": bad second
    step; "reset": bad first observation.
    """

    def __init__(self, spoiled="", drift=False):
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = Discrete(3, start=-1)
        self._spoiled = spoiled
        self._drift = drift

    def _obs(self):
        return np.array([next(_clock) if self._drift else self._step, self._length], float)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        self._length = int(self.np_random.integers(2, 8))
        bad = self._spoiled == "reset" and self._length == 6
        return (np.array([np.nan, 0.0]) if bad else self._obs()), {}

    def step(self, action):
        assert action in (-1, 0, 1)
        self._step += 1
        obs, reward = self._obs(), float(self._step)
        if self._length == 6 and self._step == 2:
            if self._spoiled == "raise":
                raise RuntimeError("pump is stuck")
            if self._spoiled == "reward":
                reward = np.inf
            if self._spoiled == "obs":
                obs[0] = np.nan
            if self._spoiled == "huge":
                obs[0] = 1e200
        return obs, reward, self._step >= self._length, False, {}


class Point(gym.Env):
    """A point on a line, pushed by actions in [[-1, 0], [3, 4]]; goes on for ever."""

    def __init__(self):
        self.observation_space = Box(-np.inf, np.inf, (1, 2), np.float64)
        self.action_space = Box(np.array([[-1.0, 0.0]]), np.array([[3.0, 4.0]]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._place = self.np_random.normal(size=(1, 2))
        return self._place.copy(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self._place = 0.9 * self._place + 0.1 * action - 0.1
        return self._place.copy(), -float(np.square(self._place).sum()), False, False, {}


class DictObs(MyEnv):
    """Observations in two parts."""

    def __init__(self):
        super().__init__()
        self.observation_space = Dict({"a": Box(-1.0, 1.0, (2,), np.float32), "b": Discrete(3)})

    def _obs(self):
        return {"a": np.array([0.5, -0.5], np.float32), "b": 2}


class Exit(MyEnv):
    """Takes its whole process down, as a simulator that crashes or a full memory does."""

    def step(self, action):
        os._exit(7)


class ManyActions(MyEnv):
    """Actions that no policy here can choose."""

    def __init__(self):
        super().__init__()
        self.action_space = Tuple([Discrete(2), Discrete(3)])


class Broken(MyEnv):
    """Observations are no numbers from the third step of an episode on."""

    def step(self, action):
        obs, *rest = super().step(action)
        self.steps = getattr(self, "steps", 0) + 1
        return (obs * np.nan if self.steps > 2 else obs), *rest


def clinic_log(path):
    """What every `reset` of a clinic was given so far, in the order of the calls in one process."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Clinic(Clock):
    """Declares 12 real users; user k sees (step, k) and gets reward k + step. Writes down its resets."""

    metadata = {"users": 12, "render_modes": []}  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        if "CLINIC_LOG" in os.environ:
            with open(os.environ["CLINIC_LOG"], "a") as file:
                print(json.dumps([options, seed, os.getpid()]), file=file)
        assert set(options) in ({"user"}, {"user", "evaluation"})
        user = options["user"]
        assert user is None or (type(user) is int and 0 <= user < 12)
        super().reset(seed=seed)
        self._user = -1 if user is None else user
        return self._seen(), {}

    def _seen(self):
        return np.array([self._step, self._user], float)

    def step(self, action):
        _, _, *rest = super().step(action)
        return self._seen(), float(self._user + self._step), *rest


class SpecClinic(Clinic):
    """Declares its users in its spec."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, users):
        super().__init__()


class TalkingClinic(Clinic):
    """Gives what it was told to say as the reward of user 2."""

    def __init__(self, said=""):
        super().__init__()
        self._said = said

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, self._said if self._user == 2 else reward, *rest


class OddClinic(Clinic):
    """`metadata["users"]` is whatever is asked for."""

    def __init__(self, declared, **kwargs):
        super().__init__()
        self.metadata = {"users": declared}


class DeafClinic(Clinic):
    """An old `reset`, without options."""

    def reset(self, *, seed=None):
        return super().reset(seed=seed, options={"user": 0})


class RealClinic(Clinic):
    """Has no simulation."""

    def reset(self, *, seed=None, options=None):
        if options["user"] is None:
            raise KeyError("nobody")
        return super().reset(seed=seed, options=options)


for _name in ("Clinic", "DeafClinic", "OddClinic", "RealClinic"):
    gym.register(f"{_name}-v0", entry_point=globals()[_name], max_episode_steps=5)
gym.register("TalkingClinic-v0", entry_point=TalkingClinic, max_episode_steps=5)
gym.register("SpecClinic-v0", entry_point=SpecClinic, max_episode_steps=5, kwargs={"users": 12})
gym.register("Broken-v0", entry_point=Broken, max_episode_steps=20)
gym.register("MyEnv-v0", entry_point=MyEnv, max_episode_steps=20)
gym.register("NoLimit-v0", entry_point=MyEnv)
gym.register("Clock-v0", entry_point=Clock, max_episode_steps=5)
gym.register("Point-v0", entry_point=Point, max_episode_steps=30)
gym.register("DictObs-v0", entry_point=DictObs, max_episode_steps=20)
gym.register("Exit-v0", entry_point=Exit, max_episode_steps=20)
gym.register("ManyActions-v0", entry_point=ManyActions, max_episode_steps=20)
