"""Hook of ``mkdocs.yml``: pages of the repository that lie outside ``docs/`` become pages of the site.

The same Markdown serves GitHub and the site. README.md is the start page; other Markdown files, and each source file or folder
that a page links to, become pages below ``repository/``, and links are rewritten to them. So the built site needs no network and
no repository beside it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
PICTURE = re.compile(r"<picture>.*?</picture>", re.DOTALL)
# The start page's picture, once for each of the theme's colour schemes.
SCHEMES = '![Architecture](pictures/architecture-light.svg#only-light)\n![Architecture](pictures/architecture-dark.svg#only-dark)'
LANGUAGES = {".py": "python", ".json": "json", ".yml": "yaml", ".txt": "text", ".toml": "toml"}
ROOT_PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "bench/speed.md")


def page_of(path: str) -> str:
    """Where a file of the repository (``docs/deploy.md``, ``examples/minimal.py``) stands in the site's sources."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def targets(text: str, folder: str) -> set[str]:
    """Files of the repository that a page in ``folder`` links to, as paths from the root."""
    found = set()
    for link, _ in LINK.findall(FENCE.sub("", text)):
        if not re.match(r"[a-z]+:", link):
            found.add(posixpath.normpath(posixpath.join(folder, link)))
    return found


def rewritten(text: str, folder: str, here: str) -> str:
    """``text`` of a page that lies in ``folder`` of the repository and at ``here`` in the site, with the site's links."""

    def change(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        if re.match(r"[a-z]+:", link):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, link))
        return posixpath.relpath(page_of(path), posixpath.dirname(here) or ".") + anchor

    parts, at = [], 0
    for fence in [*FENCE.finditer(text), None]:
        parts.append(LINK.sub(change, text[at : fence.start() if fence else len(text)]))
        if fence:
            parts.append(fence[0])
            at = fence.end()
    return "".join(parts)


def source_page(path: str) -> str:
    """A source file, or a folder's files, as a page."""
    place = REPO / path
    if place.is_dir():
        files = sorted(p for p in place.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        lines = [f"- [{p.relative_to(place).as_posix()}]({p.relative_to(place).as_posix()})" for p in files]
        return f"# {path}/\n\n" + "\n".join(lines) + "\n"
    return f"# {path}\n\n````{LANGUAGES.get(place.suffix, 'text')}\n{place.read_text(encoding='utf-8').rstrip()}\n````\n"


def everything() -> dict[str, tuple[str, str]]:
    """Path in the repository -> (folder that its links start from, text), of every page that ``docs/`` does not hold."""
    made: dict[str, tuple[str, str]] = {}
    waiting = ["README.md", *ROOT_PAGES]
    for page in sorted((REPO / "docs").glob("*.md")):
        waiting += sorted(targets(page.read_text(encoding="utf-8"), "docs"))
    while waiting:
        path = waiting.pop()
        inside = path.startswith("docs/") and not path.endswith(".py")
        if path in made or inside or not (REPO / path).exists():
            continue  # a link that leads nowhere is found by the strict build
        if path.endswith(".md"):
            folder, text = posixpath.dirname(path), (REPO / path).read_text(encoding="utf-8")
        else:
            folder, text = (path if (REPO / path).is_dir() else posixpath.dirname(path)), source_page(path)
        made[path] = (folder, text)
        waiting += sorted(targets(text, folder))
    return made


def on_files(files: Any, config: Any) -> Any:
    """MkDocs calls this with the files of ``docs/``: the others are added."""
    from mkdocs.structure.files import File, InclusionLevel

    named = {page_of(path) for path in ("README.md", *ROOT_PAGES)}
    for path, (folder, text) in everything().items():
        here = page_of(path)
        body = PICTURE.sub(SCHEMES, rewritten(text, folder, here))
        file = File.generated(config, here, content=body)
        if here not in named:
            file.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(file)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The pages of ``docs/`` itself; the others were rewritten when they were made."""
    if page.file.generated_by is not None:
        return markdown
    return rewritten(markdown, "docs", page.file.src_uri)
