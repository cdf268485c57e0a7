"""A mechanism and a sampler of packages from outside (tests/noise_plugins), in runs that train and resume."""

import contextlib
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from test_gate import make_account, send

from privrl_bench.cli.audit import leaks
from privrl_bench.composition import plugins
from privrl_bench.composition.compose import compose
from privrl_bench.errors import ConfigError, PrivacyError
from privrl_bench.privacy import mechanisms, sampling
from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent, merged
from privrl_bench.privacy.contribution import Block
from privrl_bench.privacy.gate import Gate
from privrl_bench.privacy.grid import L1
from privrl_bench.training import plugin_review
from privrl_bench.training.plan import make_plan
from privrl_bench.training.runner import run

WORDS = (
    *(
        "env=riverswim",
        "privacy.users_per_round=4",
        "eval.episodes=1",
        "rounds=4",
        "algo.hidden=[4]",
    ),
    *("log=none", "log.plot=false", "log.progress=false", "hardware.workers=1"),
)
LAPLACE = ("plugins=[laplace_pkg]", "algo=dppg", "privacy=laplace", "privacy.z=0.5", *WORDS)
DRAWN = (
    "plugins=[draw_pkg]",
    "algo=dppg",
    "privacy=without_replacement",
    "privacy.z=4",
    *WORDS,
)
DELTA = 1e-5
# Of one Laplace release: delta = 1 - exp((epsilon - 1 / z) / 2) (Balle, Barthe and Gaboardi 2018, theorem 3).
KNOWN_LAPLACE = 1 / 0.5 + 2 * math.log1p(-DELTA)
ONE = (Block("actor", 6, 0.5),)


@pytest.fixture
def packages(tmp_path, plugins_restored, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "noise_plugins"))
    monkeypatch.chdir(tmp_path)
    yield
    for name in [
        one for one in sys.modules if one.partition(".")[0] in ("laplace_pkg", "draw_pkg")
    ]:
        del sys.modules[name]


def ledger(folder):
    return [json.loads(text) for text in (folder / "ledger.jsonl").read_text().splitlines()]


def trained(words, folder, monkeypatch):
    """The summary and the ledger's lines of a run that is cut before its third release, and resumed."""
    config, whole, half = compose([*words]), folder / "whole", folder / "half"
    assert run([config], [whole], [list(words)])[0].status == "done"
    real = Gate.release

    def cut(gate, index):
        if index == 2:
            raise KeyboardInterrupt
        return real(gate, index)

    with monkeypatch.context() as patch:
        patch.setattr(Gate, "release", cut)
        with contextlib.suppress(KeyboardInterrupt):
            run([config], [half], [list(words)])
    assert sum("digest" in line for line in ledger(half)) == 2
    assert run([config], [half], [list(words)])[0].status == "done"
    digests = [[x["digest"] for x in ledger(one) if "digest" in x] for one in (whole, half)]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 4
    lines = [line for line in ledger(half) if "digest" not in line]
    return json.loads((half / "summary.json").read_text()), lines


def test_a_run_with_laplace_noise_reports_its_known_epsilon(packages, tmp_path, monkeypatch):
    summary, lines = trained(LAPLACE, tmp_path, monkeypatch)
    assert summary["epsilon"] == pytest.approx(KNOWN_LAPLACE, abs=2e-4)
    assert summary["epsilon"] >= KNOWN_LAPLACE
    guarantee = summary["guarantee"]
    assert guarantee["status"] == "unreviewed"
    assert "norm: rows are clipped, and z is counted, in L1 norm" in guarantee["notes"]
    assert any("no audit sees the mechanism's noise" in note for note in guarantee["notes"])
    assert {(line["mechanism"], line["norm"], line["sampling"]) for line in lines} == {
        ("laplace", "L1", "fixed")
    }
    assert sorted({line["round"] for line in lines}) == [0, 1, 2, 3]


def test_a_run_with_a_sampler_reports_its_known_epsilon(packages, tmp_path, monkeypatch):
    """By dp-accounting alone: replace-one doubles the distance of Gaussian noise."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    summary, lines = trained(DRAWN, tmp_path, monkeypatch)
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        100, 4, dp_accounting.GaussianDpEvent(4 / 2)
    )
    known = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    assert summary["epsilon"] == pytest.approx(known.compose(event, 4).get_epsilon(DELTA), rel=1e-9)
    assert summary["guarantee"]["status"] == "unreviewed"
    assert any(
        "no audit sees what the sampler's draw saves" in x for x in summary["guarantee"]["notes"]
    )
    assert {(x["sampling"], x["q"], x["population"], x["cap"]) for x in lines} == {
        ("without_replacement", 0.04, 100, 4)
    }


def test_users_whom_a_sampler_draws_are_in_any_of_the_rounds(packages):
    guarantee = make_plan([compose([*DRAWN])]).gate.guarantee(0)
    assert "with all their rounds" in guarantee.unit
    assert "used once" not in guarantee.unit
    with pytest.raises(ConfigError, match=r"env\.user: with privacy\.sampling=without_replacement"):
        compose([*DRAWN, "env.user=segment", "env.user_steps=5"])
    with pytest.raises(ConfigError, match=r"privacy\.population: privacy\.sampling=without_"):
        make_plan([compose([*DRAWN, "privacy.population=null"])])


def test_no_record_makes_a_sampler_that_claims_amplification_formal(packages):
    config = compose([*DRAWN])
    assert plugin_review.audits(config) == ("leaks", "epsilon", "unseen")
    for audit in ("leaks", "epsilon"):
        assert plugin_review.write(config, "passed", [], audit)
    assert list(plugin_review.note(config)) == ["unreviewed"]
    assert "run `privrl" not in plugin_review.note(config)["unreviewed"]
    assert "stay unreviewed: no audit sees" in plugin_review.effect(config, "unreviewed")
    assert make_plan([config]).gate.guarantee(0).status == "unreviewed"


@pytest.mark.slow
@pytest.mark.parametrize("words", [LAPLACE, DRAWN], ids=["laplace", "drawn"])
def test_they_pass_the_leak_test_and_stay_unreviewed(packages, words, capsys):
    assert leaks(list(words)) == 0
    assert "unreviewed" in capsys.readouterr().out.split("passed; runs")[1]
    assert make_plan([compose([*words])]).gate.guarantee(0).status == "unreviewed"


def test_a_sampler_that_claims_nothing_needs_both_audits_and_no_more(packages, monkeypatch):
    config = compose([*DRAWN])
    kind = sampling.sampler_class("without_replacement")
    for name in ("wrap", "record"):
        monkeypatch.delattr(kind, name)
    monkeypatch.setattr(kind, "random", False)
    assert plugin_review.audits(config) == ("leaks", "epsilon")
    monkeypatch.setattr(kind, "every_round", False)
    assert plugin_review.audits(config) == ("leaks", "epsilon", "unseen")


def test_workers_know_the_sampler_and_a_bad_one_registers_nothing(packages, monkeypatch):
    compose([*DRAWN])
    told = plugins.additions()
    sampling.REGISTRY.outside.clear()
    plugins.restore(told)
    assert sampling.sampler_class("without_replacement").name == "without_replacement"
    with pytest.raises(ConfigError, match="the name fixed is taken"):
        sampling.REGISTRY.refuse("fixed", "draw_pkg.without_replacement")
    with pytest.raises(ConfigError, match="`name` must be 'x', got 'without_replacement'"):
        sampling.REGISTRY.refuse("x", "draw_pkg.without_replacement")
    with pytest.raises(ConfigError, match="has no SAMPLER"):
        sampling.REGISTRY.refuse("x", "draw_pkg")


# --- the Laplace mechanism at the gate


@pytest.fixture
def laplace(packages):
    mechanisms.REGISTRY.outside["laplace"] = "laplace_pkg.laplace"


def test_one_user_moves_a_release_by_at_most_one_clip_in_l1(laplace):
    for scale in (0.0, 1e-3, 1.0, 1e6, math.inf, math.nan):
        rows = torch.full((1, 4, 6), 0.1)
        rows[0, 2] *= scale
        without = rows.clone()
        without[0, 2] = 0.0
        released = [
            4
            * send(make_account(mechanism="laplace", z=0.7), {"actor": x}).values["actor"].double()
            for x in (rows, without)
        ]
        assert float((released[0] - released[1]).abs().sum()) <= 0.5 * 1.001


@pytest.mark.parametrize("noise", ["seeded", "secure"])
def test_the_noise_of_every_block_is_laplace_and_its_epsilons_add_up(laplace, noise):
    blocks = (Block("actor", 4000, 0.5), Block("critic", 3000, 2.0, noise_ratio=3.0))
    plan = make_account(blocks, mechanism="laplace", z=0.7, noise=noise)
    released = send(plan, {b.name: torch.zeros(1, 4, b.size) for b in blocks}).values
    multipliers, stds = plan.mechanism.multipliers(0), plan.mechanism.stds(0)
    assert sum(1 / z for z in multipliers.values()) == pytest.approx(1 / 0.7)
    for b in blocks:
        drawn, scale = 4 * released[b.name][0].double().numpy(), multipliers[b.name] * b.clip
        assert stats.kstest(drawn / scale, "laplace").pvalue > 1e-6
        assert stds[b.name] == pytest.approx(scale * math.sqrt(2))


@pytest.mark.slow
def test_an_attack_on_the_densest_and_the_sparsest_row_stays_below_epsilon(laplace):
    """The likelihood ratio of all numbers, for rows that use the whole clip."""
    for row in (torch.tensor([0.5, 0, 0, 0]), torch.full((4,), 0.125)):
        losses = {}
        for there in (True, False):
            rows = torch.zeros(800, 4, 4)
            rows[:, 0] = 10.0 * row * there
            seeds = range(800 * there, 800 * there + 800)
            plan = make_account((Block("actor", 4, 0.5),), z=1.0, seeds=seeds, mechanism="laplace")
            x = 4 * send(plan, {"actor": rows}).values["actor"].double()
            losses[there] = ((x.abs() - (x - row).abs()).sum(-1) / 0.5).numpy()
        for level in np.linspace(-1, 1, 21):
            hits = [int((losses[there] > level).sum()) for there in (True, False)]
            low = stats.binomtest(hits[0], 800).proportion_ci(0.9999).low
            high = stats.binomtest(hits[1], 800).proportion_ci(0.9999).high
            assert low <= math.exp(1.0) * high


def test_attempts_at_one_round_add_up_in_l1(laplace):
    one = ReleaseEvent("laplace", 2.0, "zero_out", sampling="fixed")
    assert [x.z for x in merged([one] * 4, L1)] == [0.5]
    both = ledger_epsilon([one, one], DELTA)
    assert 0.9 < both <= 1.0 + 1e-3
    with pytest.raises(PrivacyError, match=r"privacy\.adjacency"):
        make_account(mechanism="laplace", adjacency="replace_one")


def test_canaries_are_not_asked_about_rows_in_l1_norm(packages):
    """They are rows in L2 norm: an attack on noise that is 20 times too small contradicted nothing."""
    config = compose([*LAPLACE, "seed=3"])
    assert "epsilon" not in plugin_review.audits(config)
    assert plugin_review.UNSEEN in plugin_review.audits(config)
