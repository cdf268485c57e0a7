"""Box plots of the range of a dataset's observations.

Source: "Differential Privacy in Reinforcement Learning" (Doulazmi, Odonnat), figure 4 and table 1.
"""

from __future__ import annotations
