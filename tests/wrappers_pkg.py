"""A user's package of wrappers; `env.wrappers=[wrappers_pkg:Twice]`."""

import gymnasium as gym
import numpy as np

STEPS = {"taken": 0}


class Twice(gym.ObservationWrapper):
    """Observations times k."""

    def __init__(self, env, k=2.0):
        super().__init__(env)
        self.k = k

    def observation(self, obs):
        return obs * self.k


class Total(gym.Wrapper):
    """Observations have the number of steps since this object was made, over all resets."""

    def __init__(self, env):
        super().__init__(env)
        self.taken = 0

    def reset(self, *, seed=None, options=None):
        obs, info = self.env.reset(seed=seed, options=options)
        return obs + np.float32(self.taken), info

    def step(self, action):
        self.taken += 1
        obs, *rest = self.env.step(action)
        return obs + np.float32(self.taken), *rest


class Shared(Total):
    """The same with a number that all objects share."""

    @property
    def taken(self):
        return STEPS["taken"]

    @taken.setter
    def taken(self, value):
        STEPS["taken"] = max(value, STEPS["taken"])


class Stronger(gym.Wrapper):
    """Changes the environment itself when it is made."""

    def __init__(self, env):
        super().__init__(env)
        env.unwrapped.force_mag *= 2


class Broken(gym.Wrapper):
    """Cannot be made."""

    def __init__(self, env):
        raise RuntimeError("no such wheel")


class NoWrapper:
    """Another class."""


gym.register(
    "Normalised-v0",
    entry_point="gymnasium.envs.classic_control:CartPoleEnv",
    max_episode_steps=30,
    additional_wrappers=(gym.wrappers.NormalizeObservation.wrapper_spec(epsilon=1e-8),),
)
