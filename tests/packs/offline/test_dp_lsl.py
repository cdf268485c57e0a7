"""DP-LSL on a small chain."""

from evaluation_runs import check_pieces


def test_pieces_do_not_matter(monkeypatch):
    check_pieces("dp_lsl", monkeypatch)
