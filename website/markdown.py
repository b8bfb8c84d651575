"""Pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence

FENCE = re.compile(r"\s*```")
MERMAID = re.compile(r"^```mermaid\nflowchart TD\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"<td>(.*?)</td>", re.DOTALL)
NUMBERS = re.compile(r"[-+.,/%\d\s]+")
NESTED_ITEM = re.compile(r"( +)(?=(?:[-*]|\d+\.) )")


def cell(text: str) -> str:
    """Return text for a cell of a table: one line, with its bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells must be escaped already."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def map_prose(markdown: str, change: Callable[[str], str]) -> str:
    """Apply a function to each line that is not in a fenced code block."""
    lines, in_code = [], False
    for line in markdown.split("\n"):
        fence = FENCE.match(line) is not None
        in_code ^= fence
        lines.append(line if in_code or fence else change(line))
    return "\n".join(lines)


def prose_lines(markdown: str) -> Iterator[str]:
    """Yield the lines that are not in a fenced code block."""
    in_code = False
    for line in markdown.split("\n"):
        if FENCE.match(line):
            in_code = not in_code
        elif not in_code:
            yield line


def layers_to_html(markdown: str) -> str:
    """Replace flowcharts of layers, `a & b --> c`, by HTML, so that no script has to be loaded to draw them."""

    def draw(match: re.Match[str]) -> str:
        layers: list[str] = []
        for line in match[1].splitlines():
            layers += [layer.strip() for layer in line.split("-->") if layer.strip() not in layers]
        rows = ("".join(f"<code>{name.strip()}</code>" for name in layer.split("&")) for layer in layers)
        return f'<div class="layers">{"".join(f"<div>{row}</div>" for row in rows)}</div>'

    return MERMAID.sub(draw, markdown)


def indent_lists(markdown: str) -> str:
    """Indent nested items by four spaces a level in place of two, as the Markdown of Python expects."""
    return map_prose(
        markdown, lambda line: NESTED_ITEM.sub(lambda match: " " * (len(match[1]) // 2 * 4), line, count=1)
    )


def fix_cells(html: str) -> str:
    """Mark cells of numbers, which should stay on one line, and show an escaped bar in code as a bar."""

    def fix(match: re.Match[str]) -> str:
        opening = '<td class="number">' if NUMBERS.fullmatch(match[1]) else "<td>"
        return opening + match[1].replace("\\|", "|") + "</td>"

    return CELL.sub(fix, html)
