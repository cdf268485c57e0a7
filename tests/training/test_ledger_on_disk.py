"""The ledger and the disk in whole runs: when a run waits, and what it does where nothing can be written."""

import json
import os

import pytest

from privrl_bench.composition.compose import compose
from privrl_bench.privacy import gate as gates
from privrl_bench.privacy.ledger import Ledger
from privrl_bench.training import trainer as training
from privrl_bench.training.runner import run

WORDS = [
    *("algo=gpope", "env=chain", "data.policy=uniform", "privacy.population=20", "rounds=64"),
    *("eval.every=0", "log.lines=1", "log.wandb=none"),
    *("log.plot=false", "log.progress=false", "algo.reference=20", "privacy.noise=secure"),
]
AHEAD = 16


@pytest.fixture
def synced(monkeypatch):
    """Lines of the ledger whenever the disk is waited for; intents are written for 16 rounds at once."""
    found, sync = [], Ledger.sync
    monkeypatch.setattr(gates, "_SHARE_AHEAD", 64 // AHEAD)

    def counted(ledger):
        if ledger._unsynced:
            found.append(ledger.mark.lines)
        sync(ledger)

    monkeypatch.setattr(Ledger, "sync", counted)
    return found


def train(folder):
    return run([compose(WORDS)], [folder], [WORDS])[0]


def test_rounds_on_data_wait_for_the_disk_once_a_block(tmp_path, synced):
    """The first four wait for the intents of a block and the digests before it; the last for the rest."""
    assert train(tmp_path / "run").status == "done"
    assert synced == [16, 48, 80, 112, 128]


def test_a_checkpoint_waits_for_the_digests_before_it(tmp_path, synced, monkeypatch):
    """The snapshot may be older than the ledger, so there may be later lines."""
    step = training.Trainer.step

    def interrupted(trainer):
        if trainer.round == 6:
            raise KeyboardInterrupt
        step(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "step", interrupted)
        assert train(tmp_path / "run").status == "interrupted"
    assert synced == [16, 22]
    assert (tmp_path / "run" / "checkpoint.pt").exists()
    assert train(tmp_path / "run").status == "done"


def test_a_ledger_that_cannot_be_written_ends_the_run(tmp_path, synced, monkeypatch):
    """No checkpoint of releases without a line is written."""
    sync = Ledger.sync

    def no_space(_handle):
        raise OSError("no space left on device")

    def full(ledger):
        with monkeypatch.context() as patch:
            if synced:
                patch.setattr(os, "fsync", no_space)
            sync(ledger)

    monkeypatch.setattr(Ledger, "sync", full)
    result = train(tmp_path / "run")
    assert (result.status, result.exit_code) == ("failed", 1)
    assert "no space left on device" in result.reason
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"
    assert not (tmp_path / "run" / "checkpoint.pt").exists()
