"""The documentation site: references that miss nothing, a strict build, and search from a folder, without a network."""

from __future__ import annotations

import html
import inspect
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import stillhash
from website import api_reference, cli_reference, http_reference
from website.command_lines import check_call, command_tree, stillhash_calls
from website.links import ROOT, copy_path, rewrite_links
from website.markdown import fix_cells, indent_lists, layers_to_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LINK = re.compile(r'<(a|img|script|link|iframe|source)\b[^>]*?\b(?:href|src)="([^"]+)"')
ANCHOR = re.compile(r'\b(?:id|name)="([^"]+)"')


def commands(group: Any, names: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Return all commands below a group, with the words that name them."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for name, command in group.commands.items():
        found += commands(command, (*names, name)) if hasattr(command, "commands") else [((*names, name), command)]
    return found


# ---- references ----


def test_docstrings_as_markdown() -> None:
    docstrings = pytest.importorskip("website.docstrings", reason="griffe is not installed")
    text = """Do it; docs/http.md says how.

Parameters
----------
a, b : numbers,
    both of them.
c : a text
>>> do(1)

weights: of the bits
others: stay"""
    assert docstrings.to_markdown(text, ["weights"]).split("\n") == [
        "Do it; [http.md](../../http.md) says how.",
        *("", "", "- `a`, `b`: numbers,", "  both of them.", "- `c`: a text"),
        *("", "```python", "do(1)", "```", ""),
        *("`weights`: of the bits", "others: stay"),
    ]


def test_python_reference_has_every_public_name() -> None:
    names = [name for page in api_reference.PAGES.values() for name in api_reference.entries(page)]
    assert len(names) == len(set(names))
    objects = {name.rsplit(".", 1)[1] for name in [*names, *api_reference.ELSEWHERE]}
    modules = {module.rsplit(".", 1)[1] for page in api_reference.PAGES.values() for module in page.modules}
    assert set(stillhash.__all__) <= objects | modules
    text = "\n".join(api_reference.pages().values())
    assert all(f"::: {name}\n" in text for name in names)
    for page in api_reference.PAGES.values():
        for module in page.modules:
            try:
                loaded = import_module(module)
            except ImportError:  # it needs what is not installed
                continue
            assert all(hasattr(loaded, name) for name in api_reference.public_names(module))
        assert set(page.first) <= {name.rsplit(".", 1)[1] for name in api_reference.entries(page)}


def test_command_reference_has_every_option() -> None:
    pages = cli_reference.pages()
    for names, command in commands(command_tree()):
        page = pages[f"{cli_reference.FOLDER}/{names[0] if names[1:] else 'index'}.md"]
        section = page.split(f"\n## {names[-1]}\n", 1)[1].split("\n## ", 1)[0]
        for each in command.params:
            if each.opts[0].startswith("-"):
                assert all(name in section for name in (*each.opts, *each.secondary_opts)), names
        assert f"```text\nstillhash {' '.join(names)}" in section
        assert "```sh\nstillhash" in section, f"no guide has an example of stillhash {' '.join(names)}"


def test_examples_in_the_help_of_a_command() -> None:
    text = "Do it.\n\n\x08\nExamples:\n  stillhash info\n  stillhash info --json"
    assert cli_reference.split_help(text) == ("Do it.", ["stillhash info", "stillhash info --json"])
    assert cli_reference.split_help("Do it.\n\nNow.") == ("Do it.\n\nNow.", [])
    for _, command in commands(command_tree()):
        _, examples = cli_reference.split_help(inspect.cleandoc(command.help or ""))
        assert [line for line in examples for words in stillhash_calls(line) if check_call(words)] == []


def test_defaults_in_the_command_reference() -> None:
    page = cli_reference.pages()[f"{cli_reference.FOLDER}/index.md"]
    search = page.split("\n## search\n", 1)[1].split("\n## ", 1)[0]
    assert "| `-k INTEGER` | Hits for each query. (at least 1, default `10`) |" in search
    assert "| `PATH` | The collection's folder. |" in search


def test_http_reference_has_every_route_and_field() -> None:
    pytest.importorskip("fastapi", reason="the server is not installed")
    document = http_reference.openapi_document()
    (page,) = http_reference.pages().values()
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            section = page.split(f"### {method.upper()} {path} {{", 1)[1].split("\n### ", 1)[0].split("\n## ", 1)[0]
            assert f"Role: {route.get('x-role') or 'none'}" in section
            assert ("x-role" in route) is (path not in ("/v1/health", "/v1/ready"))
            for content in route.get("requestBody", {}).get("content", {}).values():
                assert all(f"| `{field}` |" in section for field in content["schema"].get("properties", ()))
            others = [each["name"] for each in route.get("parameters", ()) if each["name"] != "name"]
            assert all(f"| `{each}` |" in section for each in others)
    roles = {
        path.rsplit("/", 1)[1]: methods["post"]["x-role"]
        for path, methods in document["paths"].items()
        if "post" in methods
    }
    assert (roles["search"], roles["feedback"], roles["add"], roles["forget"]) == ("read", "feedback", "write", "admin")


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "array", "items": {"type": "number"}}, "list of (number)"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "integer"),
        ({"anyOf": [{"type": "integer"}, {"const": "hamming"}]}, "integer or `hamming`"),
        ({"$ref": "#/components/schemas/Hit"}, "[Hit](#hit)"),
        ({"type": "string", "format": "binary"}, "bytes"),
        ({}, "any"),
    ],
)
def test_types_in_words(schema: dict[str, Any], words: str) -> None:
    assert http_reference.type_name(schema) == words


# ---- pages of the repository ----


def test_links_to_files_outside_docs() -> None:
    copies: list[str] = []
    text = (
        "[a](../README.md#use-it) [b](../pyproject.toml) [c](http.md) [d](https://x.org/a.md) [e](#f) [g](../none.md)"
    )
    result = rewrite_links(text, "docs/report/../collection.md", "collection.md", copies.append)
    assert result == (
        f"[a](overview.md#use-it) [b]({copy_path('pyproject.toml')}) [c](http.md) [d](https://x.org/a.md) [e](#f) "
        "[g](../none.md)"
    )
    assert copies == ["pyproject.toml"]
    assert rewrite_links("[a](docs/report/report.md)", "SECURITY.md", "security.md", copies.append) == (
        "[a](report/report.md)"
    )
    assert rewrite_links("[a](../http.md)", "docs/report/report.md", "report/report.md", copies.append) == (
        "[a](../http.md)"
    )
    code = "```sh\n[a](../README.md)\n```"
    assert rewrite_links(code, "docs/a.md", "a.md", copies.append) == code


def test_lists_and_flowcharts_for_the_site() -> None:
    assert indent_lists("- a\n  - b\n    - c\n  text\n```\n  - code\n```") == (
        "- a\n    - b\n        - c\n  text\n```\n  - code\n```"
    )
    chart = layers_to_html("```mermaid\nflowchart TD\n    a --> b & c\n    b & c --> d\n```")
    assert chart == (
        '<div class="layers"><div><code>a</code></div><div><code>b</code><code>c</code></div>'
        "<div><code>d</code></div></div>"
    )


def test_cells_of_tables() -> None:
    assert fix_cells("<td>+.01 1,000</td><td><code>cat\\|dog</code></td><p>\\|</p>") == (
        '<td class="number">+.01 1,000</td><td><code>cat|dog</code></td><p>\\|</p>'
    )


# ---- the site ----


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, with warnings as errors."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    pytest.importorskip("mkdocstrings_handlers.python", reason="mkdocstrings-python is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return folder


def anchors(page: Path) -> set[str]:
    return {html.unescape(name) for name in ANCHOR.findall(page.read_text(encoding="utf-8"))}


@pytest.mark.nightly
@pytest.mark.xdist_group("browser-test_site")  # which builds the site once, for all tests of it
def test_links_of_the_site_lead_somewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= 45
    names = {page: anchors(page) for page in pages}
    dead, loaded = [], []
    for page in pages:
        if page.name == "404.html":  # has absolute links, since it is shown at any address
            continue
        for tag, link in LINK.findall(page.read_text()):
            path, _, anchor = html.unescape(link).partition("#")
            if re.match(r"\w+:|//", path):
                loaded += [link] * (tag != "a")
                continue
            target = page if not path else Path(os.path.normpath(page.parent / unquote(path.partition("?")[0])))
            if not target.is_file() or (anchor and target in names and unquote(anchor) not in names[target]):
                dead.append(f"{page.relative_to(site)}: {link}")
    assert dead == []
    assert loaded == []  # from a network


@pytest.mark.nightly
@pytest.mark.xdist_group("browser-test_site")
def test_references_of_classes_have_their_methods(site: Path) -> None:
    for name in ("client.Client", "client.AsyncClient", "collection.Collection", "search.Index"):
        module, class_name = name.split(".")
        described = getattr(stillhash, class_name)
        public = {each for each in dir(described) if each[0] != "_" and getattr(described, each).__doc__}
        shown = anchors(site / "reference" / "python" / f"{module}.html")
        assert {each for each in public if f"stillhash.{name}.{each}" not in shown} == set()


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
@pytest.mark.parametrize("path", ["index.html", "reference/python/collection.html"])
def test_search_works_from_a_folder(site: Path, path: str) -> None:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    requests: list[str] = []
    errors: list[str] = []
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((site / path).as_uri())
        page.fill(".md-search__input", "source_cap")
        page.wait_for_selector(".md-search-result__item >> text=Clicks and votes")
        page.click(".md-search-result__item a[href*='clicks.html']")
        page.wait_for_selector("h1 >> text=Clicks and votes")
        assert page.url.startswith((site / "clicks.html").as_uri())
        browser.close()
    assert errors == []
    assert all(url.startswith(("file://", "data:")) for url in requests)
