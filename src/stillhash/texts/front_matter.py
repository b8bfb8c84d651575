"""Tags of Markdown files: the entry `tags` of the block between --- lines at the beginning. YAML is not needed.

Three forms are read: `tags: [cats, dogs]`, `tags: cats, dogs`, and a list of `- cats` lines below `tags:`.
"""

import re
from typing import NamedTuple

MAX_FRONT_MATTER = 1 << 16  # characters; a longer one is part of the text
FRONT_MATTER = re.compile(r"---[^\S\n]*\r?\n(.*?)^(?:---|\.\.\.)[^\S\n]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
TAGS_ENTRY = re.compile(r"^tags[^\S\n]*:(.*)", re.MULTILINE | re.IGNORECASE)
TAG_LINE = re.compile(r"\s*-\s+(.*)")


class FrontMatter(NamedTuple):
    """Where the text of a Markdown file begins, and its tags; None if there is no such entry."""

    end: int
    tags: list[str] | None


def read_front_matter(text: str) -> FrontMatter:
    """Return the tags of a Markdown file, and where its front matter ends: 0 if it has none."""
    match = FRONT_MATTER.match(text, 0, MAX_FRONT_MATTER)
    if match is None:
        return FrontMatter(0, None)
    entry = TAGS_ENTRY.search(match[1])
    if entry is None:
        return FrontMatter(match.end(), None)
    listed = _strip_comment(entry[1])
    if listed:
        return FrontMatter(match.end(), _clean_tags(listed.removeprefix("[").removesuffix("]").split(",")))
    tags = []
    for line in match[1][entry.end() :].splitlines()[1:]:
        item = TAG_LINE.fullmatch(line)
        if item is None:
            break
        tags.append(_strip_comment(item[1]))
    return FrontMatter(match.end(), _clean_tags(tags))


def _strip_comment(text: str) -> str:
    return re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()


def _clean_tags(tags: list[str]) -> list[str]:
    """Strip spaces and quotes; each tag once."""
    stripped = (tag.strip().strip("\"'").strip() for tag in tags)
    return list(dict.fromkeys(tag for tag in stripped if tag))
