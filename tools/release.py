"""Check a release, and print its notes.

python tools/release.py check v0.2.0   fail unless the tag, the version and the changelog agree
python tools/release.py notes          print the changelog's section of this version
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SECTIONS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")  # in this order
HEADING = re.compile(r"^## \[(Unreleased|\d+\.\d+\.\d+)\](?: - (\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)


def package_version(root: Path = ROOT) -> str:
    """Return the version that src/stillhash/version.py names."""
    match = re.search(r'^__version__ = "(.+)"$', (root / "src/stillhash/version.py").read_text(), re.MULTILINE)
    if match is None:
        raise ValueError("src/stillhash/version.py: expected a line __version__ = ..., got none")
    return match[1]


def changelog_sections(text: str) -> dict[str, tuple[str | None, str]]:
    """Return the date and the text of each version, in the order of the file, without the links at its end."""
    body = re.split(r"^\[Unreleased\]: ", text, flags=re.MULTILINE)[0]
    headings = [*HEADING.finditer(body)]
    ends = [*(match.start() for match in headings[1:]), len(body)]
    return {match[1]: (match[2], body[match.end() : end].strip()) for match, end in zip(headings, ends, strict=True)}


def changelog_problems(text: str) -> list[str]:
    """List where a changelog departs from the form of Keep a Changelog."""
    problems = []
    second_level = re.findall(r"^## .*$", text, re.MULTILINE)
    sections = changelog_sections(text)
    if len(sections) != len(second_level):
        problems.append(f"headings: expected ## [VERSION] - DATE, each once, got {second_level}")
    if [*sections][:1] != ["Unreleased"]:
        problems.append("headings: expected ## [Unreleased] first")
    numbers = [tuple(map(int, name.split("."))) for name in sections if name != "Unreleased"]
    dates = [date or "" for name, (date, _) in sections.items() if name != "Unreleased"]
    if numbers != sorted(numbers, reverse=True) or dates != sorted(dates, reverse=True) or "" in dates:
        problems.append("headings: expected the latest version first, each with its date")
    for name, (_, body) in sections.items():
        parts = re.split(r"^### (.*)$", body, flags=re.MULTILINE)
        names = parts[1::2]
        if names != [each for each in SECTIONS if each in names]:
            problems.append(f"{name}: expected {', '.join(SECTIONS)}, in this order, got {names}")
        empty = [part for part, lines in zip(names, parts[2::2], strict=True) if not lines.strip()]
        if empty:
            problems.append(f"{name}: expected lines under each heading, got none under {', '.join(empty)}")
        if not re.search(rf"^\[{re.escape(name)}\]: https://", text, re.MULTILINE):
            problems.append(f"{name}: expected a link [{name}]: https://... at the end")
    return problems


def release_problems(tag: str, version: str, changelog: str) -> list[str]:
    """List why a tag cannot be released."""
    problems = changelog_problems(changelog)
    if tag != f"v{version}":
        problems.append(f"tag: expected v{version}, the version of the package, got {tag}")
    sections = changelog_sections(changelog)
    if not sections.get(version, (None, ""))[1]:
        problems.append(f"CHANGELOG.md: expected a section {version}, got none")
    if sections.get("Unreleased", (None, ""))[1]:
        problems.append("CHANGELOG.md: expected nothing under Unreleased, got some lines")
    return problems


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    changelog, version = (ROOT / "CHANGELOG.md").read_text(), package_version()
    match arguments:
        case ["check", tag]:
            problems = release_problems(tag, version, changelog)
            print("\n".join(problems) or f"{tag} can be released")
            return 1 if problems else 0
        case ["notes"]:
            print(changelog_sections(changelog)[version][1])
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
