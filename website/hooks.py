"""Hooks of mkdocs: add generated pages, and rewrite links that lead outside docs/."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # mkdocs loads this file by its path

from website import api_reference, cli_reference, http_reference  # noqa: E402
from website.links import ROOT_PAGES, copy_path, rewrite_links  # noqa: E402
from website.markdown import fix_cells, indent_lists, layers_to_html  # noqa: E402

ICON = ROOT / "src" / "stillhash" / "server" / "static" / "icon.svg"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of groups of commands to the navigation, after the page of all commands."""
    groups = [page for page in cli_reference.pages() if not page.endswith("index.md")]
    sections = [config.nav]
    while sections:
        section = sections.pop()
        if f"{cli_reference.FOLDER}/index.md" in section:
            section += [{Path(page).stem.capitalize(): page} for page in groups]
        sections += [
            value for each in section if isinstance(each, dict) for value in each.values() if isinstance(value, list)
        ]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not files in docs/."""
    pages = {**api_reference.pages(), **cli_reference.pages(), **http_reference.pages()}
    for source, page in ROOT_PAGES.items():
        pages[page] = rewrite_links((ROOT / source).read_text(), source, page, partial(_copy, files, config))
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, "assets/icon.svg", abs_src_path=str(ICON)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Make links to other files of the repository work on the site, and draw lists and flowcharts."""
    uri = page.file.src_uri
    if page.file.generated_by is None:
        markdown = rewrite_links(markdown, f"docs/{uri}", uri, partial(_copy, files, config))
    return indent_lists(layers_to_html(markdown))


def on_page_content(html: str, **_: Any) -> str:
    """Improve the tables of a page."""
    return fix_cells(html)


def _copy(files: Files, config: MkDocsConfig, path: str) -> None:
    if files.get_file_from_path(copy_path(path)) is None:
        files.append(File.generated(config, copy_path(path), abs_src_path=str(ROOT / path)))
