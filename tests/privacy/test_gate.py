"""The gate: what a user can change, how much noise there is, and what it refuses."""

import json
import math
import os
from dataclasses import replace

import pytest
import torch
from helpers import release
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.config.schema import PrivacyConfig
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent
from privrl_bench.privacy.contribution import (
    Block,
    Contribution,
    Released,
    block_multipliers,
    on_grid,
)
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.grid import MOST_USERS
from privrl_bench.privacy.guarantee import Unit
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.privacy.noise import SecureNoise, SeededNoise

USERS, SIZE = 4, 6
ONE = (Block("actor", SIZE, 0.5),)
TWO = (Block("actor", SIZE, 0.5), Block("critic", 3, 2.0, noise_ratio=3.0))


def make_account(blocks=ONE, z=1.0, rounds=10, seeds=(0,), caveats=(), unit=None, **config):
    settings_ = {"users_per_round": USERS, **config}
    configs = [PrivacyConfig(z=z, **settings_) for _ in seeds]
    return Gate(
        configs=configs,
        blocks=blocks,
        unit=unit or Unit("one user", 1),
        rounds=rounds,
        noises=[SeededNoise(seed, 0) for seed in seeds],
        ledgers=[Ledger(None) for _ in seeds],
        caveats=dict(caveats),
    )


def rows_for(blocks, scale=1.0, users=USERS, replicas=1):
    stream = torch.Generator().manual_seed(1)
    return {b.name: scale * torch.randn(replicas, users, b.size, generator=stream) for b in blocks}


def send(plan, rows, index=0, valid=None, bypass=None):
    first = next(iter(rows.values()))
    valid = torch.ones(first.shape[:2], dtype=torch.bool) if valid is None else valid
    return release(plan, Contribution(dict(rows), valid, bypass), index)


@settings(max_examples=60)
@given(
    user=st.integers(0, USERS - 1),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 1e6, float("inf"), float("nan")]),
)
def test_zeroing_one_user_moves_the_noised_sum_by_at_most_one_joint_unit(user, scale):
    """Distance in units of the noise is at most 1/z, whatever the user sent."""
    z = 0.7
    rows = rows_for(TWO)
    for block in TWO:
        rows[block.name][0, user] *= scale
    without = {name: x.clone() for name, x in rows.items()}
    for x in without.values():
        x[0, user] = 0.0
    here, there = send(make_account(TWO, z=z), rows), send(make_account(TWO, z=z), without)
    multipliers = block_multipliers(z, TWO)
    distance = 0.0
    for block in TWO:
        moved = (here.values[block.name] - there.values[block.name]).double() * USERS
        assert float(moved.norm()) <= block.clip * 1.001
        distance += float(moved.norm() / (multipliers[block.name] * block.clip)) ** 2
    assert math.sqrt(distance) <= 1 / z * 1.001


@pytest.mark.parametrize("z", [0.1, 1.0, 3.0])
def test_noise_of_each_block_has_the_planned_size(z):
    blocks = (Block("actor", 20_000, 0.5), Block("critic", 20_000, 2.0, noise_ratio=3.0))
    zeros = {b.name: torch.zeros(1, USERS, b.size) for b in blocks}
    released = send(make_account(blocks, z=z), zeros)
    multipliers = block_multipliers(z, blocks)
    assert math.isclose(sum(m**-2 for m in multipliers.values()), z**-2)
    for block in blocks:
        std = float(released.values[block.name].double().std()) * USERS
        assert std == pytest.approx(multipliers[block.name] * block.clip, rel=0.03)


def test_the_released_value_is_the_clipped_sum_over_the_public_number_of_users():
    rows = {"actor": torch.full((1, USERS, SIZE), 0.01)}
    valid = torch.tensor([[True, True, False, False]])
    released = send(make_account(z=0.0), rows, valid=valid)
    assert torch.allclose(released.values["actor"], torch.full((1, SIZE), 0.01 * 2 / USERS))


def test_a_bad_number_in_one_block_voids_the_users_whole_row():
    rows = {b.name: torch.full((1, USERS, b.size), 0.01) for b in TWO}
    rows["critic"][0, 2, 0] = float("inf")
    plan = make_account(TWO, z=0.0)
    released = send(plan, rows)
    assert torch.allclose(released.values["actor"], torch.full((1, SIZE), 0.01 * 3 / USERS))
    assert plan.diagnostics[0]["invalid_users"] == 1


def test_a_contribution_is_released_once():
    plan = make_account()
    contribution = Contribution(rows_for(ONE), torch.ones(1, USERS, dtype=torch.bool))
    release(plan, contribution, 0)
    with pytest.raises(PrivacyError, match="released already"):
        release(plan, contribution, 1)


def test_only_the_gate_makes_released():
    with pytest.raises(PrivacyError):
        Released({"actor": torch.zeros(1, SIZE)}, {}, key=object())
    real = send(make_account(), rows_for(ONE))
    assert not hasattr(real, "key")
    with pytest.raises((ValueError, TypeError)):
        replace(real, values={"actor": torch.zeros(1, SIZE)})


def test_rounds_are_released_in_order():
    plan = make_account()
    everyone = torch.ones(1, USERS, dtype=torch.bool)
    release(plan, Contribution(rows_for(ONE), everyone), 1)
    for index in (1, 0, -1):
        with pytest.raises(PrivacyError, match="out of order"):
            release(plan, Contribution(rows_for(ONE), everyone), index)


def test_replicas_differ_in_z_only_and_the_mechanism_is_known():
    good = PrivacyConfig(users_per_round=USERS, clip=0.5)
    unit = Unit("u", 1)

    def build(*configs):
        noises = [SeededNoise(0, 0)] * len(configs)
        return Gate(list(configs), ONE, unit, 5, noises, [Ledger(None)] * len(configs))

    build(good, replace(good, z=7.0))
    with pytest.raises(PrivacyError, match="differ in z only"):
        build(good, replace(good, clip=0.6))
    unknown = replace(good)
    unknown.mechanism = "unheard_of"
    with pytest.raises((PrivacyError, ConfigError), match="unheard_of"):
        build(unknown)


def test_a_ledger_with_gaps_or_of_other_settings_gives_no_guarantee(tmp_path):
    plan = make_account()
    send(plan, rows_for(ONE))
    assert plan.guarantee(0, 1).status == "formal"
    with pytest.raises(PrivacyError, match="no line of round 1"):
        plan.guarantee(0, 2)
    ledger = Ledger(None)
    ledger.intend(
        0, ReleaseEvent("gaussian", 9.0, "zero_out", sampling="fixed"), {}, repeatable=True
    )
    config = PrivacyConfig(users_per_round=USERS, clip=0.5)
    with pytest.raises(PrivacyError, match="other settings"):
        Gate([config], ONE, Unit("u", 1), 5, [SeededNoise(0, 0)], [ledger])


def test_a_line_without_its_sampler_is_of_other_settings_and_has_no_epsilon(tmp_path):
    ledger, path = Ledger(tmp_path / "ledger.jsonl"), tmp_path / "ledger.jsonl"
    config = PrivacyConfig(users_per_round=USERS, clip=0.5)
    line = ReleaseEvent("gaussian", 1.0, "zero_out", sampling="fixed")
    ledger.intend(0, line, {}, repeatable=True)
    assert json.loads(path.read_text())["sampling"] == "fixed"
    Gate([config], ONE, Unit("u", 1), 5, [SeededNoise(0, 0)], [Ledger(path)])
    path.write_text(path.read_text().replace('"sampling": "fixed", ', ""))
    old = Ledger(path)
    with pytest.raises(PrivacyError, match="other settings"):
        Gate([config], ONE, Unit("u", 1), 5, [SeededNoise(0, 0)], [old])
    with pytest.raises(PrivacyError, match="epsilon is unknown"):
        ledger_epsilon(old.releases(None), 1e-5)
    for q in (1.0, 0.5):
        with pytest.raises(PrivacyError, match="'unheard_of': epsilon is unknown"):
            ledger_epsilon([replace(line, sampling="unheard_of", q=q)], 1e-5)


def test_a_draw_that_the_named_sampler_does_not_make_amplifies_nothing():
    fixed = ReleaseEvent("gaussian", 1.0, "zero_out", sampling="fixed")
    assert ledger_epsilon([replace(fixed, q=0.01)], 1e-5) == ledger_epsilon([fixed], 1e-5)
    poisson = replace(fixed, q=0.01, sampling="poisson")
    assert ledger_epsilon([poisson], 1e-5) < ledger_epsilon([fixed], 1e-5)


def test_valid_must_be_bool():
    with pytest.raises(PrivacyError, match="must be bool"):
        release(make_account(), Contribution(rows_for(ONE), torch.ones(1, USERS)), 0)


def test_undeclared_bypasses_and_wrong_shapes_are_refused():
    plan = make_account(caveats={"shared critic": "no noise"})
    send(plan, rows_for(ONE), bypass={"shared critic": {"change": torch.zeros(1, 2)}})
    with pytest.raises(PrivacyError, match="secret path"):
        send(plan, rows_for(ONE), bypass={"secret path": {}})
    with pytest.raises(PrivacyError, match="secret path"):
        plan.permit("secret path")
    with pytest.raises(PrivacyError, match="do not match"):
        send(plan, rows_for(TWO))
    with pytest.raises(PrivacyError, match="a round has rows of 4 users, got 5"):
        send(plan, rows_for(ONE, users=USERS + 1))


def test_more_rounds_than_planned_are_refused():
    with pytest.raises(PrivacyError, match="beyond"):
        send(make_account(rounds=1), rows_for(ONE), index=1)


def test_the_ledger_line_comes_before_the_noise():
    plan = make_account()
    seen = []

    class Watching(SeededNoise):
        def normal(self, sizes, round_index, attempt):
            seen.append(len(plan.ledgers[0].lines))
            return super().normal(sizes, round_index, attempt)

    plan._noises = [Watching(0, 0)]
    send(plan, rows_for(ONE))
    assert seen == [1]


def test_other_data_under_a_round_seen_before_gets_other_noise_and_counts_twice():
    """A resumed run on another machine may collect other data: the old noise must not be reused."""
    ledger = Ledger(None)
    values = []
    for scale in (0.1, 0.1, 0.05):
        plan = make_account()
        plan.ledgers = [ledger]
        values.append(send(plan, rows_for(ONE, scale)).values["actor"])
    assert torch.equal(values[0], values[1])
    assert ledger.summary() == {"lines": 2, "rounds": 1, "repeated": 1}
    assert plan.spent_epsilon(0) == pytest.approx(6.5730, abs=1e-3)
    stripped = rows_for(ONE, 0.1)["actor"].sum(1) - rows_for(ONE, 0.05)["actor"].sum(1)
    assert not torch.allclose((values[0] - values[2]) * USERS, stripped, atol=0.05)


def test_replicas_get_their_own_noise_whoever_stands_beside_them():
    rows = rows_for(ONE, replicas=2)
    both = send(make_account(seeds=(4, 9)), rows)
    alone = send(make_account(seeds=(9,)), {"actor": rows["actor"][1:]})
    assert torch.equal(both.values["actor"][1:], alone.values["actor"])


@pytest.mark.parametrize(
    ("delta", "adjacency", "expected"),
    [
        (1e-3, "zero_out", 3.1387),
        (1e-5, "zero_out", 4.3772),
        (1e-3, "replace_one", 7.5813),
        (1e-5, "replace_one", 9.9973),
    ],
)
def test_planned_and_ledger_epsilon_of_a_lone_release(delta, adjacency, expected):
    plan = make_account(delta=delta, adjacency=adjacency)
    assert plan.spent_epsilon(0) == 0.0
    send(plan, rows_for(ONE))
    send(plan, rows_for(ONE), index=1)  # other users: parallel composition
    assert plan.planned_epsilon(0) == pytest.approx(expected, abs=6e-5)
    assert plan.spent_epsilon(0) == pytest.approx(expected, abs=6e-5)


def test_epsilon_of_segments_grows_until_an_episode_has_ended():
    plan = make_account(unit=Unit("an episode", 3), delta=1e-3)
    spent = []
    for index in range(5):
        send(plan, rows_for(ONE), index=index)
        spent.append(plan.spent_epsilon(0))
    assert spent[0] == pytest.approx(3.13867, abs=1e-4)
    assert spent[0] < spent[1] < spent[2] == spent[3] == spent[4] == plan.planned_epsilon(0)


def test_poisson_cohorts_are_drawn_capped_and_accounted_over_all_rounds():
    plan = make_account(
        sampling="poisson", population=400, adjacency="add_or_remove", rounds=50, z=1.0
    )
    cohorts = [plan.draw(i, None, False).sizes[0] for i in range(2000)]
    assert max(cohorts) <= plan.slots == 16
    assert sum(cohorts) / len(cohorts) == pytest.approx(USERS, rel=0.05)
    rows = {"actor": torch.zeros(1, plan.slots, SIZE)}
    for index in range(50):
        send(plan, rows, index=index)
    assert plan.spent_epsilon(0) == pytest.approx(plan.planned_epsilon(0))
    assert 0.1 < plan.spent_epsilon(0) < 4.0


def test_status_says_what_the_number_covers():
    plan = make_account()
    assert plan.guarantee(0).status == "formal"
    leaky = make_account(caveats={"shared critic": "no noise"})
    assert leaky.guarantee(0).status == "heuristic"
    assert make_account(z=0.0).guarantee(0).status == "none"
    pooled = make_account(mechanism="none")
    assert pooled.guarantee(0).status == "none"
    assert pooled.planned_epsilon(0) == math.inf


def test_without_noise_rows_are_still_clipped():
    plan = make_account(z=0.0)
    released = send(plan, {"actor": torch.full((1, USERS, SIZE), 1e6)})
    assert float(released.values["actor"].norm()) == pytest.approx(0.5, rel=1e-4)
    assert plan.diagnostics[0]["clipped_fraction"] == 1.0


def test_a_zero_noise_block_cannot_hide_behind_a_noisy_one():
    from privrl_bench.privacy.accounting.releases import joint_z

    assert joint_z([0.0, 5.0]) == 0.0


@given(st.floats(1e-6, 1e6), st.floats(-1e3, 1e3))
def test_released_sums_lie_on_a_public_grid(std, wide):
    x = torch.tensor([wide * std, 1e-9 * std, -0.3 * std], dtype=torch.float64)
    rounded = on_grid(x, std)
    step = 2.0 ** math.floor(math.log2(std / 1024))
    assert std / 2048 <= step <= std / 1024
    assert torch.equal(torch.round(rounded / step), rounded / step)
    assert (rounded - x).abs().max() <= step / 2


@pytest.mark.parametrize(
    "changes",
    [
        {"z": math.nan},
        {"z": -1.0},
        {"clip": math.inf},
        {"delta": 2.0},
        {"sampling": "poisson"},
        {"adjacency": "add_or_remove"},
        {"mechanism": "unheard_of"},
    ],
    ids=str,
)
def test_the_plan_does_not_rely_on_the_schemas_checks(changes):
    config = PrivacyConfig(users_per_round=USERS)
    vars(config).update(changes)
    with pytest.raises(PrivacyError):
        Gate([config], ONE, Unit("u", 1), 5, [SeededNoise(0, 0)], [Ledger(None)])


def test_the_plan_refuses_bad_blocks_foreign_noise_and_too_many_users():
    class Nothing:
        name, note = "secure", None

    with pytest.raises(PrivacyError, match="clip"):
        make_account(blocks=(Block("actor", 3, math.nan),))
    config = PrivacyConfig(users_per_round=USERS)
    with pytest.raises(PrivacyError, match=r"noise\.py"):
        Gate([config], ONE, Unit("u", 1), 5, [Nothing()], [Ledger(None)])
    with pytest.raises(PrivacyError, match=str(MOST_USERS)):
        make_account(users_per_round=MOST_USERS + 1)


def test_caveats_cannot_be_taken_away_afterwards():
    plan = make_account(caveats={"shared critic": "leaks"})
    guarantee = plan.guarantee(0)
    guarantee.caveats.clear()
    assert plan.guarantee(0).status == "heuristic"
    with pytest.raises(AttributeError):
        plan.caveats.clear()


def test_notes_name_replicas_simulated_sampling_and_where_noise_is_floating_point():
    assert "runs" in make_account().guarantee(0).notes
    assert make_account(seeds=(0, 1)).guarantee(0).notes == make_account().guarantee(0).notes
    poisson = {"sampling": "poisson", "adjacency": "add_or_remove", "population": 50}
    assert "sampling" in make_account(**poisson).guarantee(0).notes
    assert "floating point" not in make_account().guarantee(0).notes  # integers
    assert "floating point" in SecureNoise.notes(exact=False)
    assert not SecureNoise.notes(exact=True)


def test_a_repeated_seeded_round_is_in_the_notes():
    plan = make_account()
    send(plan, rows_for(ONE))
    assert "attempts" not in plan.guarantee(0, 1).notes
    plan.ledgers[0].again(0)
    assert "attempts" in plan.guarantee(0, 1).notes


def test_sums_over_rounds_are_for_units_that_are_in_one_round():
    """Found by an audit: a node that holds j rows of one unit moves by j clips, and was charged one by one."""
    config = PrivacyConfig(mechanism="tree", z=20.0, users_per_round=1)
    for unit in (Unit("several rounds", 8), Unit("all rounds", None)):
        with pytest.raises(PrivacyError, match="one round only"):
            Gate([config], (Block("a", 1, 1.0),), unit, 64, [SeededNoise(0, 1)], [Ledger(None)])


# -- lines ahead of their rounds


def on_disk(path, rounds=2560, secure=False, seeds=(0,), **config):
    """A gate whose ledgers are files; so many rounds that lines of ten are written at once."""
    noise = SecureNoise if secure else SeededNoise
    return Gate(
        configs=[PrivacyConfig(z=1.0, users_per_round=USERS, **config) for _ in seeds],
        blocks=ONE,
        unit=Unit("one user", 1),
        rounds=rounds,
        noises=[noise() if secure else SeededNoise(seed, 0) for seed in seeds],
        ledgers=[Ledger(path / f"{seed}.jsonl") for seed in seeds],
    )


def lines_of(path, seed=0):
    found = [json.loads(line) for line in (path / f"{seed}.jsonl").read_text().splitlines()]
    return [one["round"] for one in found if "digest" not in one]


def test_lines_of_some_rounds_reach_the_disk_at_once_and_before_any_of_their_noise(
    tmp_path, monkeypatch
):
    gate = on_disk(tmp_path, seeds=(0, 1))
    synced, drawn = [], []
    sync, noise = os.fsync, SeededNoise.integers
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), sync(handle)))

    def integers(self, *args):
        drawn.append([lines_of(tmp_path, seed) for seed in (0, 1)])
        return noise(self, *args)

    monkeypatch.setattr(SeededNoise, "integers", integers)
    for index in range(10):
        send(gate, rows_for(ONE, replicas=2), index)
    assert drawn == [[list(range(10))] * 2] * 20
    assert len(synced) == 4  # of each ledger: the new folder entry, ten lines
    gate.sync()
    assert len(synced) == 6
    send(gate, rows_for(ONE, replicas=2), 10)
    assert lines_of(tmp_path) == list(range(20))


@pytest.mark.parametrize(("rounds", "ahead"), [(1, 1), (122, 1), (1000, 3), (30_000, 64)])
def test_few_rounds_have_lines_ahead(tmp_path, rounds, ahead):
    gate = on_disk(tmp_path, rounds=rounds)
    send(gate, rows_for(ONE), 0)
    assert lines_of(tmp_path) == list(range(ahead))


@pytest.mark.parametrize("secure", [False, True])
def test_a_crash_counts_at_most_the_lines_ahead(tmp_path, secure):
    unit = {"sampling": "poisson", "adjacency": "add_or_remove", "population": 50}
    rows = rows_for(ONE, users=on_disk(tmp_path / "none", **unit).slots)
    first = on_disk(tmp_path, secure=secure, **unit)
    for index in range(3):
        send(first, rows, index)
    known = first.ledgers[0].summary()
    assert known == {"lines": 10, "rounds": 3, "repeated": 0}
    again = on_disk(tmp_path, secure=secure, **unit)  # from a checkpoint after two rounds
    for index in range(2, 12):
        send(again, rows, index)
    ledger = again.ledgers[0]
    assert ledger.summary()["rounds"] == 12
    assert ledger.missing(12) == []
    repeats = 8 if secure else 0  # rounds 2 to 9; nothing is lost, and nothing counted less
    assert ledger.repeats() == repeats
    assert [ledger.attempts(index) for index in range(12)] == [
        1 + (secure and 2 <= index < 10) for index in range(12)
    ]
    used = {(line["round"], line["attempt"]) for line in ledger.lines}
    assert len(used) == len(ledger.lines)  # no attempt gets noise twice


def test_lines_ahead_are_not_in_the_curve_of_epsilon_nor_in_the_number_of_rounds(tmp_path):
    unit = {"sampling": "poisson", "adjacency": "add_or_remove", "population": 50}
    gate = on_disk(tmp_path, **unit)
    for index in range(4):
        send(gate, rows_for(ONE, users=gate.slots), index)
    one = gate.epsilon_of(0, {gate.event(0): 4})
    assert gate.spent_epsilon(0, 4) == one < gate.spent_epsilon(0)
    assert gate.ledgers[0].summary()["rounds"] == 4


def test_a_round_that_comes_out_otherwise_drops_the_lines_ahead(tmp_path):
    """Lines of correlated noise say how many rounds before them were repeated."""
    first = on_disk(tmp_path, mechanism="correlated")
    for index in range(2):
        send(first, rows_for(ONE), index)
    gate = on_disk(tmp_path, mechanism="correlated")
    send(gate, rows_for(ONE), 0)
    send(gate, rows_for(ONE, scale=0.01), 1)  # other data: a second attempt
    send(gate, rows_for(ONE), 2)
    ledger = gate.ledgers[0]
    assert [ledger.attempts(index) for index in range(4)] == [1, 2, 2, 2]
    assert ledger.last_lines(3)[-1]["repeats_before"] == 1
    third = on_disk(tmp_path, mechanism="correlated")
    for index, scale in enumerate((1.0, 0.01, 1.0, 1.0)):
        send(third, rows_for(ONE, scale=scale), index)  # the noise of all rounds is known again
    assert [third.ledgers[0].attempts(index) for index in range(4)] == [1, 2, 2, 2]
