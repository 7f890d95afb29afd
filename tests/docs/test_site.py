"""The web site: the navigation has every page, and the strict build works without network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def listed(entry: Any) -> Iterator[str]:
    """Yield the pages of a navigation entry."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for inner in entry.values():
            yield from listed(inner)
    else:
        for inner in entry:
            yield from listed(inner)


def test_navigation_has_every_page_once() -> None:
    pages = sorted(
        path.relative_to(DOCS).as_posix()
        for path in DOCS.rglob("*.md")
        if "examples" not in path.parts
    )

    assert sorted(listed(CONFIG["nav"])) == pages, "list the page in mkdocs.yml"


class Links(HTMLParser):
    """Collects the URLs that a page loads, its links and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a":
            self.links += [found["href"]] if "href" in found else []
        elif found.get("rel") != "canonical":
            self.loads += [
                found[name] for name in ("src", "href", "data", "action") if name in found
            ]


def test_link_parser_finds_loads_from_elsewhere() -> None:
    page = Links('<a href="https://a.org">a</a><img src="//b.org/c.png"><link href="d.css">')

    assert page.loads == ["//b.org/c.png", "d.css"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site from a copy, with proxies that do not work."""
    folder = tmp_path_factory.mktemp("site")
    for name in ("docs", "dingsdk", "mkdocs.yml", "CHANGELOG.md"):
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, folder / name)
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    built = subprocess.run(
        [Path(sys.executable).parent / "zensical", "build", "--strict"],
        cwd=folder, capture_output=True, text=True, timeout=170, check=False,
        env={**os.environ, **nowhere},
    )  # fmt: skip
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


@pytest.mark.slow
def test_site_loads_only_its_own_files_and_its_links_work(site: Path) -> None:
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(pages) > 40
    for path, page in pages.items():
        text = path.read_text(encoding="utf-8")
        # These classes make the scripts of the theme load more scripts.
        assert not re.search(r'class="[^"]*\b(mermaid|glightbox|pyodide)\b', text), path
        for url in page.loads:
            assert not urlsplit(url).scheme.startswith("http"), f"{path} loads {url}"
            assert not urlsplit(url).netloc, f"{path} loads {url}"
        if path.name == "404.html":
            continue  # its links start at the root of the server
        for url in page.links:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path} links to {url}"
            assert target.is_relative_to(site), f"{path} links to {url}"
            if parts.fragment and target in pages:
                anchors = pages[target].anchors
                assert unquote(parts.fragment) in anchors, f"{path} links to {url}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), (
            sheet
        )


@pytest.mark.slow
def test_search_and_reference_contain_every_public_name(site: Path) -> None:
    index = (site / "search.json").read_text(encoding="utf-8")
    for page in sorted((DOCS / "reference" / "api").glob("*.md")):
        anchors = Links((site / "reference/api" / f"{page.stem}.html").read_text()).anchors
        for name in re.findall(
            r'^## <a id="(\S+)"', page.read_text(encoding="utf-8"), re.MULTILINE
        ):
            assert name in anchors
            assert name.rpartition(".")[2] in index
