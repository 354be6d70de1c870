"""Files stay short enough to be read in one go, or say why not."""

from __future__ import annotations

import re
from pathlib import Path

LIMIT = 300
REASON = re.compile(r"over 300 lines because", re.IGNORECASE)
FOLDERS = ("bench", "constructs", "docs", "examples", "job", "stacks", "tools")


def too_long(name: str, text: str) -> bool:
    return len(text.splitlines()) > LIMIT and not REASON.search(text)


def test_no_source_file_is_over_300_lines_without_a_stated_reason(repo: Path) -> None:
    paths = [*repo.glob("*.py"), *(path for folder in FOLDERS for path in (repo / folder).rglob("*.py"))]
    assert len(paths) > 100
    assert [p.relative_to(repo).as_posix() for p in paths if too_long(p.name, p.read_text(encoding="utf-8"))] == []


def test_a_long_file_is_found_and_a_reason_is_accepted() -> None:
    assert too_long("x.py", "\n" * 301)
    assert not too_long("x.py", "\n" * 300)
    assert not too_long("x.py", '"""Over 300 lines because of its table."""' + "\n" * 301)
