"""Hooks of the documentation site (mkdocs.yml): generated pages, committed figures, pages of the repository.

- `reference/configuration.md`, `metrics.md`: from the code (`reference_pages.py`).
- `changelog.md`, `contributing.md`, `examples/<name>.md`: CHANGELOG.md, CONTRIBUTING.md, examples' READMEs and
  the results beside them.
- `examples/<name>_notebook.md`: from the notebooks of examples/, with the outputs that are in them.
- `cite.md`: from CITATION.cff; the footer links to it and shows the version of pyproject.toml.
- Links from docs/ to an SVG file of outputs/paper or to the README of an example, which work in the repository,
  become links to the copies in the site.
- A page has its own heading as name in the menu, so that the two cannot differ.
- Search: guides come before results, and logs of the project are left out.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import sys
import tomllib
from pathlib import Path, PurePosixPath
from posixpath import relpath
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import yaml
from mkdocs.structure.files import File, Files, InclusionLevel
from pymdownx.arithmatex import arithmatex_fenced_format
from reference_pages import PAGES

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "outputs" / "paper"
_FIGURE = re.compile(r"\((?:\.\./)+outputs/paper/([\w/.-]+\.svg)\)")
_EXAMPLE = re.compile(r"\((?:\.\./)+examples/(\w+)/README\.md\)")
_TAG = re.compile(r"<[^>]*>")
_OPTION = re.compile(r"(?<=\s)--[a-z-]+")  # which a browser would break after a hyphen
_CELL = re.compile(r"<td((?: style=\"[^\"]*\")?)>(.*?)</td>", re.DOTALL)
_BLOCK = re.compile(r"<pre>.*?</pre>", re.DOTALL)
_COMMAND = re.compile(r"(\$ )?(privrl|privrl-bench|pip|python|[A-Z_]+=\S+ privrl\S*) ")
# Search: the weight of a folder or a part of the menu, the first that fits; 1 for the others.
BOOST = {
    "concepts/": 8.0,  # what a word means comes first
    "reference/configuration.md": 3.0,
    "reference/api.md": 0.5,
    "cite.md": 0.2,
    "quickstart.md": 3.0,
    "Guides": 2.0,
    "Results": 0.2,
    "Claims of papers": 0.2,
    "Project": 0.2,
}
UNSEARCHED = ("decisions.md", "changelog.md")  # logs: they name everything
# Of these parts the text is searched, and not the rows of numbers.
TABLES_UNSEARCHED = ("Results", "Claims of papers")


def on_config(config: Any) -> Any:
    """The version, for the footer; a block ```math is a formula, as in the repository's viewer."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    config.extra["release"] = project["version"]
    formula = {"name": "math", "class": "arithmatex", "format": arithmatex_fenced_format()}
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = [formula]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and the figures."""
    pages = {f"reference/{name}.md": page() for name, page in PAGES.items()}
    for name in ("CHANGELOG", "CONTRIBUTING"):
        pages[f"{name.lower()}.md"] = (ROOT / f"{name}.md").read_text()
    for readme in sorted((ROOT / "examples").glob("*/README.md")):
        text = readme.read_text().replace("](../../docs/", "](../")
        pages[f"examples/{readme.parent.name}.md"] = text
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        name = f"examples/{notebook.stem}_notebook"
        pages[f"{name}.md"], pictures = _notebook(notebook)
        for number, picture in enumerate(pictures, start=1):
            files.append(File.generated(config, f"{name}_{number}.png", content=picture))
    for result in sorted((ROOT / "examples").glob("*/results/*")):
        at = f"examples/results/{result.name}"  # where the READMEs' links lead
        files.append(File.generated(config, at, abs_src_path=str(result)))
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    if "cite.md" not in files.src_uris:  # the footer links to it; it needs no place in the menu
        unlisted = InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, "cite.md", content=_cite(), inclusion=unlisted))
    for figure in _figures():
        at = f"figures/{figure.relative_to(STORE).as_posix()}"
        files.append(File.generated(config, at, abs_src_path=str(figure)))
    return files


def on_nav(nav: Any, files: Files, **_: Any) -> Any:
    """Weights of parts or pages that were renamed would be lost in silence."""
    places = [*(item.title for item in nav.items), *files.src_uris]
    for name in (*BOOST, *UNSEARCHED, *TABLES_UNSEARCHED):
        if not any(place and place.startswith(name) for place in places):
            # A warning of this logger fails a strict build.
            logging.getLogger("mkdocs.hooks").warning("site_hooks.py names %r: no such place", name)
    return nav


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to committed figures and to examples to the site's copies; rank the page in the search."""
    search = page.meta.setdefault("search", {})
    if page.file.src_uri in UNSEARCHED:
        search.setdefault("exclude", True)
    places = (page.file.src_uri, _part(page))
    fitting = [
        weight for at, weight in BOOST.items() if places[0].startswith(at) or at == places[1]
    ]
    search.setdefault("boost", fitting[0] if fitting else 1.0)
    here = str(PurePosixPath(page.file.src_uri).parent)
    markdown = _FIGURE.sub(lambda m: f"({relpath(f'figures/{m[1]}', here)})", markdown)
    return _EXAMPLE.sub(lambda m: f"({relpath(f'examples/{m[1]}.md', here)})", markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Name the page after its heading; keep rows of numbers out of the search."""
    headings = list(page.toc)
    if headings and not page.is_homepage:
        page.title = menu_name(headings[0].title)
    if _part(page) in TABLES_UNSEARCHED:
        html = html.replace("<table>", '<table data-search-exclude="true">')
    html = _CELL.sub(lambda m: f'<td class="text"{m[1]}>{m[2]}</td>' if _long(m[2]) else m[0], html)
    return _BLOCK.sub(lambda m: "\n".join(map(_command, m[0].split("\n"))), html)


def _long(cell: str) -> bool:
    """Whether a cell is text, which needs width (site.css), rather than a key or a number."""
    return len(_TAG.sub("", cell)) > 50


def _command(line: str) -> str:
    """A line of a block; a command is marked, so that it wraps (site.css)."""
    before, code, text = line.rpartition("<code>")
    whole = text.count("<span") == text.count("</span") and "</code>" not in text
    if not whole or not _COMMAND.match(_TAG.sub("", text)):
        return line
    text = _OPTION.sub(r'<span class="option">\g<0></span>', text)
    return f'{before}{code}<span class="command">{text}</span>'


def menu_name(heading: str) -> str:
    """A heading up to its colon or bracket, which is what fits in a menu."""
    return re.split(r": | \(", heading)[0]


def _part(page: Any) -> str:
    """The part of the menu that a page is in; its own name at the top of the menu."""
    above = [section.title for section in page.ancestors]
    return str(above[-1] if above else page.title)


def _cite() -> str:
    """The page on how to cite, from CITATION.cff."""
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    people = [
        one.get("name") or f"{one['family-names']}, {one['given-names']}" for one in cff["authors"]
    ]
    fields = {
        "title": f"{{{cff['title']}}}",
        "author": " and ".join(f"{{{one}}}" if "," not in one else one for one in people),
        "version": str(cff["version"]),
        "year": str(cff.get("date-released", ""))[:4],
        "doi": cff.get("doi"),
        "url": cff.get("url") or cff.get("repository-code"),
        "note": f"License: {cff['license']}",
    }
    entry = [f"    {key} = {{{value}}}," for key, value in fields.items() if value]
    return "\n".join(
        [
            "# Cite",
            "",
            cff["message"],
            "",
            "```bibtex",
            "@software{privrl_bench,",
            *entry,
            "}",
            "```",
            "",
            "The papers of the methods are on the pages of the algorithms and on [Results](results/index.md). "
            "Give the version and the configuration with every epsilon that you quote.",
            "",
        ]
    )


def _notebook(path: Path) -> tuple[str, list[bytes]]:
    """A notebook as a page, and its pictures, which the page expects beside it, numbered from 1."""
    parts: list[str] = []
    pictures: list[bytes] = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                pictures.append(base64.b64decode("".join(data["image/png"])))
                parts.append(f"![Output of the cell]({path.stem}_notebook_{len(pictures)}.png)")
            else:
                text = "".join(output.get("text") or data.get("text/plain", ()))
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def _figures() -> list[Path]:
    return sorted(STORE.rglob("*.svg"))
