"""Hooks of the documentation site (mkdocs.yml): generated pages, committed figures, pages of the repository.

- `reference/configuration.md`, `commands.md`, `metrics.md`: from the code (`reference_pages.py`).
- `results/figures.md`: every committed figure of outputs/paper.
- `changelog.md`, `contributing.md`, `examples/<name>.md`: CHANGELOG.md, CONTRIBUTING.md, examples' READMEs and
  the results beside them.
- Links from docs/ to an SVG file of outputs/paper or to the README of an example, which work in the repository,
  become links to the copies in the site.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath
from posixpath import relpath
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))

from mkdocs.structure.files import File, Files
from reference_pages import PAGES

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "outputs" / "paper"
TITLES = {
    "dppg": "Differentially Private Policy Gradient",
    "primorl": "PriMORL",
    "dp-rl": "REINFORCE and DQN under differential privacy",
    "gpope": "Private policy evaluation (GPOPE)",
    "speed": "Speed",
}
_FIGURE = re.compile(r"\((?:\.\./)+outputs/paper/([\w/.-]+\.svg)\)")
_EXAMPLE = re.compile(r"\((?:\.\./)+examples/(\w+)/README\.md\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and the figures."""
    pages = {f"reference/{name}.md": page() for name, page in PAGES.items()}
    pages["results/figures.md"] = gallery()
    for name in ("CHANGELOG", "CONTRIBUTING"):
        pages[f"{name.lower()}.md"] = (ROOT / f"{name}.md").read_text()
    for readme in sorted((ROOT / "examples").glob("*/README.md")):
        pages[f"examples/{readme.parent.name}.md"] = readme.read_text()
    for result in sorted((ROOT / "examples").glob("*/results/*")):
        at = f"examples/results/{result.name}"  # where the READMEs' links lead
        files.append(File.generated(config, at, abs_src_path=str(result)))
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    for figure in _figures():
        at = f"figures/{figure.relative_to(STORE).as_posix()}"
        files.append(File.generated(config, at, abs_src_path=str(figure)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to committed figures and to examples to the site's copies."""
    here = str(PurePosixPath(page.file.src_uri).parent)
    markdown = _FIGURE.sub(lambda m: f"({relpath(f'figures/{m[1]}', here)})", markdown)
    return _EXAMPLE.sub(lambda m: f"({relpath(f'examples/{m[1]}.md', here)})", markdown)


def gallery() -> str:
    """A page with every committed figure, by paper."""
    lines = ["# Figures", "", "Every committed figure, with its item in `outputs/paper/`.", ""]
    paper = ""
    for figure in _figures():
        item = figure.relative_to(STORE)
        if item.parts[0] != paper:
            paper = item.parts[0]
            lines += [f"## {TITLES.get(paper, paper)}", ""]
        lines += [f"### {_title(item)}", "", f"![{_title(item)}](../figures/{item.as_posix()})", ""]
    return "\n".join(lines)


def _figures() -> list[Path]:
    return sorted(STORE.rglob("*.svg"))


def _title(item: Path) -> str:
    """The title of an item in the papers' files, else its folder."""
    name = "/".join(item.parts[:-1] if item.stem == "figure" else item.with_suffix("").parts)
    described = ROOT / "privrl_bench" / "papers" / f"{item.parts[0]}.yaml"
    if described.exists() and len(item.parts) > 1:
        found = yaml.safe_load(described.read_text())["items"].get(item.parts[1])
        if found:
            return f"{found['title']} ({name})"
    return name
