"""The packs of the package: plugins like any other, and what a run does not need is not imported."""

import subprocess
import sys

import pytest

from privrl_bench.composition import plugins
from privrl_bench.config import overrides

PACKS = plugins._packs()


@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.usefixtures("plugins_restored")
def test_a_pack_passes_what_every_plugin_is_checked_for(pack, monkeypatch):
    """As a plugin that is loaded into a process without it."""
    plugin, _ = plugins._imported(pack, pack)
    monkeypatch.setattr(overrides, "_folders", [])
    for name in plugin.algorithms:
        plugins.ALGORITHMS.pop(name, None)
    for field, registry in plugins._REGISTRIES.items():
        known = {k: v for k, v in registry.outside.items() if k not in getattr(plugin, field)}
        monkeypatch.setattr(registry, "outside", known)
    plugins._loaded.clear()
    plugins.register(plugin, pack)
    for field, registry in plugins._REGISTRIES.items():
        for name in getattr(plugin, field):
            assert registry.get(name) is not None
    for where in (*plugin.functions.values(), *(one.function for one in plugin.commands.values())):
        module, _, name = where.partition(":")
        assert callable(getattr(__import__(module, fromlist=[name]), name))


RUN = (
    "import privrl_bench\n"
    "privrl_bench.run('algo=dppg env=cartpole rounds=2 privacy.users_per_round=4 "
    "privacy.epsilon=8 log=none log.plot=false')"
)
MODULES = (
    "import sys\n"
    "print([m for m in sys.modules if m.startswith(('privrl_bench.packs.', 'privrl_bench.papers'))"
    " and m.count('.') > 1 + m.startswith('privrl_bench.packs')])"
)


def test_importing_the_package_or_a_dppg_run_imports_no_pack(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", f"{RUN}\n{MODULES}"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.splitlines()[-1] == "[]"
