"""Hooks of the documentation site (mkdocs.yml): generated pages, committed figures, pages of the repository.

- `reference/configuration.md`, `metrics.md`: from the code (`reference_pages.py`).
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

sys.path.insert(0, str(Path(__file__).parent))

from mkdocs.structure.files import File, Files
from reference_pages import PAGES

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "outputs" / "paper"
_FIGURE = re.compile(r"\((?:\.\./)+outputs/paper/([\w/.-]+\.svg)\)")
_EXAMPLE = re.compile(r"\((?:\.\./)+examples/(\w+)/README\.md\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and the figures."""
    pages = {f"reference/{name}.md": page() for name, page in PAGES.items()}
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


def _figures() -> list[Path]:
    return sorted(STORE.rglob("*.svg"))
