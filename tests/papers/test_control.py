"""The README's table: what a row says of seeds that differ, and of the way from random actions to PPO."""

from __future__ import annotations

from pathlib import Path

from privrl_bench.papers.items import Setting
from privrl_bench.papers.pages import control
from privrl_bench.reporting.runs import Run


def group(*values: float) -> list[Run]:
    def made(seed: int, value: float) -> Run:
        summary = {"status": "done", "measure": "return", "return": {"mean": value}}
        config = {"algo": {"name": "dppg"}, "env": {"name": "cartpole"}, "seed": seed}
        return Run(Path(str(seed)), status={"status": "done"}, config=config, summary=summary)

    return [made(seed, value) for seed, value in enumerate(values)]


PPO = group(110.0, 110.0)
TASK = control.Task("cartpole", [], [], PPO, 10.0, 60.0)


def test_median_and_iqm_where_seeds_differ_by_more_than_a_quarter_of_the_way() -> None:
    near, far = group(100.0, 90.0, 85.0, 80.0), group(100.0, 90.0, 85.0, 60.0)
    assert control._returns(TASK, near) == "88.8 ± 13.6"
    assert control._returns(TASK, far).endswith("; median 87.5, IQM 87.5")


def test_share_is_of_the_way_from_random_actions_to_ppo() -> None:
    assert control._of_ppo(TASK, group(60.0)) == "50%"
    assert control._of_ppo(TASK, group(10.0, 10.0)) == "0%"


def test_seeds_that_no_value_was_chosen_on() -> None:
    settings = control.described().settings()
    assert {setting.first for setting in settings} == {1000}
    assert all("seed=1000" in setting.key(setting.first) for setting in settings)


def test_each_task_has_the_epsilons_of_the_readme_and_equal_steps() -> None:
    for panel in control.described().panels:
        private, without, ppo = panel.lines
        epsilons = {
            dict(w.split("=", 1) for w in s.words)["privacy.epsilon"] for s in private.settings
        }
        assert {"1", "4"} <= epsilons
        assert "0.1" in epsilons or panel.label not in ("CartPole", "Dosing-0", "Dosing-1")
        steps = {_steps(one) for line in (private, without, ppo) for one in line.settings}
        own = {"total_steps=2_400_000"} if panel.label == "CartPole" else set()  # at epsilon 0.1
        assert len(steps - own) == 1


def _steps(setting: Setting) -> str:
    return [word for word in setting.words if word.startswith("total_steps=")][-1]
