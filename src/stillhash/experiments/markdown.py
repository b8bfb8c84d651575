"""A report's Markdown, and the page that it becomes."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from matplotlib.figure import Figure

from stillhash.experiments import figures

ABSENT = "—"

Draw = Callable[[str, str, Figure], str]  # name, title, figure -> Markdown
Section = list[str]  # blocks of Markdown, the heading first


def plain(text: str) -> str:
    """Text as it is, where Markdown or HTML would see marks in it."""
    text = re.sub(r"([\\`*\[\]<>|&~])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: bool = False) -> str:
    rule = ["---", *(["---" if left else "---:"] * (len(head) - 1))]
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, rule, *rows])


STYLE = """
:root { color-scheme: light dark; --ink: #24292f; --page: #ffffff; --faint: #d0d7de; }
@media (prefers-color-scheme: dark) { :root { --ink: #dbe1e8; --page: #14181d; --faint: #3a424c; } }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; color: var(--ink); background: var(--page);
  font: 16px/1.5 system-ui, sans-serif; }
h1, h2, h3 { line-height: 1.25; margin: 2rem 0 0.5rem; }
h2 { border-bottom: 1px solid var(--faint); padding-bottom: 0.3rem; }
p { max-width: 46rem; }
p:has(svg) { max-width: none; }
svg { width: min(100%, 36rem); height: auto; margin: 0.5rem 1rem 0.5rem 0; }
table { display: block; width: max-content; max-width: 100%; overflow-x: auto; border-collapse: collapse;
  font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid var(--faint); white-space: nowrap; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--page); padding-left: 0; }
pre { overflow-x: auto; padding: 0.7rem; border: 1px solid var(--faint); border-radius: 0.4rem; font-size: 0.85rem; }
"""


def page(title: str, text: str, folder: Path, titles: Mapping[str, str]) -> str:
    """The Markdown as one page that needs no other file; `titles` are of the figures, by file."""

    def image(_self: Any, tokens: Sequence[Any], i: int, _options: Any, _env: Any) -> str:
        name = str(tokens[i].attrs["src"])
        svg = (folder / name).read_text(encoding="utf-8")
        return figures.inline(svg, f"{Path(name).stem}-", html.escape(titles[name]))

    markdown = MarkdownIt("commonmark").enable("table")
    markdown.add_render_rule("image", image)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n{markdown.render(text)}</body>\n</html>\n"
    )
