"""The ledger over-counts at worst; it never loses a release."""

import json
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privrl_bench.privacy.accounting.cost import ledger_epsilon
from privrl_bench.privacy.accounting.releases import ReleaseEvent, merged
from privrl_bench.privacy.grid import L2
from privrl_bench.privacy.ledger import Ledger, Mark, digest, require_reaches

EVENT = ReleaseEvent("gaussian", 1.0, "zero_out", sampling="fixed")


def intend(ledger, index, repeatable=True, event=EVENT):
    return ledger.intend(index, event, {"users": 8}, repeatable=repeatable)


def test_the_line_is_on_disk_when_sync_returns(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    ledger = Ledger(tmp_path / "ledger.jsonl")
    intend(ledger, 0)
    ledger.sync()
    assert synced[-1] == (tmp_path / "ledger.jsonl").stat().st_size
    count = len(synced)
    ledger.sync()  # nothing new
    assert len(synced) == count
    line = json.loads((tmp_path / "ledger.jsonl").read_text())
    assert line["round"] == 0
    assert line["z"] == 1.0
    assert line["attempt"] == 0


def test_a_repeated_seeded_release_counts_once_and_a_different_one_twice(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path)
    assert first.came_out(0, intend(first, 0), "aa")
    again = Ledger(path)
    assert intend(again, 0) == 0
    assert again.came_out(0, 0, "aa")
    assert again.summary() == {"lines": 1, "rounds": 1, "repeated": 0}
    assert not again.came_out(0, 0, "bb")
    assert again.again(0) == 1
    assert again.came_out(0, 1, "bb")
    assert again.releases(participation=1) == {EVENT: 2}
    third = Ledger(path)
    assert intend(third, 0) == 1  # the attempt that counted last


def test_an_attempt_that_was_never_seen_may_give_anything(tmp_path):
    path = tmp_path / "ledger.jsonl"
    intend(Ledger(path), 0)  # killed before its value could leave
    again = Ledger(path)
    assert again.came_out(0, intend(again, 0), "whatever")
    assert again.summary()["lines"] == 1


def test_a_lost_ledger_is_noticed(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    intend(ledger, 0)
    intend(ledger, 2)
    assert ledger.missing(4) == [1, 3]


def test_secure_noise_always_counts_again(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert intend(ledger, 0, repeatable=False) == 0
    assert intend(ledger, 0, repeatable=False) == 1


def test_a_torn_last_line_is_cut_and_the_file_stays_usable(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    intend(ledger, 0)
    intend(ledger, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    cut = Ledger(path)
    assert len(cut.lines) == 1
    intend(cut, 1)
    assert path.read_bytes() == whole


def test_a_damaged_line_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    intend(ledger, 0)
    intend(ledger, 1)
    lines = path.read_text().splitlines()
    path.write_text("{broken\n" + lines[1] + "\n")
    with pytest.raises(ValueError, match="line 1 is damaged"):
        Ledger(path)


@settings(max_examples=60)
@given(
    multipliers=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=12),
    participation=st.integers(1, 12),
)
def test_the_worst_user_is_in_the_noisiest_poor_rounds(multipliers, participation):
    ledger = Ledger(None)
    for index, z in enumerate(multipliers):
        intend(ledger, index, event=ReleaseEvent("gaussian", z, "zero_out", sampling="fixed"))
    got = ledger_epsilon(ledger.releases(participation), 1e-5)
    worst = sorted(multipliers)[:participation]
    assert got == pytest.approx(
        ledger_epsilon(
            [ReleaseEvent("gaussian", z, "zero_out", sampling="fixed") for z in worst], 1e-5
        )
    )


@settings(max_examples=60)
@given(
    attempts=st.lists(st.tuples(st.integers(0, 6), st.sampled_from([0.5, 1.0, 2.0])), max_size=20),
    participation=st.none() | st.integers(1, 8),
    before=st.none() | st.integers(0, 8),
)
def test_what_was_released_is_what_the_lines_say(attempts, participation, before):
    """Against the definition, line by line: of the rounds below `before` the ones that cost most."""
    ledger = Ledger(None)
    rounds = {}
    for index, z in attempts:
        event = ReleaseEvent("gaussian", z, "add_or_remove", 0.1, 100, 20, sampling="poisson")
        ledger.intend(index, event, {}, repeatable=False)
        rounds.setdefault(index, []).append(event)
    told = [events for index, events in rounds.items() if before is None or index < before]
    told.sort(key=lambda events: sum(e.cost for e in events), reverse=True)
    worst = told[: len(told) if participation is None else participation]
    got = ledger.releases(participation, before)
    assert sum(e.cost * n for e, n in got.items()) == pytest.approx(
        sum(e.cost for events in worst for e in events)
    )
    if participation is None:
        assert got == Counter(e for events in told for e in events)
    merging = Counter(e for events in told for e in merged(events, L2))
    assert ledger.releases_merged(L2, before) == merging
    several = sum(len(events) > 1 for events in rounds.values())
    assert ledger.summary() == {"lines": len(attempts), "rounds": 0, "repeated": several}
    for index in rounds:
        ledger.came_out(index, 0, "ab")
    assert ledger.summary()["rounds"] == len(rounds)


def test_digest_sees_every_bit():
    one = {"actor": torch.zeros(4)}
    other = {"actor": torch.zeros(4)}
    assert digest(one) == digest(other)
    other["actor"][3] = 1e-38
    assert digest(one) != digest(other)


def test_a_line_that_did_not_reach_the_disk_ends_the_ledger(tmp_path, monkeypatch):
    """Or a second try with seeded noise would find the line in memory and release without one."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    intend(ledger, 0)
    ledger.sync()

    def full(_descriptor):
        raise OSError("no space left on device")

    intend(ledger, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="no space"):
            ledger.sync()
    assert intend(ledger, 1) == 0  # in memory, but no noise is drawn before `sync`
    for again in (ledger.sync, lambda: intend(ledger, 2)):
        with pytest.raises(OSError, match="nothing more may be released"):
            again()


def test_attempts_at_one_subsampled_round_merge_into_one_stronger_release():
    event = ReleaseEvent("gaussian", 2.0, "add_or_remove", 0.1, 100, 20, sampling="poisson")
    ledger = Ledger(None)
    for index, attempts in ((0, 1), (1, 4)):
        for _ in range(attempts):
            ledger.intend(index, event, {}, repeatable=False)
    assert [round(one.z, 9) for one in ledger.releases_merged(L2)] == [2.0, 1.0]
    assert ledger.releases_merged(L2, 1) == {event: 1}


# -- the hash chain


def three_rounds(path):
    """A ledger of three rounds, two lines each, and its mark after every line."""
    ledger, marks = Ledger(path), [Mark()]
    for index in range(3):
        attempt = intend(ledger, index, repeatable=False)
        marks.append(ledger.mark)
        ledger.came_out(index, attempt, f"{index:x}")
        marks.append(ledger.mark)
    return marks


def removed(lines):
    return lines[:2] + lines[3:]


def reordered(lines):
    return [lines[2], *lines[1:2], lines[0], *lines[3:]]


def edited(lines):
    return [
        line.replace(b'"z": 1.0', b'"z": 9.0') if n == 2 else line for n, line in enumerate(lines)
    ]


def repeated(lines):
    return lines[:2] + lines[:2] + lines[2:]


@pytest.mark.parametrize("damage", [removed, reordered, edited, repeated])
def test_a_line_that_was_removed_moved_or_edited_is_found(tmp_path, damage):
    path = tmp_path / "ledger.jsonl"
    three_rounds(path)
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(ValueError, match="is damaged at line"):
        Ledger(path)


def test_a_first_attempt_that_was_lost_is_found(tmp_path):
    path = tmp_path / "ledger.jsonl"
    three_rounds(path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(ValueError, match="damaged at line 1"):
        Ledger(path)


@pytest.mark.parametrize("kept", range(7))
def test_a_cut_tail_is_found_by_every_mark_that_covers_it(tmp_path, kept):
    path = tmp_path / "ledger.jsonl"
    marks = three_rounds(path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))
    require_reaches(path, [("x", mark) for mark in marks[: kept + 1]])
    assert Ledger(path).mark == marks[kept]
    for mark in marks[kept + 1 :]:
        with pytest.raises(ValueError, match=f"has {kept} lines, but x has seen {mark.lines}"):
            require_reaches(path, [("x", mark)])


def test_the_last_line_is_known_by_its_hash(tmp_path):
    path = tmp_path / "ledger.jsonl"
    marks = three_rounds(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], lines[-1].replace(b'"2"', b'"3"')]))
    with pytest.raises(ValueError, match="line 6 is not the one that x has seen"):
        require_reaches(path, [("x", marks[-1])])


def test_a_torn_last_line_is_refused_where_something_depends_on_it_and_stays_as_it_is(tmp_path):
    path = tmp_path / "ledger.jsonl"
    marks = three_rounds(path)
    torn = path.read_bytes()[:-7]
    path.write_bytes(torn)
    require_reaches(path, [("x", marks[-2])])
    with pytest.raises(ValueError, match="has 5 lines, but x has seen 6"):
        require_reaches(path, [("x", marks[-1])])
    assert path.read_bytes() == torn


def test_a_ledger_of_another_version_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_text(json.dumps({"round": 0, "attempt": 0, **EVENT.to_dict()}) + "\n")
    with pytest.raises(ValueError, match="another version"):
        Ledger(path)


def test_a_ledger_in_memory_has_the_marks_of_one_on_the_disk(tmp_path):
    assert three_rounds(None) == three_rounds(tmp_path / "ledger.jsonl")


def test_two_threads_write_in_turn(tmp_path, monkeypatch):
    """The loop may wait for the disk, or end, while lines of the next round are written."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    intend(ledger, 0)
    begun, go_on, fsync = Event(), Event(), os.fsync

    def slow(handle):
        begun.set()
        assert go_on.wait(10)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(ledger.sync)
        assert begun.wait(10)
        others = [threads.submit(ledger.sync), threads.submit(intend, ledger, 1)]
        go_on.set()
        assert [x.result(10) for x in (first, *others)] == [None, None, 0]
    ledger.sync()
    assert not ledger.waiting


def test_lines_of_a_killed_process_are_waited_for(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    intend(ledger, 0)
    again, synced = Ledger(tmp_path / "ledger.jsonl"), []
    monkeypatch.setattr(os, "fsync", synced.append)
    assert intend(again, 0) == 0  # no new line
    again.sync()
    again.sync()
    assert len(synced) == 1
