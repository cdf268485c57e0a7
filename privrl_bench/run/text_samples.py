"""Answers of a language model before and after training, for the terminal."""

from __future__ import annotations

import textwrap
from typing import Any

_WIDTH = 108


def before_and_after(samples: list[dict[str, Any]]) -> list[str]:
    """Return lines with the first and the last answer to every prompt of samples.jsonl.

    >>> before_and_after([{"round": n, "prompt": "it was", "answer": a, "score": s}
    ...                   for n, a, s in [(0, " bad", -1.0), (5, " good", 2.0)]])
    ['  prompt  it was', '  before    -1.00   bad', '  after      2.00   good']
    """
    if not samples:
        return []
    first, last = samples[0]["round"], samples[-1]["round"]
    old = {s["prompt"]: s for s in samples if s["round"] == first}
    new = {s["prompt"]: s for s in samples if s["round"] == last}
    lines = []
    for prompt in [p for p in old if p in new and first != last]:
        lines.append(f"  prompt  {_short(prompt)}")
        for name, said in (("before", old[prompt]), ("after", new[prompt])):
            lines.append(f"  {name:6}  {said['score']:7.2f}  {_short(said['answer'])}")
    return lines


def _short(text: str) -> str:
    """Return a text in one line, shortened if it is long."""
    line = text.replace("\n", " ")
    return textwrap.shorten(line, _WIDTH, placeholder=" ...") if len(line) > _WIDTH else line
