"""A room that is heated for one user. Importing the module registers the environment."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Thermostat(gym.Env):
    """Half a day in steps of 15 minutes. Temperatures are relative to the one that the user wants, in degrees.

    Observation: (room, outside). Action: heating off, at half or at full power. Reward: minus the distance of
    the room from the wanted temperature, minus the power. Users differ in insulation and in the weather.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self):
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = Discrete(3)

    def reset(self, *, seed=None, options=None):
        """See `gymnasium.Env.reset`."""
        super().reset(seed=seed)
        self.outside = self.np_random.uniform(-25.0, -5.0)
        self.loss = self.np_random.uniform(0.08, 0.12)
        self.room = self.np_random.normal(0.0, 3.0)
        return self._seen(), {}

    def step(self, action):
        """See `gymnasium.Env.step`."""
        self.room += self.loss * (self.outside - self.room) + 1.5 * action
        self.room += self.np_random.normal(0.0, 0.2)
        reward = -abs(self.room) - 0.5 * float(action)
        return self._seen(), reward, False, False, {}

    def _seen(self):
        return np.array([self.room, self.outside], np.float32)


gym.register("Thermostat-v0", entry_point=Thermostat, max_episode_steps=48)
