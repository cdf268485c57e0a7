"""Box plots of a dataset's states."""

import numpy as np
import pytest

from privrl_bench.packs.offline.datasets.trajectories import Trajectories
from privrl_bench.papers import states
from privrl_bench.papers.items import PaperFigure


def test_quartiles_are_of_the_states_before_every_step(tmp_path, monkeypatch) -> None:
    # Two episodes of two and three steps; the observation after the last step of each is 100.
    batch = np.array([0, 1, 100, 2, 3, 4, 100], dtype=np.float32)
    flat = Trajectories(
        observations=np.stack([batch, 2 * batch], axis=1),
        actions=np.zeros(5, np.int64),
        rewards=np.zeros(5, np.float32),
        terminated=np.zeros(5, bool),
        starts=np.array([0, 2, 5]),
        users=np.array([0, 1]),
    )
    monkeypatch.setattr(states, "open_dataset", lambda name: flat)
    facts = {"data": "a/b-v0", "episodes": 1, "names": ["x", "y"], "paper": [0.5, 0.25]}
    picture = PaperFigure("title", "states", [], facts)
    head, lines = states.state_table(picture, {})
    assert head[4] == "interquartile range"
    assert lines[0][1:5] == ["1.000", "2.000", "3.000", "2.000"]
    assert lines[1][1:5] == ["2.000", "4.000", "6.000", "4.000"]
    # Runs of one episode: ranges 0.5 and 1.
    assert lines[0][5:8] == ["2", "0.750", "0.512 to 0.988"]
    assert lines[0][9] == "0.00 to 4.00"
    states.keep_ranges(picture, {}, tmp_path)
    assert (
        tmp_path / states.RANGES_FILE
    ).read_text() == "run,x,y\n0,0.5000,1.0000\n1,1.0000,2.0000\n"
    with pytest.raises(ValueError, match="2 episodes are not runs of 3"):
        states.ranges_of_runs(facts | {"episodes": 3})
    states.draw_states(picture, {}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000
