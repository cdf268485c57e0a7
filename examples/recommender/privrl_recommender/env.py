"""Sessions of recommendations for declared users. Importing the module registers the environment.

A session has 20 recommendations. Each is one of ten categories; the user clicks or does not. A user likes some
categories more than others. The policy does not see this taste. It sees what the user clicked in this session.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

USERS = 100_000  # declared users; the number is public
SESSION = 20  # recommendations in one session
CATEGORIES = ("news", "sport", "music", "film", "games", "food", "travel", "home", "science", "art")

# Public logits of a click, [cluster, category]. A user's own logits are distributed around one cluster's.
CLUSTERS = np.array(
    [
        [1.6, 1.8, -0.8, -2.5, -2.0, -2.5, -2.5, -2.5, -2.0, -2.5],
        [-2.5, -2.0, 1.0, 0.2, 1.8, -2.5, -2.5, -2.5, -1.5, -2.5],
        [-2.5, -2.5, -0.6, -2.0, -2.5, 1.8, 0.8, 1.6, -2.5, -2.0],
        [-0.8, -2.5, -0.8, -1.5, -2.5, -2.0, 1.2, -2.5, 1.8, 0.2],
        [-2.5, -2.5, 0.8, 1.6, -2.5, -2.0, -2.0, -2.0, -1.5, 1.6],
    ]
)
OWN_STD = 0.7  # standard deviation of a user's own part, in logits
BOREDOM = 0.9  # factor of the click probability for each repetition of a category in a row
LEAST_INTEREST = 0.75  # smallest value of this factor
_STORE = 2_026  # seed of the simulated store of tastes


def draw_taste(rng: np.random.Generator) -> np.ndarray:
    """Draw the taste of one user: a public cluster and a part of their own.

    Args:
        rng: source of the random numbers.

    Returns:
        [C] click probability of each category that was not shown just before, 0 to 1.
    """
    logits = CLUSTERS[rng.integers(len(CLUSTERS))] + OWN_STD * rng.standard_normal(len(CATEGORIES))
    return 1.0 / (1.0 + np.exp(-logits))


def load_taste(user: int) -> np.ndarray:
    """Load the taste of a declared user. It depends on the user's number only.

    This function stands for the access to the user's device. A real environment has no taste to load: it shows
    the recommendation to user k and returns their answer.

    Args:
        user: the user's number.

    Returns:
        [C] click probability of each category that was not shown just before, 0 to 1.
    """
    return draw_taste(np.random.default_rng([_STORE, user]))


class Recommender(gym.Env):
    """One session of one user.

    Action: the category of the next recommendation. Reward: 1 for a click, else 0.

    Observation, [3 C + 1] with C = 10, all in this session: clicks of each category; recommendations of each
    category; how many times in a row the last category has been shown, at its place, and 0 at the others;
    the recommendations left.

    Args:
        users: number N of declared users, which privrl_bench reads; None: every session has a newly drawn
            user who belongs to the simulation, for references without privacy and for tests of a configuration.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, users: int | None = USERS) -> None:
        if users is not None and users < 1:
            raise ValueError(f"users must be an integer >= 1 or None, got {users}")
        count = len(CATEGORIES)
        self.users = users
        self.observation_space = Box(0.0, float(SESSION), (3 * count + 1,), np.float32)
        self.action_space = Discrete(count)
        self._seen = np.zeros(3 * count + 1, np.float32)
        self._taste: list[float] = []
        self._last, self._in_a_row, self._left = -1, 0, SESSION

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start a session.

        Args:
            seed: of the user's clicks, and of the taste of a user who is not declared.
            options: `{"user": k}` starts a session of declared user k, 0 <= k < N. `{"user": None}` and no
                options start one of a newly drawn taste, which is not the taste of a declared user.

        Returns:
            The observation [3 C + 1] and an empty dictionary.

        Raises:
            ValueError: there is no user k.
        """
        super().reset(seed=seed)
        user = (options or {}).get("user")
        if user is None:
            taste = draw_taste(self.np_random)
        elif self.users is not None and 0 <= user < self.users:
            taste = load_taste(user)
        else:
            raise ValueError(f"there is no user {user}: the environment declares {self.users}")
        self._taste = taste.tolist()
        self._last, self._in_a_row, self._left = -1, 0, SESSION
        self._seen[:] = 0.0
        self._seen[-1] = SESSION
        return self._seen.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Recommend a category.

        Args:
            action: the category, 0 <= action < C.

        Returns:
            The observation [3 C + 1], the reward (1 for a click, else 0), whether the session is over, False,
            and an empty dictionary.
        """
        category, count, seen = int(action), len(CATEGORIES), self._seen
        repeated = self._in_a_row if category == self._last else 0
        interest = max(LEAST_INTEREST, BOREDOM**repeated)
        click = float(self.np_random.random() < self._taste[category] * interest)
        if self._last >= 0:
            seen[2 * count + self._last] = 0.0
        self._last, self._in_a_row = category, repeated + 1
        self._left -= 1
        seen[category] += click
        seen[count + category] += 1.0
        seen[2 * count + category] = self._in_a_row
        seen[-1] = self._left
        return seen.copy(), click, self._left == 0, False, {}


gym.register(
    "Recommender-v0",
    entry_point="privrl_recommender.env:Recommender",
    max_episode_steps=SESSION,
    kwargs={"users": USERS},
)
