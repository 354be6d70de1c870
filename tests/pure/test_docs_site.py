"""The built documentation in a real browser: strict build, no network, no overflow, no console error, search from a file."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs_reading import REPO
from tests.headless_browser import Page, browser

ARTIFACTS = REPO / ".artifacts" / "docs"  # pictures to look at, not committed
PICTURED = ("index", "instances", "gate")  # a picture of a page takes seconds on a slow machine
# What the theme lets scroll by itself.
FRAMES = ".md-typeset__scrollwrap, pre, .md-sidebar, .md-nav, .md-search, .md-header"
# Remote addresses that a browser would ask for by itself; a link that a reader may follow is not one.
REMOTE = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href|srcset)=[\"']?(?:https?:)?//[^>]*>|url\([\"']?(?:https?:)?//")


@pytest.fixture(scope="module")
def mkdocs(repo: Path) -> Path:
    """MkDocs in an environment of its own, made on first use; skips where it cannot be had."""
    program = repo / ".venv-docs" / "bin" / "mkdocs"
    if not program.exists():
        pip = [str(program.parent / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        try:
            subprocess.run([sys.executable, "-m", "venv", str(program.parent.parent)], check=True, capture_output=True)
            locked = ["--require-hashes", "--no-deps", "-r", str(repo / "requirements-docs.lock")]
            subprocess.run([*pip, *locked], check=True, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(program.parent.parent, ignore_errors=True)
            pytest.skip(f"MkDocs cannot be installed here (requirements-docs.lock): {error}")
    return program


@pytest.fixture(scope="module")
def site(mkdocs: Path, repo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [str(mkdocs), "build", "--strict", "-d", str(out)]
    done = subprocess.run(command, cwd=repo, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return out


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def test_every_page_of_the_repository_is_a_page_of_the_site(site: Path, repo: Path) -> None:
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    pages = {f"{page.stem}.html" for page in (repo / "docs").glob("*.md")}
    assert {"index.html", *pages} <= built
    assert {f"repository/examples/{example.name}.html" for example in (repo / "examples").glob("*.py")} <= built


def test_nothing_of_the_site_is_read_from_the_network(site: Path) -> None:
    files = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(files) > 30
    assert {path.name: found for path in files if (found := REMOTE.findall(path.read_text(encoding="utf-8")))} == {}


def test_a_remote_font_or_script_would_be_found() -> None:
    assert REMOTE.search('<script src="https://unpkg.com/x"></script>') and REMOTE.search("src: url(//fonts.example/x.woff2)")
    assert not REMOTE.search('<a href="https://example.com/">x</a> <img src="pictures/a.svg">')


def test_every_page_fits_at_both_widths_without_console_error_or_request(tab: Page, site: Path) -> None:
    pages = [*site.glob("*.html"), *(site / "repository").glob("*.html"), site / "repository" / "examples" / "minimal.py.html"]
    assert len(pages) > 20
    wrong = {}
    for page in sorted(pages):
        if page.name == "404.html":  # served with addresses from the root of a server
            continue
        tab.errors.clear()
        tab.requests.clear()
        tab.open(page, width=1280)
        found = []
        for width in (1280, 390):
            tab.resize(width)
            found += [f"{width}: {what}" for what in tab.too_wide(FRAMES, ".md-content")]
            if page.stem in PICTURED:
                tab.screenshot(ARTIFACTS / f"{page.stem}-{width}.png")
        found += [*tab.errors, *(url for url in tab.requests if not url.startswith(("file:", "data:")))]
        if found:
            wrong[page.name] = found
    assert wrong == {}


def test_a_page_that_is_too_wide_or_complains_would_be_found(tab: Page, tmp_path: Path) -> None:
    page = tmp_path / "wide.html"
    page.write_text('<meta name="viewport" content="width=device-width"><article class="md-content"><p style="width:600px">x</p></article><script>console.error("no")</script>')
    tab.errors.clear()
    tab.open(page, width=390)
    assert tab.too_wide(FRAMES, ".md-content") and tab.errors


def test_the_search_answers_from_a_file(tab: Page, site: Path) -> None:
    tab.open(site / "index.html", width=1280)
    tab.value("document.querySelector('[data-md-component=search-query]').focus()")
    tab.call("Input.insertText", text="spending limit")
    give_up = time.monotonic() + 20
    while not (found := tab.value("[...document.querySelectorAll('.md-search-result__link')].map(a => a.getAttribute('href'))")):
        assert time.monotonic() < give_up, f"no result; console: {tab.errors}"
        time.sleep(0.1)
    assert any("constructs.html" in link or "capacity.html" in link for link in found), found


# ---- the picture --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_of_the_architecture_lies_inside_its_box_and_is_large_enough(tab: Page, repo: Path, theme: str) -> None:
    tab.open(repo / "docs" / "pictures" / f"architecture-{theme}.svg", width=1280)
    tab.screenshot(ARTIFACTS / f"architecture-{theme}.png")
    outside = tab.value(
        """[...document.querySelectorAll('g.box')].flatMap(g => { const r = g.querySelector('rect').getBBox();
        return [...g.querySelectorAll('text')].filter(t => { const b = t.getBBox();
          return b.x < r.x || b.x + b.width > r.x + r.width || b.y < r.y || b.y + b.height > r.y + r.height + 2 }).map(t => t.textContent) })"""
    )
    assert outside == []
    sizes = tab.value("[...document.querySelectorAll('text')].map(t => parseFloat(getComputedStyle(t).fontSize))")
    assert len(sizes) > 30 and min(sizes) >= 13


def luminance(color: str) -> float:
    parts = [int(color[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_of_the_architecture_has_the_contrast_that_wcag_asks_for(repo: Path, theme: str) -> None:
    root = ElementTree.parse(repo / "docs" / "pictures" / f"architecture-{theme}.svg").getroot()
    rects = [e.get("fill") for e in root.iter("{http://www.w3.org/2000/svg}rect")]
    texts = {e.get("fill", "#000000") for e in root.iter("{http://www.w3.org/2000/svg}text")}
    for text in texts:
        for back in {fill for fill in rects if fill}:
            high, low = sorted((luminance(text), luminance(back)), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, back)
