"""Tests use one torch thread; `helpers` and `my_pkg` in this folder can be imported from subfolders."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def sweeps_stay_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a test replaces a part; tests of several processes ask for them."""
    from privrl_bench import sweep

    monkeypatch.setattr(sweep, "cores", lambda: 1)
