"""Puts the YAML folders of plugins (`composition/plugins.py`) and of users on Hydra's search path."""

from __future__ import annotations

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

from privrl_bench.config.overrides import OWN_FOLDER, added_folders, own


class PluginFolders(SearchPathPlugin):
    """Adds the folders of plugins after the package's own, and that of `--config-dir` before it.

    Hydra takes the first file of a name: one of `--config-dir` wins. No two plugins have files of one name.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Called by Hydra whenever it is initialised; twice where its own scan finds this class, too."""
        known = {element.path for element in search_path.get_path()}
        for path in (f"file://{folder}" for folder in added_folders()):
            if path not in known:
                search_path.append("privrl_bench.plugins", path)
        folder = own()
        if folder is not None and f"file://{folder.resolve()}" not in known:
            search_path.prepend(OWN_FOLDER, f"file://{folder.resolve()}")
