"""Private scaling: one user's moment update is bounded and their own, and the scaling converges."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import CHOICE, context, own, random_users, rollout_of, sized
from test_runner import train

from privrl_bench.algorithms.policy_gradient.dppg import Dppg
from privrl_bench.algorithms.policy_gradient.moments import PrivateMoments
from privrl_bench.algorithms.policy_gradient.policy_gradient_settings import DppgConfig
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.errors import ConfigError
from privrl_bench.functional.rng import Streams
from privrl_bench.types import State, UserBatch

BOTH = context(CHOICE, 0.02, 10, 3, learns_obs=True, learns_reward=True)
LENGTHS = [[9, 4, 1], [2, 9, 7]]


def start(moments: PrivateMoments, replicas: int = 2, round_index: int = 0) -> State:
    return State(round_index, moments.init(replicas))


def scaled(users: UserBatch, moments: PrivateMoments, state: State) -> UserBatch:
    """The observations that the rollout returns under the current scaling."""
    now = moments.scaling(state)
    obs = (users.obs - now.obs_mean[:, None, None]) / now.obs_std[:, None, None]
    rewards = users.rewards * now.reward_scale[..., None]
    changed = {"obs": obs, "rewards": rewards}
    names = ("obs", "next_obs", "actions", "rewards", "terminated", "done", "mask", "valid")
    return UserBatch(**({n: getattr(users, n) for n in names} | changed))


def test_it_is_off_unless_the_environment_asks_for_it() -> None:
    off = PrivateMoments(context(CHOICE, 0.02, 10, 3), 3.0, 3.0)
    assert off.blocks() == ()
    assert off.init(2) == {}
    assert off.scaling(State(0, {})) is None
    sizes = {
        (obs, reward): [
            b.size
            for b in PrivateMoments(
                context(CHOICE, 0.02, 10, 3, learns_obs=obs, learns_reward=reward), 3.0, 3.0
            ).blocks()
        ]
        for obs in (False, True)
        for reward in (False, True)
    }
    assert sizes == {(False, False): [], (True, False): [6], (False, True): [1], (True, True): [7]}


def test_its_bound_and_noise_are_the_configured_ones() -> None:
    (block,) = Dppg(DppgConfig(moments_clip=0.7, moments_noise_ratio=5.0), BOTH).moments.blocks()
    assert (block.clip, block.noise_ratio) == (0.7, 5.0)


def test_a_wish_is_mean_log_spread_and_log_reward_of_their_own_steps() -> None:
    moments = PrivateMoments(BOTH, 3.0, 3.0)
    users = random_users(CHOICE, 2, 3, 9, seed=1, lengths=LENGTHS)
    moment_updates = moments.user_update(users)["moments"]
    for r in range(2):
        for u in range(3):
            steps = LENGTHS[r][u]
            obs, rewards = users.obs[r, u, :steps], users.rewards[r, u, :steps]
            spread = (obs**2).mean(0).sqrt()
            size = rewards.abs().mean().reshape(1)
            expected = torch.cat([obs.mean(0), spread.log(), size.log()]).clamp(-1, 1)
            torch.testing.assert_close(moment_updates[r, u], expected)


def test_wishes_are_bounded_whatever_they_saw_and_nobodys_without_rewards() -> None:
    moments = PrivateMoments(BOTH, 3.0, 3.0)
    users = random_users(CHOICE, 1, 3, 9, seed=1)
    users.obs[0, 0] *= 1e6
    users.rewards[0, 1] = 0.0
    moment_updates = moments.user_update(users)["moments"]
    assert moment_updates.abs().max() <= 1.0
    assert moment_updates[0, 1, -1] == 0.0


def test_the_scaling_finds_mean_spread_and_reward_size() -> None:
    moments = PrivateMoments(BOTH, 3.0, 3.0)
    state = start(moments)
    for index in range(60):
        users = random_users(CHOICE, 2, 3, 200, seed=index)
        users.obs = users.obs * torch.tensor([0.5, 8.0, 1.0]) + torch.tensor([2.0, 0.0, -1.0])
        users.rewards *= 30.0
        state.round = index
        moment_update = moments.user_update(scaled(users, moments, state))["moments"].mean(1)
        released = SimpleNamespace(values={"moments": moment_update})
        state.tensors |= moments.server(state, released)
    found = moments.scaling(state)
    centre = torch.tensor([2.0, 0.0, -1.0]).expand(2, 3).double()
    spread = torch.tensor([0.5, 8.0, 1.0]).expand(2, 3).double()
    assert ((found.obs_mean - centre).abs() < 0.35 * spread + 0.2).all()
    assert ((found.obs_std / spread).log().abs() < 0.4).all()
    # E|N(0, 30)| = 23.9
    assert ((found.reward_scale * 23.9).log().abs() < 0.4).all()


def test_the_rollout_hands_out_what_the_scaling_says() -> None:
    algo = Dppg(DppgConfig(hidden=[4]), BOTH)
    state = algo.init([Streams(0)])
    state.tensors["obs_mean"] += 0.5
    state.tensors["obs_log_std"] += 1.0
    state.tensors["reward_log_scale"] -= 2.0
    plain, actor = rollout_of(own("MyEnv", user="fresh"), [0], 2, 12)
    raw = plain.collect(actor, 0, sized(2))
    config = own("MyEnv", user="fresh", obs_scaling="private", reward_scaling="private")
    learned, _ = rollout_of(config, [0], 2, 12)
    found = algo.scaling(state)
    learned.scaler.use(
        type(found)(torch.full((1, 5), 0.5), torch.full((1, 5), 2.0), found.reward_scale)
    )
    seen = learned.collect(actor, 0, sized(2))
    torch.testing.assert_close(seen.obs[:, :, 0], (raw.obs[:, :, 0] - 0.5) / 2.0)
    torch.testing.assert_close(seen.rewards[:, :, 0], raw.rewards[:, :, 0] * float(np.exp(-2.0)))


def test_a_run_with_private_scaling_is_formal_resumes_and_exports_it(tmp_path) -> None:
    words = ["env=cartpole", "env.obs_scaling=private", "env.reward_scaling=private"]
    words += ["total_steps=20_000", "eval.episodes=1", "log=none", "log.plot=false"]
    result = train(compose(later_wins([*words, "log.progress=false"])), tmp_path / "run")
    assert result.summary["guarantee"]["status"] == "formal"
    policy = torch.load(tmp_path / "run" / "policy.pt", weights_only=True)
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["state"]
    assert torch.equal(policy["private_obs_mean"], state["obs_mean"][0])
    assert torch.equal(policy["private_obs_std"], state["obs_log_std"][0].exp())
    assert (policy["private_obs_std"] != 1).all()


def test_pooled_algorithms_refuse_it() -> None:
    with pytest.raises(ConfigError, match=r"algo=(ppo|a2c) does not make"):
        compose(["algo=ppo", "env.obs_scaling=private"])
