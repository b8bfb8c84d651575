"""Follow the links of all guides in the repository: the file exists, and so does the heading that an anchor names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from website.links import ROOT, relative_links
from website.markdown import prose_lines

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site name them."""
    headings = [
        line.lstrip("#").strip() for line in prose_lines(page.read_text(encoding="utf-8")) if re.match("#+ ", line)
    ]
    return {NOT_IN_ANCHORS.sub("", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    missing = []
    for path, anchor in relative_links(page.read_text(encoding="utf-8")):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            missing.append(f"{path}#{anchor}")
    assert missing == []


def test_anchors_of_headings(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text('# One: two\n```sh\n# no heading\n```\n## "is damaged" (exit code 5)\n')
    assert anchors(tmp_path / "page.md") == {"one-two", "is-damaged-exit-code-5"}
