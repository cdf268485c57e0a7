"""`privrl audit epsilon` end to end: what it prints, writes and refuses, and that attacks have power."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from privrl_bench.algorithms.policy_gradient.critics import PrivateCritic
from privrl_bench.audit import bounds, canary, end_to_end, one_run
from privrl_bench.audit import end_to_end as crafted
from privrl_bench.audit import lower_bound as epsilon
from privrl_bench.cli import audit as cli
from privrl_bench.composition.compose import compose
from privrl_bench.config.overrides import later_wins
from privrl_bench.training.plan import make_plan

SMALL = (
    *("env=cartpole", "algo=dppg", "algo.hidden=[8]", "algo.epochs=1", "algo.minibatches=1"),
    *("algo.critic_features=16", "env.user_steps=4", "privacy.users_per_round=6"),
)
FORMAL = (*SMALL, "algo.critic=private", "env.user=fresh")


def silent(text):
    pass


@pytest.fixture
def few_shadows(monkeypatch):
    monkeypatch.setattr(end_to_end, "_SHADOWS", 40)
    monkeypatch.setattr(crafted, "_CANDIDATES", 2)
    monkeypatch.setattr(crafted, "_CANDIDATE_SHADOWS", 20)


def command(*words):
    return cli.main(["epsilon", *words])


# -- the command


def test_all_attacks_leave_their_files_and_say_what_was_measured(tmp_path, capsys, few_shadows):
    words = ["--attack", "all", "--scores", "200", "--canaries", "120", "--replicas", "40"]
    code = command(*words, "--later-rounds", "1", "--folder", str(tmp_path), *FORMAL)
    shown = capsys.readouterr().out
    assert code == 0, shown
    for text in (
        "delta 1e-05, formal: ",
        "epsilon >=",
        "of the claim",
        "nothing contradicts the claim",
    ):
        assert text in shown
    assert (tmp_path / "audit.png").stat().st_size > 10_000
    content = json.loads((tmp_path / "audit.json").read_text())
    names = [finding["attack"] for finding in content["findings"]]
    assert names == [
        "canary",
        "one-run",
        "end-to-end, user's round",
        "end-to-end, all rounds",
        "end-to-end, later rounds",
    ]
    for finding in content["findings"][:-1]:
        assert finding["claim"] == pytest.approx(4.377178, abs=1e-5)
        assert all(
            b["epsilon"] <= finding["claim"] for b in finding["bounds"] if b["form"] == "gdp"
        )
    assert content["findings"][-1]["claim"] == 0.0
    assert content["claimed"]["status"] == "formal"
    assert content["contradictions"] == []


def test_a_bound_above_the_claim_ends_with_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(canary, "claim_of", lambda run: (0.1, "a false promise"))
    code = command("--scores", "200", "--folder", str(tmp_path), *FORMAL)
    shown = capsys.readouterr().out
    assert code == 1
    assert "CONTRADICTION  canary: epsilon >=" in shown
    assert "0.1 is claimed for a false promise" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["privacy.z=0"], "privacy.z: without noise epsilon is infinite"),
        (["algo=ppo"], "privacy=none claims nothing"),
        (["--attack", "canaries"], "--attack: must be one of canary"),
        (["--confidence", "1"], "--confidence: must be in"),
        (["--scores", "many"], "--scores: must be an integer, got 'many'"),
        (["--replicas", "2"], "--replicas: must be an integer >= 20"),
        (["--nonsense"], "--nonsense: no such argument"),
        (["privacy.zz=1"], "privacy.zz: no such key"),
        (["env=cartpol"], "did you mean cartpole"),
        (
            ["--attack", "one-run", "privacy=poisson", "privacy.population=1000"],
            "one-run is for cohorts of fixed size",
        ),
        (
            ["--attack", "end-to-end", "privacy=poisson", "privacy.population=1000"],
            "end-to-end is for cohorts of fixed size",
        ),
    ],
)
def test_bad_input_is_one_line_and_two(words, message, capsys):
    assert command(*words) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def test_help_names_every_option(capsys):
    assert command("--help") == 0
    shown = capsys.readouterr().out
    for option in ("--attack", "--scores", "--replicas", "--confidence", "--folder", "--full-size"):
        assert option in shown


def test_the_default_folder_has_no_odd_characters():
    words = ["env=gym", "env.id=my_pkg:Box-v0", "privacy.z=0.5"]
    folder = epsilon.default_folder(compose(words), words, epsilon.Options())
    assert folder == Path("outputs/audit/dppg/Box-v0/z=0.5,seed=0")


@pytest.mark.slow
def test_audits_that_differ_have_folders_of_their_own():
    """They were written over each other: attacks, samplings and mechanisms of one z."""
    words = [
        [],
        ["privacy=poisson", "privacy.population=1000"],
        ["algo.critic=private"],
        ["seed=1"],
    ]
    options = [epsilon.Options(attack=name) for name in (*epsilon.ATTACKS, "all")]
    options.append(epsilon.Options(scores=400))
    folders = {
        epsilon.default_folder(compose(["algo=dppg", "env=cartpole", *some]), some, one)
        for some in words
        for one in options
    }
    assert len(folders) == len(words) * len(options)
    assert Path("outputs/audit/dppg/cartpole/attack=one-run,seed=1") in folders


@pytest.mark.fast_every(3)
@pytest.mark.parametrize("user", ["fresh", "episode", "segment"])
@pytest.mark.parametrize("attack", epsilon.ATTACKS)
def test_small_sizes_claim_the_same_epsilon_and_keep_what_was_given(user, attack):
    claimed = compose(["env=cartpole", f"env.user={user}", "algo.epochs=3"])
    small, changes = epsilon.shrunk(claimed, attack, {"env.user", "algo.epochs"})
    assert changes
    assert small.algo.epochs == 3
    plans = [make_plan([c]).gate for c in (claimed, small)]
    assert plans[0].planned_epsilon(0) == plans[1].planned_epsilon(0)
    assert plans[0].participation == plans[1].participation


# -- canaries


@pytest.mark.slow
@pytest.mark.parametrize("z", [0.5, 2.0])
@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_canary_scores_are_the_gaussians_of_the_claim(z, adjacency):
    config = compose(later_wins([*FORMAL, f"privacy.z={z}", f"privacy.adjacency={adjacency}"]))
    run = canary.run_canaries(config, 800, 4, silent)
    inside, outside = run.split()
    start = -run.mu / 2 if adjacency == "replace_one" else 0.0
    assert run.mu == pytest.approx((2 if adjacency == "replace_one" else 1) / z)
    assert stats.kstest(outside - start, "norm").pvalue > 1e-3
    assert stats.kstest(inside - start - run.mu, "norm").pvalue > 1e-3


@pytest.mark.fast_every(6)
@pytest.mark.parametrize("words", [["rounds=3"], ["total_steps=100"], ["privacy.population=60"]])
@pytest.mark.parametrize("attack", ["canary", "one-run"])
def test_the_rounds_are_those_of_the_attack(words, attack, tmp_path, capsys):
    sizes = ["--attack", attack, "--scores", "40", "--canaries", "100", "--folder", str(tmp_path)]
    code = command(*sizes, *FORMAL, *words)
    assert code == 0, capsys.readouterr().out


def test_the_rounds_of_the_end_to_end_attack_are_many_too():
    parts = crafted.parts_of(compose([*FORMAL, "rounds=3"]), [0])
    assert parts.rounds == crafted.parts_of(compose(FORMAL), [0]).rounds


@pytest.mark.slow
def test_canaries_of_one_round_do_not_share_noise():
    run = canary.run_canaries(compose(FORMAL), 1600, 4, silent)
    noise = run.scores - run.coins * run.mu
    together = np.corrcoef(noise.T) - np.eye(4)
    assert np.abs(together).max() < 5 / math.sqrt(len(noise))


def test_the_canary_attack_names_the_shared_critic_as_not_tested():
    finding = canary.attack(
        compose(later_wins([*SMALL, "algo.critic=shared", "env.user=fresh"])),
        100,
        4,
        0.95,
        silent,
    )
    assert any("shared critic" in note for note in finding.notes)


def test_cohort_sizes_are_tested_with_the_cap():
    rng = np.random.default_rng(0)
    honest = np.minimum(rng.binomial(300, 6 / 300, size=2000), 10).tolist()
    assert bounds.cohort_chance(honest, 300, 6, 10) > 1e-3
    assert bounds.cohort_chance([6] * 2000, 300, 6, 10) < 1e-10
    uncapped = rng.binomial(300, 6 / 300, size=2000)
    assert bounds.cohort_chance(uncapped[uncapped < 10].tolist(), 300, 6, 10) < 1e-4


# -- one run


@pytest.mark.slow
def test_one_run_is_below_the_claim_and_not_nothing():
    config = compose(later_wins([*FORMAL, "privacy.z=0.5"]))
    finding = one_run.attack(config, 900, 0.95, silent)
    assert 0.5 < finding.best.epsilon < finding.claim
    assert finding.best.details["right"] <= finding.best.details["guesses"]


# -- end to end


@pytest.mark.slow
def test_a_formal_run_depends_on_the_user_through_the_gate_only(few_shadows):
    config = compose(later_wins([*FORMAL, "privacy.z=0.3", "algo.epochs=8", "env.user_steps=8"]))
    own, both, later = end_to_end.attack(config, 200, 1, 0.95, silent)
    assert 0 < own.best.epsilon < own.claim
    assert np.array_equal(own.inside, both.inside)
    assert not later.inside.any()
    assert not later.outside.any()
    assert not later.problems
    assert later.best.epsilon == later.claim == 0.0


def test_a_shared_critic_depends_on_the_user(few_shadows):
    config = compose(later_wins([*SMALL, "algo.critic=shared", "env.user=fresh"]))
    *_, later = end_to_end.attack(config, 20, 1, 0.95, silent)
    assert any(
        "depends on the user besides its releases in: critic" in note for note in later.notes
    )
    assert later.inside.any()
    assert later.claim is None
    assert not later.exceeded()


@pytest.mark.slow
def test_a_leak_beside_the_gate_is_found_in_later_rounds(few_shadows, monkeypatch):
    """A critic that claims to be formal and learns from all users without noise."""
    real = PrivateCritic.user_update

    def leaky(self, state, users, lesson):
        rows, bypass = real(self, state, users, lesson)
        seen = torch.where(users.valid[..., None], rows["critic"], 0.0).mean(1)
        state.tensors["critic"] = state.tensors["critic"] + 10 * seen
        return rows, bypass

    monkeypatch.setattr(PrivateCritic, "user_update", leaky)
    config = compose(later_wins([*FORMAL, "privacy.z=0.3", "algo.epochs=8", "env.user_steps=8"]))
    *_, later = end_to_end.attack(config, 200, 2, 0.95, silent)
    assert any("but training depends on the user besides" in line for line in later.problems)
    assert later.exceeded()


def test_the_crafted_user_stays_within_public_bounds_and_no_other_user_changes():
    parts = make_plan([compose(FORMAL)] * 2)
    from privrl_bench.training.trainer import Trainer

    session = Trainer(parts)
    users = session.collect(parts.algo.actor(session.state), 0)
    made = crafted.craft(users, torch.tensor([True, False]), torch.ones(4), parts)
    session.close()
    assert made.valid[:, 0].tolist() == [True, False]
    assert float(made.rewards[:, 0].abs().max()) <= parts.config.env.reward_clip
    for name in ("obs", "actions", "rewards", "valid", "done"):
        assert torch.equal(getattr(made, name)[:, 1:], getattr(users, name)[:, 1:])


@pytest.mark.slow
@pytest.mark.parametrize(("z", "truth"), [(0.5, 9.997256), (1.0, 4.377178), (2.0, 1.993091)])
def test_the_tight_bound_is_between_eight_tenths_and_all_of_epsilon(z, truth):
    config = compose(later_wins([*FORMAL, f"privacy.z={z}"]))
    finding = canary.attack(config, 20_000, 4, 0.95, silent)
    assert finding.claim == pytest.approx(truth, abs=1e-5)
    assert 0.8 * truth <= finding.best.epsilon <= truth
    assert bounds.epsilon_of_mu(finding.best.mu, 1e-5) == finding.best.epsilon


@pytest.mark.slow
def test_the_tight_bound_on_correlated_noise_is_between_eight_tenths_and_all_of_epsilon():
    config = compose(later_wins([*FORMAL, "privacy=correlated", "privacy.z=1"]))
    finding = canary.attack(config, 4000, 6, 0.95, silent)
    assert finding.claim == pytest.approx(4.377178, abs=1e-5)
    assert 0.8 * finding.claim <= finding.best.epsilon <= finding.claim
    assert not finding.problems


@pytest.mark.slow
def test_users_who_have_not_arrived_are_drawn_too() -> None:
    """DQN's users arrive one after the other; the size of a draw does not depend on arrivals."""
    words = ["algo=dqn", "env=cartpole", "env.max_episode_steps=8", "algo.hidden=[4]"]
    run = canary.run_canaries(compose(later_wins([*words, "privacy.z=1"])), 240, 4, silent)
    assert canary.contradictions(run) == []
    privacy = run.parts.config.privacy
    assert abs(np.mean(run.cohorts) - privacy.users_per_round) < 4.0


@pytest.mark.fast_every(2)
@pytest.mark.parametrize("more", [[], ["privacy.population=10_000"]], ids=["epsilon", "population"])
def test_the_words_of_a_planned_run_are_attacked_at_its_noise(tmp_path, capsys, more):
    code = command(
        *("--scores", "40", "--folder", str(tmp_path), *FORMAL), "privacy.epsilon=1", *more
    )
    assert code == 0, capsys.readouterr().out
    (finding,) = json.loads((tmp_path / "audit.json").read_text())["findings"]
    assert finding["claim"] == pytest.approx(1.0, rel=1e-3)
