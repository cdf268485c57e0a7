"""PriMORL: what enters the gate, when releases end, and that the rest sees public data only."""

import json
import math
import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import members_of
from offline_runs import assert_same, config_of, played, session

from privrl_bench.algorithms.base import PublicSources
from privrl_bench.algorithms.value.actor_critic import Batch
from privrl_bench.errors import ConfigError
from privrl_bench.packs.offline.model_based.ensemble import Ensemble
from privrl_bench.packs.offline.model_based.offline_training import ModelBased
from privrl_bench.privacy.accounting.releases import joint_z
from privrl_bench.privacy.contribution import block_multipliers
from privrl_bench.training import loop as training
from privrl_bench.training.folder import read_lines
from privrl_bench.training.plan import make_plan
from privrl_bench.training.runner import run


def users_and_rows(one):
    """This round's users, and what they send."""
    users = one.collect(one.parts.algo.actor(one.state), one.round)
    rows, valid, _ = one.parts.algo.user_update(one.state, users, one.parts.streams).take()
    return users, torch.cat(list(rows.values()), dim=-1), valid


# --- rows


@pytest.mark.parametrize(("kind", "parts"), [("flat", 3), ("layer", 6)])
def test_all_blocks_together_have_the_radius_and_the_multiplier(sets, kind, parts) -> None:
    one = session("primorl", sets, f"algo.clipping={kind}", "privacy.clip=0.3", "privacy.z=0.5")
    blocks = one.parts.algo.blocks()
    assert len(blocks) == parts
    assert sum(b.size for b in blocks) == one.state.tensors["model"].shape[1]
    assert math.hypot(*(b.clip for b in blocks)) == pytest.approx(0.3)
    assert joint_z(block_multipliers(0.5, blocks).values()) == pytest.approx(0.5)
    assert one.parts.gate.event(0).z == 0.5
    # Noise of every block has the standard deviation z C.
    for b in blocks:
        assert b.clip * block_multipliers(0.5, blocks)[b.name] == pytest.approx(0.5 * 0.3)
    one.close()


@pytest.mark.parametrize("kind", ["flat", "layer"])
def test_rows_are_within_the_clip_and_absent_people_are_zero(sets, kind) -> None:
    words = (f"algo.clipping={kind}", "algo.model_lr=1", "privacy.clip=0.3")
    one = session("primorl", sets, *words)
    users, rows, valid = users_and_rows(one)
    assert torch.equal(valid, users.valid)
    assert 0 < valid.sum() < valid.numel()
    assert not rows[~valid].any()
    norms = rows[valid].double().norm(dim=-1)
    assert norms.max() <= 0.3 * (1 + 1e-5)
    assert norms.min() > 0.29  # so large a step meets the bound
    one.close()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_row_depends_on_nobody_else(sets, optimizer) -> None:
    one = session("primorl", sets, f"algo.model_optimizer={optimizer}")
    users, rows, _ = users_and_rows(one)
    (slot, *others) = users.valid[0].nonzero().squeeze(-1).tolist()
    for change in ("data", "absence"):
        other = replace(users, obs=users.obs.clone(), valid=users.valid.clone())
        other.obs[0, others] += 1.0
        other.valid[0, others] = change == "data"
        again, *_ = one.parts.algo.user_update(one.state, other, one.parts.streams).take()
        again = torch.cat(list(again.values()), dim=-1)
        assert torch.equal(again[0, slot], rows[0, slot])
        assert not (again[0, others] == rows[0, others]).all(-1).any()
    one.close()


@pytest.mark.parametrize("other", [[3], [0, 3, 2], [5, 1, 3, 2]])
def test_a_row_is_the_same_in_every_slot_and_cohort(sets, other) -> None:
    """Under Poisson sampling, who else joins moves a user to another slot: it must change nothing."""
    one = session("primorl", sets)

    def rows_of(*members: int) -> dict[int, torch.Tensor]:
        users = one.collector.collect(None, 0, members_of(members))
        rows, *_ = one.parts.algo.user_update(one.state, users, one.parts.streams).take()
        return dict(zip(members, torch.cat(list(rows.values()), dim=-1)[0], strict=False))

    here, there = rows_of(3, 0, 2), rows_of(*other)
    for user in here.keys() & there.keys():
        assert here[user].any()
        assert torch.equal(here[user], there[user])
    one.close()


def test_nobody_joined_is_a_round_of_zeros(sets) -> None:
    one = session("primorl", sets)
    users = one.collect(None, 0)
    nobody = replace(users, valid=torch.zeros_like(users.valid))
    rows, valid, _ = one.parts.algo.user_update(one.state, nobody, one.parts.streams).take()
    assert not valid.any()
    assert not any(x.any() for x in rows.values())
    one.close()


def test_the_terminal_tells_rounds_of_users_from_policy_training(sets, tmp_path, capsys) -> None:
    run([config_of("primorl", sets, "log.progress=true")], [tmp_path / "run"], [["x=1"]])
    said = capsys.readouterr()
    assert "plan    6 rounds of 10 users" in said.out
    assert "; then 2 iterations of policy training" in said.out
    assert "      6 rounds in " in said.out
    assert "8 of 8 iterations (100 %)" in said.err


def test_a_release_moves_replicas_that_go_on(sets) -> None:
    one = session("primorl", sets, seeds=(0, 1))
    algo, state = one.parts.algo, one.state.clone()
    state.tensors["stopped"][0] = 1.0
    values = {b.name: torch.full((2, b.size), float(k)) for k, b in enumerate(algo.blocks(), 1)}
    after = algo.server(state, SimpleNamespace(values=values, bypass={}))
    moved = after.tensors["model"] - state.tensors["model"]
    assert not moved[0].any()
    torch.testing.assert_close(moved[1], torch.cat([x[1] for x in values.values()]))
    assert algo.progress(after).releases == (0, 1)
    assert algo.progress(after).needs_release == (False, True)
    one.close()


# --- the end of releases


def test_patience_counts_looks_without_progress(sets, monkeypatch) -> None:
    """Public losses as written here: errors of a model that predicts zero with variance 1."""

    def zero(self, params, x):
        shape = (len(params), self.members, x.shape[1], self.targets)
        return torch.zeros(shape), torch.zeros(shape)

    one = session("primorl", sets, "algo.patience=2")
    algo, tensors = one.parts.algo, one.state.tensors
    monkeypatch.setattr(Ensemble, "predict", zero)
    seen = []
    for k, loss in enumerate([4.0, 3.0, 2.99, 2.5, 2.49, 2.6, 1.0]):
        algo._targets = torch.full_like(algo._targets, math.sqrt(loss))
        tensors = tensors | {"model": torch.full_like(tensors["model"], float(k))}
        tensors = tensors | algo._measured(tensors)
        best, waited = float(tensors["best_loss"]), float(tensors["waited"])
        seen.append(
            (round(best, 4), waited, bool(tensors["stopped"]), float(tensors["best"][0, 0]))
        )
    assert seen == [
        (4.0, 0, False, 0),
        (3.0, 0, False, 1),
        (3.0, 1, False, 1),  # by less than a hundredth
        (2.5, 0, False, 3),
        (2.5, 1, False, 3),
        (2.5, 2, True, 3),
        (2.5, 2, True, 3),  # not after the end
    ]
    one.close()


STILL = ("algo.model_lr=1e-9", "privacy.clip=1e-6", "algo.check_every=1", "algo.patience=2")


def test_an_early_end_releases_no_more_and_claims_no_less(sets, tmp_path) -> None:
    config = config_of("primorl", sets, *STILL, "rounds=8", "privacy.z=2", "log.lines=99")
    (result,) = run([config], [tmp_path / "run"], [["x=1"]])
    assert result.status == "done"
    lines = read_lines(tmp_path / "run" / "ledger.jsonl")
    assert {line["round"] for line in lines} == {0, 1, 2}
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert plan["releases"] == 8
    assert result.summary["epsilon"] == plan["epsilon"]
    assert result.summary["guarantee"]["epsilon"] == plan["epsilon"]
    assert result.summary["guarantee"]["status"] == "formal"
    rows = read_lines(tmp_path / "run" / "metrics.jsonl")
    assert rows[-1]["round"] == 5  # two turns of the policy's after the last release
    assert 0 < rows[-1]["privacy/epsilon"] < plan["epsilon"]  # the line of a curve, no guarantee
    assert result.summary["epsilon_planned"] == plan["epsilon"]
    saved = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["state"]
    assert float(saved["seen"]) == 3
    assert float(saved["iterations"]) == 2


def test_one_replica_may_end_before_another(sets) -> None:
    one = session("primorl", sets, seeds=(0, 1))
    one.step()
    one.state.tensors["stopped"][0] = 1.0
    model = one.state.tensors["model"].clone()
    while not one.over:
        one.step()
    assert one.parts.algo.progress(one.state).releases == (1, 6)
    assert one.round == 8
    assert torch.equal(one.state.tensors["model"][0], model[0])
    assert not torch.equal(one.state.tensors["model"][1], model[1])
    assert one.state.tensors["iterations"].flatten().tolist() == [2, 2]
    counts = [{line["round"] for line in ledger.lines} for ledger in one.parts.gate.ledgers]
    assert counts == [{0}, set(range(6))]
    one.close()


def test_a_budget_is_never_exceeded(sets) -> None:
    whole = make_plan([config_of("primorl", sets, "privacy.z=2")])
    budget = 0.6 * whole.gate.planned_epsilon(0)
    words = ("privacy.z=2", f"privacy.epsilon={budget}")
    parts = make_plan([config_of("primorl", sets, *words)])
    assert 1 <= parts.rounds < whole.rounds == 6
    assert parts.gate.planned_epsilon(0) <= budget
    more = make_plan([config_of("primorl", sets, "privacy.z=2", f"rounds={parts.rounds + 1}")])
    assert more.gate.planned_epsilon(0) > budget
    assert parts.iterations == parts.rounds + 2
    assert parts.algo._context.schedule.rounds == parts.rounds
    with pytest.raises(ConfigError, match=r"^privacy\.epsilon: z = 2 costs more than"):
        make_plan([config_of("primorl", sets, "privacy.z=2", "privacy.epsilon=1e-3")])


# --- after the gate


def test_policy_training_sees_public_data_only(sets, monkeypatch) -> None:
    """With other private trajectories and the same releases, everything after them is the same."""
    from privrl_bench.packs.offline import stored_users as source

    words = ("algo.public_ratio=0.5", "algo.averaging=4")
    one = session("primorl", sets, *words)
    calls, after_release = [], one.parts.algo.after_release

    def recorded(state, streams):
        calls.append((state.clone(), after_release(state, streams)))
        return calls[-1][1]

    monkeypatch.setattr(one.parts.algo, "after_release", recorded)
    while not one.over:
        one.step()
    one.close()
    assert len(calls) == 8

    real = source.open_dataset

    def poisoned(data_id, user_key):
        found = real(data_id, user_key)
        rows, steps = np.array(found.observations), np.array(found.rewards)
        private = source.split_users(found, 0.1).private_episodes
        for k in private:
            a, b = int(found.starts[k]), int(found.starts[k + 1])
            rows[a + k : b + k + 1] = 7.0
            steps[a:b] = -9.0
        return replace(found, observations=rows, rewards=steps)

    monkeypatch.setattr(source, "open_dataset", poisoned)
    other = make_plan([config_of("primorl", sets, *words)])
    obs = [np.asarray(p.users.data.trajectories.observations) for p in (one.parts, other)]
    assert (obs[0] != obs[1]).mean() > 0.8
    for before, after in calls:
        assert_same(other.algo.after_release(before, other.streams).tensors, after.tensors)


def test_dreams_begin_in_public_states(sets) -> None:
    one = session("primorl", sets)
    found = one.parts.algo.starts(
        one.state.tensors, [s.torch("after_release", 0) for s in one.parts.streams]
    )
    public = one.parts.algo._context.sources.transitions.obs
    assert found.shape == (1, 8, 3)
    assert all((public == x).all(-1).any() for x in found[0])
    one.close()


def test_the_share_of_public_steps(sets) -> None:
    one = session("primorl", sets, "algo.public_ratio=0.25", seeds=(0, 1))
    algo, marked = one.parts.algo, torch.full((2, 8), 99.0)
    wide = [marked[..., None].expand(2, 8, n) for n in (3, 1)]
    fake = Batch(wide[0], wide[1], marked, wide[0], torch.full((2, 8), 0.5))
    draws = [s.torch("after_release", 0) for s in one.parts.streams]
    mixed = algo.real(one.state.tensors, fake, draws)
    assert all(torch.equal(a[:, 2:], b[:, 2:]) for a, b in zip(mixed, fake, strict=True))
    public = algo._context.sources.transitions
    for step in (Batch(*(x[r, k] for x in mixed)) for r in range(2) for k in range(2)):
        (row,) = (public.obs == step.obs).all(-1).nonzero()[0].tolist()
        assert torch.equal(public.next_obs[row], step.next_obs)
        assert public.rewards[row] == step.reward
        torch.testing.assert_close(public.actions[row].float() / 2, step.action)  # torque within 2
        assert float(step.discount) == pytest.approx(0.99)
    one.close()


def test_private_starts_are_a_caveat(sets) -> None:
    one = session("primorl", sets, "algo.rollout_start=private")
    guarantee = one.parts.gate.guarantee(0)
    assert guarantee.status == "heuristic"
    assert list(guarantee.caveats) == ["private start states"]
    users = one.collect(None, 0)
    one.step()
    theirs = users.obs[0][users.mask[0]]
    assert all((theirs == x).all(-1).any() for x in one.state.tensors["starts"][0])
    one.close()


def test_without_noise_nothing_is_promised(sets) -> None:
    guarantee = session("primorl", sets, "privacy.z=0").parts.gate.guarantee(0)
    assert (guarantee.status, guarantee.epsilon) == ("none", math.inf)
    assert session("primorl", sets).parts.gate.guarantee(0).status == "formal"


def test_the_guarantee_says_which_data_are_public(sets) -> None:
    guarantee = session("primorl", sets).parts.gate.guarantee(0)
    assert guarantee.adjacency == "zero-out"
    assert "N = 54, the number of private users" in guarantee.notes["neighbours"]
    assert guarantee.unit == "one trajectory of at most 40 steps, in any of the rounds"
    assert guarantee.notes["dataset"].startswith("6 of 60 users are public and unprotected")
    assert "sampling" not in guarantee.notes


# --- resuming, replicas


def essence(folder):
    files = [(folder / name).read_bytes() for name in ("metrics.jsonl", "ledger.jsonl")]
    return files, torch.load(folder / "checkpoint.pt", weights_only=True)["state"]


@pytest.mark.fast_every(3)
@pytest.mark.parametrize(
    ("words", "cuts"),
    [((), (3, 7)), ((*STILL, "privacy.z=2"), (2, 4)), (("algo.rollout_start=private",), (3,))],
    ids=["plain", "stopped", "private starts"],
)
def test_a_run_cut_anywhere_equals_a_whole_one(sets, tmp_path, monkeypatch, words, cuts) -> None:
    config = config_of("primorl", sets, *words)
    run([config], [tmp_path / "whole"], [["x=1"]])
    step = training.Trainer.step
    for at in cuts:

        def interrupted(session, at=at):
            if session.round == at:
                os.kill(os.getpid(), signal.SIGTERM)
            step(session)

        monkeypatch.setattr(training.Trainer, "step", interrupted)
        (first,) = run([config], [tmp_path / f"cut{at}"], [["x=1"]])
        assert first.status == "interrupted"
        monkeypatch.setattr(training.Trainer, "step", step)
        assert run([config], [tmp_path / f"cut{at}"], [["x=1"]])[0].status == "done"
        files, state = essence(tmp_path / "whole")
        again, there = essence(tmp_path / f"cut{at}")
        assert files == again
        assert_same(state, there)


def test_two_seeds_together_are_two_seeds_alone(sets) -> None:
    both = played("primorl", sets, seeds=(0, 1))
    for r in range(2):
        lone = played("primorl", sets, seeds=(r,))
        for name, x in lone.items():
            torch.testing.assert_close(both[name][r : r + 1], x, rtol=1e-3, atol=1e-4, msg=name)


def test_rounds_with_layers_adam_and_private_starts_train(sets) -> None:
    words = ("algo.clipping=layer", "algo.model_optimizer=adam", "algo.uncertainty=ma")
    found = played("primorl", sets, *words, "algo.rollout_start=private", "algo.model_epochs=2")
    assert all(torch.isfinite(x).all() for x in found.values())
    start = session("primorl", sets, *words).state.tensors
    assert not torch.equal(found["actor"], start["actor"])


# --- what does not fit


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data.id=null"], r"^data\.id: algo=primorl learns from a dataset"),
        (["privacy=fixed"], r"^privacy\.sampling: algo=primorl takes poisson"),
        (["privacy=none"], r"^privacy: "),
        (["algo.clipping=none"], r"^algo\.clipping: "),
        (["algo.members=0"], r"^algo\.members: must be an integer >= 1"),
        (["env.obs_scaling=running"], r"^env\.obs_scaling: for a dataset use split"),
        (["env=cartpole"], r"^(data\.id|env): "),
        (["data.id=other-v0"], r"^data\.id: no dataset 'other-v0'"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(sets, words, message) -> None:
    with pytest.raises(ConfigError, match=message) as found:
        make_plan([config_of("primorl", sets, *words)])
    assert "\n" not in str(found.value)


def test_both_algorithms_need_a_public_part(sets) -> None:
    parts = session("primorl", sets).parts
    with pytest.raises(ConfigError, match=r"^data\.id: "):
        type(parts.algo)(parts.config.algo, replace(parts.algo._context, sources=PublicSources()))
    assert issubclass(type(parts.algo), ModelBased)
