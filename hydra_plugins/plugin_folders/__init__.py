"""Puts the YAML folders of plugins (`privrl_bench/config/plugins.py`) on Hydra's search path."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from privrl_bench.config.overrides import added_folders


class PluginFolders(SearchPathPlugin):
    """Adds the folders after the package's own. Their names differ from all others, so none hides another."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra whenever it is initialised; twice where its own scan finds this class, too."""
        known = {element.path for element in search_path.get_path()}
        for path in (f"file://{folder}" for folder in added_folders()):
            if path not in known:
                search_path.append("privrl_bench.plugins", path)
