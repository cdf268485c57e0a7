"""A user's package of tiny environments, one for each kind of space; `env.id=spaces_pkg:Two-v0`."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple

STEPS = 8


class Task(gym.Env):
    """A signal of 0 or 1 at every step; reward for each part of the action that answers it."""

    observation_space = Box(0.0, 1.0, (2,), np.float32)
    action_space = Discrete(2)

    def seen(self):
        return np.eye(2, dtype=np.float32)[self.signal]

    def score(self, action):
        return float(action == self.signal)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.signal = int(self.np_random.integers(2))
        return self.seen(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        reward = self.score(action)
        self.signal = int(self.np_random.integers(2))
        return self.seen(), reward, False, False, {}


class Two(Task):
    """Several choices, which do not all begin at 0."""

    action_space = MultiDiscrete([2, 3], start=[0, 5])

    def score(self, action):
        return 0.5 * float(action[0] == self.signal) + 0.5 * float(action[1] == 7 - self.signal)


class Grid(Two):
    """Choices in two dimensions."""

    action_space = MultiDiscrete([[2, 3], [2, 2]])

    def score(self, action):
        return float((action == self.signal).mean())


class Bits(Task):
    """Binary choices."""

    action_space = MultiBinary(3)

    def score(self, action):
        return float((action == self.signal).mean())


class Parts(Task):
    """Observations in parts; one is no number."""

    observation_space = Dict(
        {
            "image": Box(0, 255, (5, 6, 3), np.uint8),
            "place": Discrete(3),
            "more": Tuple([Discrete(2), MultiBinary(2)]),
        }
    )

    def seen(self):
        image = np.zeros((5, 6, 3), np.uint8)
        image[..., self.signal] = 200
        return {"image": image, "place": 1, "more": (self.signal, np.ones(2, np.int8))}


class Mission(Parts):
    """With a text, as MiniGrid has it."""

    observation_space = Dict({**Parts.observation_space.spaces, "mission": Text(9)})

    def seen(self):
        return {**super().seen(), "mission": "go"}


class Pair(Task):
    """Observations as a tuple."""

    observation_space = Tuple([Box(-1.0, 1.0, (2, 2), np.float64), Discrete(3, start=4)])

    def seen(self):
        return np.full((2, 2), self.signal, np.float64), 4 + self.signal


class Picture(Task):
    """Images [H, W, C]: the left or the right half is bright."""

    observation_space = Box(0, 255, (6, 8, 1), np.uint8)

    def seen(self):
        image = np.zeros((6, 8, 1), np.uint8)
        image[:, 4 * self.signal : 4 * self.signal + 4] = 255
        return image


class Channels(Picture):
    """Images [C, H, W]."""

    observation_space = Box(0, 255, (1, 6, 8), np.uint8)

    def seen(self):
        return np.moveaxis(super().seen(), 2, 0)


class Half(Task):
    """A Box of two dimensions with two, one and no bounds."""

    action_space = Box(
        np.array([[-2.0, 0.0], [-np.inf, -np.inf]]),
        np.array([[4.0, np.inf], [1.0, np.inf]]),
        dtype=np.float64,
    )

    def score(self, action):
        return -float(np.square(np.clip(action, -9, 9) - self.signal).mean())


BOXES = {
    "half": Box(0.1, 0.3, (2,), np.float16),
    "single": Box(0.1, 0.3, (2,), np.float32),
    "double": Box(0.1, 0.3, (2,), np.float64),
    "each": Box(np.array([-5.0, 0.1, -np.inf]), np.array([0.7, 0.1, 0.3]), dtype=np.float64),
    "point": Box(0.3, 0.3, (1,), np.float64),
    "nested": Box(np.array([[0.1], [-0.7]]), np.array([[0.3], [0.1]]), dtype=np.float64),
    "scalar": Box(-0.1, 0.3, (), np.float64),
    "huge": Box(-1e30, 1e30, (1,), np.float64),
    "open_half": Box(-np.inf, np.inf, (1,), np.float16),
    "integers": Box(-1, 1, (2,), np.int64),
    "bytes": Box(0, 255, (1,), np.uint8),
    "all": Box(-(2**63), 2**63 - 1, (1,), np.int64),
}


class Strict(Task):
    """Takes actions of exactly its space, in its type."""

    def __init__(self, box):
        self.action_space = BOXES[box]

    def score(self, action):
        assert isinstance(action, np.ndarray)
        assert action.dtype == self.action_space.dtype
        assert np.isfinite(action).all()
        return -float(np.minimum(np.abs(action.astype(float)), 1.0).sum())


for _name in BOXES:
    gym.register(
        f"Strict_{_name}-v0", entry_point=Strict, max_episode_steps=STEPS, kwargs={"box": _name}
    )
for _kind in (Two, Grid, Bits, Parts, Mission, Pair, Picture, Channels, Half):
    gym.register(f"{_kind.__name__}-v0", entry_point=_kind, max_episode_steps=STEPS)
