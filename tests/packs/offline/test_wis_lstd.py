"""WIS-LSTD on a small chain."""

from evaluation_runs import check_neighbours, check_pieces


def test_pieces_do_not_matter(monkeypatch):
    check_pieces("wis_lstd", monkeypatch)


def test_a_replica_does_not_depend_on_its_neighbours():
    check_neighbours("wis_lstd")
