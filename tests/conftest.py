"""Tests use one torch thread; `helpers` and `my_pkg` in this folder can be imported from subfolders."""

import torch

torch.set_num_threads(1)
