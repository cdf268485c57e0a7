"""The documentation site, built once: it opens from the disk and asks no other host; menu names are titles.

How a page looks is not tested here.
"""

import json
import os
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).parent.parent
# What a browser fetches by itself. A link that a reader may click is not among them.
FETCHED = {
    "script": ("src",),
    "link": ("href",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
}
NOT_FETCHED = {"canonical", "prev", "next", "alternate"}


class Page(HTMLParser):
    """What the tests ask of one page."""

    def __init__(self, path):
        super().__init__()
        self.fetched, self.links, self.css = [], [], []
        self.text, self.title, self.heading, self.active = "", "", "", []
        self._open = []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        classes = (attrs.get("class") or "").split()
        if not (tag == "link" and attrs.get("rel") in NOT_FETCHED):
            self.fetched += [attrs[one] for one in FETCHED.get(tag, ()) if attrs.get(one)]
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
        self.css.append(attrs.get("style") or "")
        if tag not in ("meta", "link", "input", "img", "br", "hr", "source", "path", "wbr"):
            self._open.append((tag, classes))

    def handle_endtag(self, tag):
        while self._open and any(tag == one for one, _ in self._open):
            if self._open.pop()[0] == tag:
                break

    def handle_data(self, data):
        tags = {tag for tag, _ in self._open}
        classes = {one for _, names in self._open for one in names}
        if "style" in tags:
            self.css.append(data)
        elif "title" in tags and "svg" not in tags:
            self.title += data
        if "article" not in tags or tags & {"script", "style"}:
            return
        if "h1" in tags and "headerlink" not in classes:
            self.heading += data
        if not tags & {"code", "pre"} and "arithmatex" not in classes:
            self.text += data


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the site."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-d", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="session")
def pages(site):
    """Address of each page -> what is on it."""
    return {path.relative_to(site).as_posix(): Page(path) for path in sorted(site.rglob("*.html"))}


def here(site, page, address):
    """The file that an address of a page means, or None if it is on another host."""
    parts = urlsplit(address)
    if parts.scheme == "data" or not parts.path:
        return site
    if parts.scheme or parts.netloc:
        return None
    path = unquote(parts.path)
    # 404.html is shown at any address, so its own start at the root.
    return site / path[1:] if path.startswith("/") else site / Path(page).parent / path


def test_pages_fetch_files_of_the_site_only(site, pages):
    fetched = [(name, url) for name, page in pages.items() for url in page.fetched]
    assert len(fetched) > len(pages)
    wrong = [one for one in fetched if not ((at := here(site, *one)) and at.exists())]
    assert not wrong


def test_styles_fetch_files_of_the_site_only(site, pages):
    sheets = {
        path.relative_to(site).as_posix(): path.read_text() for path in site.rglob("*.css")
    } | {name: "\n".join(page.css) for name, page in pages.items()}
    fetched = [
        (name, url.strip("'\""))
        for name, text in sheets.items()
        for url in re.findall(r"url\(([^)]*)\)|@import\s+[\"']([^\"']*)", text)
        for url in url
        if url and not url.strip("'\"").startswith(("data:", "#"))
    ]
    assert any(url.endswith(".woff2") for _, url in fetched)  # the fonts of formulas
    wrong = [one for one in fetched if not ((at := here(site, *one)) and at.exists())]
    assert not wrong


def test_the_search_works_from_the_disk(site, pages):
    """A page from the disk may fetch no JSON and start no worker: the index is a script, the worker a shim."""
    start, _, text = (site / "search" / "search_index.js").read_text().partition("=")
    assert start.split() == ["var", "__index"]
    found = json.loads(text)["docs"]
    addresses = {one["location"].partition("#")[0] for one in found}
    assert "concepts/guarantee.html" in addresses
    assert not addresses & {"decisions.html", "changelog.html"}
    assert addresses <= set(pages)
    shims = [[url for url in page.fetched if "iframe-worker" in url] for page in pages.values()]
    assert all(len(one) == 1 for one in shims)


def test_what_a_word_means_weighs_more_than_where_it_occurs(site):
    weights = {}
    for one in json.loads((site / "search" / "search_index.json").read_text())["docs"]:
        weights[one["location"].partition("#")[0]] = one["boost"]
    assert weights["concepts/guarantee.html"] > weights["guides/tuning.html"]
    assert weights["guides/tuning.html"] > weights["dppg.html"] > weights["results/control.html"]


def test_a_missing_page_says_so_and_leads_on(site, pages):
    page = pages["404.html"]
    assert page.heading == "Page not found"
    assert len(page.text.split()) > 20
    own = [url for url in page.links if not urlsplit(url).netloc and urlsplit(url).path]
    assert {"/index.html", "/quickstart.html", "/reference/configuration.html"} <= set(own)
    assert all(here(site, "404.html", url).exists() for url in own)
    assert '<form class="missing" action="/index.html"' in (site / "404.html").read_text()


def test_the_menu_calls_a_page_as_its_heading_does(site, pages):
    """Up to a colon or a bracket; the home page is called Home."""
    menu = re.findall(
        r'<a href="([^"]+)" class="md-nav__link[^"]*">(.*?)</a>',
        (site / "cite.html").read_text(),  # at the root, and in no part of the menu
        re.DOTALL,
    )
    names = {url: unescape(" ".join(re.sub("<[^>]*>", "", name).split())) for url, name in menu}
    names = {url: name for url, name in names.items() if url in pages and url != "index.html"}
    assert len(names) > 40
    differing = {
        url: (name, pages[url].heading)
        for url, name in names.items()
        if re.split(r": | \(", pages[url].heading)[0] != name
    }
    assert not differing


def test_the_notebook_is_a_page_with_code_and_outputs(site, pages):
    cells = json.loads((ROOT / "examples" / "quickstart.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    html = (site / "examples" / "quickstart_notebook.html").read_text()
    text = unescape(re.sub("<[^>]*>", "", html))
    for cell in code:
        assert "".join(cell["source"]) in text
        for output in cell["outputs"]:
            assert "".join(output.get("text", "")) in text
    (picture,) = (site / "examples").glob("quickstart_notebook_*.png")
    assert picture.name in pages["examples/quickstart_notebook.html"].fetched


def test_formulas_are_marked_to_be_drawn(pages):
    raw = {
        name: found
        for name, page in pages.items()
        if (found := re.findall(r"\\[(\[].{0,40}", page.text))
    }
    assert not raw


def test_long_commands_are_marked_to_wrap(site):
    text = (site / "guides" / "tuning.html").read_text()
    blocks = re.findall(r"<pre>.*?</pre>", text, re.DOTALL)
    lines = [line for block in blocks for line in block.split("\n")]
    long = [
        one for one in lines if re.sub("<[^>]*>", "", one).startswith("privrl") and len(one) > 80
    ]
    assert long
    assert all('<span class="command">' in one for one in long)
    guide = (site / "guides" / "logs.html").read_text()
    assert '<span class="option">--last-observation</span> repeat' in guide


def test_the_footer_has_version_and_citation(site, pages):
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[
        1
    ]
    text = (site / "reference" / "configuration.html").read_text()
    assert f"privrl_bench {version}" in text
    assert "../cite.html" in pages["reference/configuration.html"].links
