"""Rewrite relative links of Markdown files in the repository to the addresses of the pages of the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from website.markdown import map_prose, prose_lines

ROOT = Path(__file__).parents[1]
ROOT_PAGES = {  # files beside docs/ that are pages of the site
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")


def relative_links(markdown: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the anchor of each link that is no address of the web; the path is empty for this page."""
    for link in (link for line in prose_lines(markdown) for link in LINK.findall(line)):
        if "://" not in link and not link.startswith("mailto:"):
            path, _, anchor = link.partition("#")
            yield path, anchor


def site_path(path: str) -> str | None:
    """Return the page or file of the site that a file of the repository becomes; None if it is not on the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else ROOT_PAGES.get(path)


def copy_path(path: str) -> str:
    """Return where the site holds a copy of a file that is no page: as text, which a browser shows, or a notebook."""
    return f"files/{path}" if path.endswith(".ipynb") else f"files/{path}.txt"


def rewrite_links(markdown: str, source: str, page: str, copy: Callable[[str], None]) -> str:
    """Return the Markdown of a file of the repository as a page of the site, with links that work there.

    `copy` is called with each linked file of the repository that is not on the site otherwise.
    """

    def rewrite(match: re.Match[str]) -> str:
        path, mark, anchor = match[1].partition("#")
        if "://" in path or path.startswith("mailto:") or not path:
            return match[1]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        on_site = site_path(target)
        if on_site is None and (ROOT / target).is_file():
            on_site = copy_path(target)
            copy(target)
        if on_site is None:
            return match[1]  # the strict build refuses it
        return posixpath.relpath(on_site, posixpath.dirname(page) or ".") + mark + anchor

    return map_prose(markdown, lambda line: LINK.sub(rewrite, line))
