"""The algorithms: `algo=<name>` is `<family>/<name>.py`, with its YAML file `conf/algo/<name>.yaml`.

The module has `ALGORITHM`, the class; its settings are in `<family>/<family>_settings.py`, which does not
import torch. `algorithms/registry.py` lists them, and adds algorithms of other packages.
"""
