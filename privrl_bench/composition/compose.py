"""`compose`: one run from overrides, checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from omegaconf import DictConfig, OmegaConf

from privrl_bench.composition import hydra_compose as raw
from privrl_bench.composition.generic_values import with_generic_values
from privrl_bench.composition.given_rules import as_given, check_private
from privrl_bench.composition.rules import check_run
from privrl_bench.config.overrides import explicit_keys, own_folder
from privrl_bench.config.schema import RunConfig


def compose(overrides: Iterable[str] = (), config_dir: str | None = None) -> RunConfig:
    """Compose one run as the command line would. Raises `ConfigError`, one line.

    Args:
        overrides: words like `env=hopper` or `privacy.z=0.1`, without sweeps.
        config_dir: a folder with YAML files in the same groups; they win over the package's of their names.

    >>> compose(["env=hopper"]).privacy.clip
    0.75
    """
    words = list(overrides)
    with own_folder(config_dir):
        return checked(raw.compose_raw(words), explicit_keys(words))


def checked(cfg: DictConfig, explicit: Collection[str] = ()) -> RunConfig:
    """A composed configuration as checked dataclasses. Raises `ConfigError`.

    Args:
        cfg: of `hydra_compose.compose_raw`.
        explicit: keys that the command line gives (`overrides.explicit_keys`), which must not be ignored.
    """
    raw.check_keys(cfg)
    check_private(OmegaConf.get_type(cfg.algo), cfg.privacy, explicit)
    run = raw.to_run_config(with_generic_values(cfg, explicit))
    check_run(run)
    return as_given(run, set(explicit))
