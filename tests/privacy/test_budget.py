"""The budget file: what is charged is never less than what was released, whoever stops, copies or restores."""

import math
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from privrl_bench.errors import ConfigError
from privrl_bench.privacy import budget as budgets
from privrl_bench.privacy.accounting.filters import PrivacyFilter
from privrl_bench.privacy.budget import Budget, BudgetTerms, DoesNotFit, Entry, new_id
from privrl_bench.privacy.ledger import Mark

FILTER = PrivacyFilter("gaussian", 4.0, 1e-6, "zero_out")
WHOLE = FILTER.capacity


def made(folder, **more):
    terms = BudgetTerms(new_id(), "clinic/logs-v1", "one user", "user", "digest", 5, FILTER)
    return Budget.create(Path(folder) / "a.budget", replace(terms, **more))


def entry(name, part, status="formal", inode=1, slack=1e-9, of=""):
    kept = (name, f"/runs/{name}", inode, "dp_lspi on logs, seed 0", status)
    return Entry(*kept, "reserved", part * WHOLE, slack, Mark(), part=of)


def shares(budget):
    return {one.id: round(one.charged / WHOLE, 6) for one in budget.entries()}


def test_what_is_fixed_is_read_again_and_made_once(tmp_path):
    budget = made(tmp_path)
    assert Budget(budget.path).terms == budget.terms
    with pytest.raises(ConfigError, match=r"^budget: .* exists; a budget is made once"):
        made(tmp_path)
    with pytest.raises(ConfigError, match=r"^budget: there is no file"):
        Budget(tmp_path / "b.budget")
    (tmp_path / "text").write_text("no budget at all, " * 100)
    with pytest.raises(ConfigError, match=r"^budget: .*text: file is not a database"):
        Budget(tmp_path / "text")
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE terms (name, value)")
    with pytest.raises(ConfigError, match=r"is a budget of another version"):
        Budget(tmp_path / "other")


def test_a_reservation_stays_until_it_is_settled_and_is_never_lowered_before(tmp_path):
    budget = made(tmp_path)
    budget.reserve([entry("a", 0.5)])
    budget.reserve([entry("a", 0.3)])  # resumed: what was reserved stays
    assert shares(budget) == {"a": 0.5}
    budget.reserve([entry("a", 0.6)])  # it tops up
    budget.settle([entry("a", 0.2)])
    assert shares(Budget(budget.path)) == {"a": 0.2}
    assert [row["action"] for row in budget.log()] == [
        "create",
        "reserve",
        *["top up"] * 2,
        "settle",
    ]
    assert budget.problems() == []
    assert budget.cap() == (
        "everything about clinic/logs-v1 that is charged to a.budget stays within epsilon 4 at delta 1e-06"
    )


def test_what_does_not_fit_charges_nothing_and_says_what_is_left(tmp_path):
    budget = made(tmp_path)
    budget.reserve([entry("a", 0.7)])
    with pytest.raises(DoesNotFit) as error:
        budget.reserve([entry("b", 0.2), entry("c", 0.2)])
    assert error.value.left == pytest.approx(0.3 * WHOLE)
    with pytest.raises(DoesNotFit) as error:
        budget.reserve([entry("a", 1.1)])
    assert error.value.left == pytest.approx(WHOLE)
    assert shares(budget) == {"a": 0.7}
    budget.reserve([entry("b", 0.3)])  # exactly full
    with pytest.raises(DoesNotFit):
        budget.reserve([entry("c", 1e-6)])


def test_a_cut_off_creation_leaves_no_budget_and_is_no_obstacle(tmp_path):
    (tmp_path / "a.budget.0123.tmp").write_bytes(b"half a file")  # of a power cut
    budget = made(tmp_path)
    assert budget.problems() == []
    budget.reserve([entry("a", 0.5)])
    os.link(budget.path, tmp_path / "b.budget")  # a journal would have the name of one of them
    with pytest.raises(ConfigError, match=r"^budget: .*a second name, by a hard link"):
        Budget(budget.path)


def test_what_is_not_known_is_not_settled_and_a_part_does_not_change(tmp_path):
    budget = made(tmp_path)
    with pytest.raises(ConfigError, match=r"^budget: .* knows nothing of /runs/a"):
        budget.settle([entry("a", 0.1)])
    budget.reserve([entry("a", 0.6, of="1/2"), entry("b", 0.9, of="2/2")])
    assert (round(budget.share, 6), round(budget.left("1/2") / WHOLE, 6)) == (0.9, 0.4)
    with pytest.raises(ConfigError, match=r"^budget: /runs/a was charged for other users"):
        budget.reserve([entry("a", 0.6)])
    with pytest.raises(DoesNotFit):
        budget.reserve([entry("c", 0.2)])
    budget.reserve([entry("d", 0.4, of="1/2")])
    with pytest.raises(ConfigError, match=r"no finite cost"):
        budget.reserve([entry("e", math.inf, of="2/2")])


def test_a_reservation_has_one_holder(tmp_path):
    budget = made(tmp_path)
    budget.reserve([entry("a", 0.1)])
    with pytest.raises(ConfigError, match=r"belongs to /runs/a, of which it is a copy"):
        budget.reserve([entry("a", 0.1, inode=2)])


@pytest.mark.parametrize("status", ["heuristic", "none", "unreviewed"])
def test_a_run_without_a_guarantee_is_asked_for_and_remembered_for_ever(tmp_path, status):
    budget = made(tmp_path)
    budget.reserve([entry("a", 0.4)])
    with pytest.raises(ConfigError, match=rf"is {status}, .*budget.allow=heuristic"):
        budget.reserve([entry("b", 0.1, status)])
    budget.reserve([entry("b", float("inf"), status)], heuristic=True)
    budget.settle([entry("b", float("inf"))])
    assert Budget(budget.path).status == "heuristic"
    assert "there is no bound on everything about clinic/logs-v1" in budget.cap()
    assert budget.share == pytest.approx(0.4)
    assert budget.problems() == []
    budget.reserve([entry("c", 0.6)])  # the others are still within the cap
    with pytest.raises(DoesNotFit):
        budget.reserve([entry("d", 0.1)])


def test_discrete_noise_has_a_budget_of_its_own(tmp_path):
    budget = made(tmp_path)
    budget.reserve([entry("a", 0.1, slack=9e-5)])
    with pytest.raises(ConfigError, match=r"discrete noise of so many runs"):
        budget.reserve([entry("b", 0.1, slack=2e-5)])


# --- processes, crashes, disks


def _try(path, name, part):
    try:
        Budget(path).reserve([entry(name, part)])
    except DoesNotFit:
        return False
    return True


def test_of_ten_processes_at_once_as_many_as_fit_are_charged(tmp_path):
    budget = made(tmp_path)
    with ProcessPoolExecutor(10) as pool:
        jobs = [pool.submit(_try, budget.path, f"r{k}", 0.22) for k in range(10)]
        assert sum(job.result() for job in jobs) == 4
    assert sum(shares(budget).values()) == pytest.approx(0.88)
    assert budget.problems() == []


PROGRAM = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_budget import Budget, budgets, entry
def kill(*words): os.kill(os.getpid(), signal.SIGKILL)
budget = Budget({path!r})
if {within!r}: budgets._log = kill
budget.reserve([entry("a", 0.5)])
kill()
"""


@pytest.mark.parametrize(("within", "charged"), [(True, {}), (False, {"a": 0.5})])
def test_kill_nine_in_a_transaction_charges_nothing_and_after_it_all(tmp_path, within, charged):
    budget = made(tmp_path)
    words = {"tests": os.path.dirname(__file__), "path": str(budget.path), "within": within}
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(**words)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert shares(Budget(budget.path)) == charged
    assert budget.problems() == []


def test_a_full_disk_is_one_line_and_charges_nothing(tmp_path):
    budget = made(tmp_path)
    size, (soft, hard) = budget.path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, hard))
    try:
        with pytest.raises(ConfigError, match=r"^budget: .*a\.budget: "):
            budget.reserve([entry("a", 0.5)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert shares(budget) == {}
    assert budget.problems() == []


def test_a_network_file_system_is_refused(tmp_path, monkeypatch):
    made(tmp_path)
    mounts = f"disk / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\n"
    monkeypatch.setattr(budgets.Path, "read_text", lambda self, *words: mounts)
    with pytest.raises(ConfigError, match=r"network file system \(nfs4\)"):
        Budget(tmp_path / "a.budget")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE entries SET charged = 0.001", "/runs/a: the entry is not the one"),
        ("UPDATE entries SET part = '1/2' WHERE id = 'b'", "/runs/b: the entry is not the one"),
        ("UPDATE entries SET status = 'none'", "/runs/a: the entry is not the one"),
        ("UPDATE terms SET value = '40.0' WHERE name = 'epsilon'", "the terms are not those"),
        ("UPDATE log SET charged = 0.001 WHERE number = 2", "line 2 of the log was changed"),
        ("DELETE FROM log WHERE number = 2", "line 2 of the log was changed"),
        ("DELETE FROM entries", "is in the log and not in the table"),
    ],
)
def test_an_edited_file_is_found(tmp_path, change, found):
    budget = made(tmp_path)
    budget.reserve([entry("a", 0.5)])
    budget.reserve([entry("b", 0.2)])
    with sqlite3.connect(budget.path) as file:
        file.execute(change)
    assert any(found in one for one in budget.problems())


# --- any order of events, from four processes


def work(path, action, entries):
    """One action in another process: whether it was accepted."""
    try:
        getattr(Budget(path), action)(entries)
    except ConfigError:
        return False
    return True


def is_in(user, part):
    number, parts = map(int, (part or "1/1").split("/"))
    return user % parts == number - 1


class Events(RuleBasedStateMachine):
    """Runs that reserve, release, die, resume, settle and are copied, and a file that is put back."""

    pools: tuple = ()

    @initialize()
    def begin(self):
        if not Events.pools:
            Events.pools = tuple(ProcessPoolExecutor(1) for _ in range(4))
        self.folder = Path(mkdtemp())
        self.budget = made(self.folder)
        self.released, self.planned, self.alive, self.of = {}, {}, set(), {}
        self.old = None  # an earlier copy of the file, and which runs it knew
        self.count = 0

    def entry_of(self, name, part):
        return entry(name, part, inode=int(name[1:]), of=self.of[name])

    def ask(self, process, action, entries):
        return Events.pools[process].submit(work, self.budget.path, action, entries).result()

    @rule(
        process=st.integers(0, 3),
        part=st.floats(0.01, 0.5),
        of=st.sampled_from(["", "1/2", "2/2", "1/3", "3/3"]),
    )
    def reserve(self, process, part, of):
        self.count += 1
        name = f"r{self.count}"
        if self.ask(process, "reserve", [entry(name, part, inode=self.count, of=of)]):
            self.planned[name], self.released[name], self.of[name] = part, 0.0, of
            self.alive.add(name)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), part=st.floats(0.0, 1.0))
    def release(self, data, part):
        name = data.draw(st.sampled_from(sorted(self.alive)))
        self.released[name] = max(self.released[name], part * self.planned[name])

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def kill(self, data):
        self.alive.discard(data.draw(st.sampled_from(sorted(self.alive))))

    @precondition(lambda self: self.planned)
    @rule(process=st.integers(0, 3), data=st.data(), repeated=st.floats(0.0, 0.3))
    def resume(self, process, data, repeated):
        name = data.draw(st.sampled_from(sorted(self.planned)))
        wanted = self.planned[name] + repeated
        if self.ask(process, "reserve", [self.entry_of(name, wanted)]):
            self.planned[name] = wanted
            self.alive.add(name)

    @precondition(lambda self: self.alive)
    @rule(process=st.integers(0, 3), data=st.data())
    def settle(self, process, data):
        name = data.draw(st.sampled_from(sorted(self.alive)))
        assert self.ask(process, "settle", [self.entry_of(name, self.released[name])])
        self.alive.discard(name)

    @precondition(lambda self: self.planned)
    @rule(process=st.integers(0, 3), data=st.data())
    def copy(self, process, data):
        name = data.draw(st.sampled_from(sorted(self.planned)))
        assert not self.ask(process, "reserve", [entry(name, 0.0, inode=-1)])

    @rule()
    def back_up(self):
        self.old = (self.budget.path.read_bytes(), set(shares(self.budget)))

    @precondition(lambda self: self.old and set(self.planned) - self.old[1])
    @rule()
    def put_back(self):
        """What the older file does not know is found by a later run folder."""
        now = self.budget.path.read_bytes()
        self.budget.path.write_bytes(self.old[0])
        assert self.budget.problems() == []  # it cannot be seen in the file alone
        assert set(self.planned) - set(shares(self.budget))
        self.budget.path.write_bytes(now)

    @invariant()
    def charged_is_never_less_than_true(self):
        if hasattr(self, "budget"):
            charged = {one.id: one.charged / WHOLE for one in self.budget.entries()}
            for name, true in self.released.items():
                assert charged[name] >= true - 1e-12
            for user in range(6):  # 2 and 3 parts: six kinds of users
                took = [name for name in charged if is_in(user, self.of[name])]
                assert sum(charged[name] for name in took) <= self.budget.share + 1e-9 <= 1 + 1e-6
            assert self.budget.problems() == []

    def teardown(self):
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


TestEvents = Events.TestCase
TestEvents.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)


def teardown_module():
    for pool in Events.pools:
        pool.shutdown()
