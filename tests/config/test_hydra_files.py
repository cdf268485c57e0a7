"""Keys set on a kept copy of the files give what Hydra composes of all words together."""

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from privrl_bench.composition import hydra_compose as config
from privrl_bench.composition import hydra_files
from privrl_bench.composition.compose import compose
from privrl_bench.composition.hydra_files import sections
from privrl_bench.config.overrides import CONFIG_NAME, conf_dir
from privrl_bench.errors import ConfigError

WORDS = [
    [],
    ["env=hopper", "algo=dppg", "privacy.z=0.5", "algo.hidden=[8,8]", "seed=3"],
    ["algo=dppg", "privacy=poisson", "privacy.population=null", "total_steps=1e5"],
    ["algo.hidden=[4]", "algo=ppo", "env=pendulum"],  # keys before groups
    ["+paper=dppg", "env=hopper", "privacy.clip=0.1"],
    ["~tuned", "env=walker2d", "rounds=7"],
    ["env=gym", "env.id=Acrobot-v1", "+env.kwargs.one=2", "++env.kwargs.two={a: 1}"],
    ["env=gym", "env.id=Acrobot-v1", "env.kwargs={a: [1, 2], b: x}"],
    ["env=sentiment_small", "env.text.new_tokens=6"],
    ["env=sentiment_small", "env.user_steps=${.text.new_tokens}"],
    ["plugins=[]", "data={public: 0.2, users: 5}", "hydra/launcher=basic"],
    ["collect=null", "log=none"],
    ["seed=1", "hydra.run.dir=run/0", "hydra.sweep.subdir=${hydra:job.num}", "rounds=2"],
    ["hydra.job.name=mine", "seed=1"],
]
WRONG = [
    ["privacy.zz=1"],
    ["privacy.z=x"],
    ["algo=dppg", "env={id: x}"],
    ["seed=1,2"],
    ["algo=nothing", "seed=x"],
    ["+privacy.z=1"],
    ["schema=x"],
    ["hydra.run.folder=x"],
    ["privacy@algo=fixed"],
    ["hydra.searchpath=[file:///nowhere_at_all]", "seed=x"],
]


def outcome(compose, words):
    """The config, or the error."""
    words = config.hydra_overrides(words)
    config.register_algo(words)
    with initialize_config_dir(str(conf_dir()), version_base=config.VERSION_BASE):
        try:
            made = compose(words)
        except config.COMPOSE_ERRORS as error:
            return type(error), str(error)
    types = {prefix: OmegaConf.get_type(one) for prefix, one in sections(made)}
    return OmegaConf.to_yaml(made), types, OmegaConf.is_struct(made), OmegaConf.is_readonly(made)


def of_hydra(words):
    return hydra_compose(CONFIG_NAME, words)


def ours(words):
    return hydra_files.composed(config.parse(words))


@pytest.mark.filterwarnings("ignore:provider=hydra.searchpath")
@pytest.mark.parametrize("words", WORDS + WRONG, ids=str)
def test_the_config_or_the_error_is_hydras_own(words):
    try:
        expected = outcome(of_hydra, words)
    except ConfigError:
        pytest.fail("refused before Hydra sees it")
    for _ in range(2):  # the second time, the files are kept
        assert outcome(ours, words) == expected


def test_a_config_does_not_change_the_one_that_is_kept():
    first = config.compose_raw(["algo.hidden=[5]"])
    first.algo.hidden.append(6)
    first.env.id = "other"
    second = config.compose_raw(["algo.hidden=[5]"])
    assert second.algo.hidden == [5]
    assert second.env.id != "other"
    assert config.compose_raw([]).algo.hidden != [5]


def test_files_of_users_are_read_each_time(tmp_path):
    (tmp_path / "privacy").mkdir()
    file = tmp_path / "privacy" / "mine.yaml"
    for delta in (1e-6, 1e-7):
        file.write_text(f"defaults: [fixed]\ndelta: {delta:.7f}\n")
        assert compose(["privacy=mine"], str(tmp_path)).privacy.delta == delta


def test_files_are_merged_once(monkeypatch):
    config.compose_raw(["env=pendulum", "algo=ppo", "seed=1"])
    monkeypatch.setattr(hydra_files, "hydra_compose", None)
    assert config.compose_raw(["env=pendulum", "algo=ppo", "seed=2"]).seed == 2
