"""The pages hold together: every relative link leads somewhere, and nothing waits to be filled in."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_and_pictures_are_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_waits_to_be_filled_in(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"<!-- ([^>]*) -->\s*<!-- end -->", text)
    assert not re.search(r"^[A-Z]{4,}$", text, re.MULTILINE)
