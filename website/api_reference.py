"""Write the pages of the Python reference: which public names stand on which page. mkdocstrings fills them in."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

from stillhash import errors
from website.links import ROOT
from website.markdown import table

FOLDER = "reference/python"
PROTOCOLS = {"Searcher"}
SOURCE = ROOT / "src"
WITH_INHERITED = {"Collection", "Client", "AsyncClient", "Index", "NamedIndex", "ClusterIndex", "Tally"}


class ApiPage(NamedTuple):
    title: str
    text: str  # what the names have in common
    modules: tuple[str, ...]  # whose public names it has
    first: tuple[str, ...] = ()  # names that come before the others


PAGES = {
    "collection": ApiPage(
        "Collections",
        "A collection in a folder: `stillhash.open` opens or creates one. [The guide](../../collection.md).",
        ("stillhash.collection",),
        ("open", "Collection", "Answer", "Hit", "Item", "Vote"),
    ),
    "search": ApiPage(
        "Search",
        "Indexes of codes in memory: weights and codes in, exact hits out. [How it works](../../search.md).",
        ("stillhash.search",),
        ("Index", "Hits", "NamedIndex", "NamedHits", "Searcher"),
    ),
    "hashers": ApiPage(
        "Hashers",
        "Learning methods, with the method names of scikit-learn. All of them have the methods of "
        "[Hasher][stillhash.hashers.Hasher]. [Which to choose](../../method.md).",
        ("stillhash.hashers",),
        ("Tally", "Hasher", "load", "OHSL", "OHSLSym"),
    ),
    "codes": ApiPage(
        "Codes",
        "Conversions of ready codes of other libraries. [The guide](../../codes.md).",
        ("stillhash.codes",),
    ),
    "client": ApiPage(
        "Clients",
        "A served collection, with the methods of a local one: blocking (`pip install 'stillhash[client]'`) and for "
        "asyncio (`stillhash[async]`). [The guide](../../http.md#the-python-client).",
        ("stillhash.client",),
        ("Client",),
    ),
    "server": ApiPage(
        "Server",
        "What `stillhash serve` is built of, for programs that serve collections themselves "
        "(`pip install 'stillhash[server]'`). [Routes](../http.md).",
        ("stillhash.server",),
        ("create_app", "serve", "Settings"),
    ),
    "encoders": ApiPage(
        "Images and texts",
        "Encoders; folders of images, and folders and tables of texts, into collections; queries that are images or "
        "texts. [The guide to images](../../images.md), [the guide to texts](../../text.md).",
        ("stillhash.encoders",),
        (
            "open_encoder",
            "index_folder",
            "index_documents",
            "folder_documents",
            "table_documents",
            "open_query_encoder",
        ),
    ),
    "io": ApiPage(
        "Files of rows",
        "Rows out of files, tables and data frames, a chunk at a time. Most programs need only "
        "`Collection.import_file` and `Collection.add_table`. [The guide](../../migrating.md).",
        ("stillhash.io",),
        ("read_chunks", "scan_chunks", "table_chunks", "Chunk", "ColumnNames"),
    ),
    "cluster": ApiPage(
        "Cluster",
        "The same index on Ray (`pip install 'stillhash[cluster]'`). [The guide](../../cluster.md).",
        ("stillhash.cluster",),
        ("ClusterIndex", "ClusterReader", "LocalCluster"),
    ),
    "faiss": ApiPage(
        "FAISS",
        "Conversions to FAISS and back (`pip install 'stillhash[faiss]'`). [The guide](../../faiss.md).",
        ("stillhash.integrations.faiss",),
        ("to_faiss", "to_faiss_binary", "from_faiss"),
    ),
    "langchain": ApiPage(
        "LangChain",
        "A vector store of LangChain (`pip install 'stillhash[langchain]'`). "
        "[The guide](../../integrations/langchain.md).",
        ("stillhash.integrations.langchain",),
        ("StillhashVectorStore", "StillhashRetriever"),
    ),
    "mcp": ApiPage(
        "MCP",
        "Tools for assistants (`pip install 'stillhash[mcp]'`). [The guide](../../integrations/mcp.md).",
        ("stillhash.integrations.mcp",),
        ("collection_server",),
    ),
    "errors": ApiPage(
        "Errors",
        "Every error is a `StillhashError`, and also a built-in error of the same kind, such as `ValueError`. A "
        "message names the argument, what was expected and what came. `status` is the HTTP status of an error, "
        "`exit_code` that of the command line.",
        ("stillhash.errors",),
    ),
}
ELSEWHERE = ("stillhash.__version__", "stillhash.info")  # names of the package itself, on the first page


@cache
def _module_tree(module: str) -> tuple[Path, ast.Module]:
    """Return the file of a module, and its source, parsed: it need not be possible to import it here."""
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file, ast.parse(file.read_text())


def public_names(module: str) -> list[str]:
    """Return the public names of a module: its __all__, or the classes and functions without an underscore."""
    body = _module_tree(module)[1].body
    for node in body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    defined = [node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return [name for name in defined if not name.startswith("_")]


def entries(page: ApiPage) -> list[str]:
    """Return the full names that stand on a page, in order."""
    every = [_full_name(module, name) for module in page.modules for name in public_names(module)]
    rank = {name: place for place, name in enumerate(page.first)}
    return sorted(every, key=lambda full: rank.get(full.rsplit(".", 1)[1], len(rank)))


def _full_name(module: str, name: str) -> str:
    """Return the name of an object; the one in its own module, if a module has the same name beside it."""
    file, tree = _module_tree(module)
    if (file.parent / f"{name}.py").exists() and file.name == "__init__.py":
        sources = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module]
        return next(f"{each.module}.{name}" for each in sources if name in [alias.name for alias in each.names])
    return f"{module}.{name}"


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its path."""
    result = {f"{FOLDER}/index.md": _front_page()}
    for name, page in PAGES.items():
        parts = [f"# {page.title}", page.text, *map(_entry, entries(page))]
        if name == "errors":
            parts.insert(2, _error_table())
        result[f"{FOLDER}/{name}.md"] = "\n\n".join(parts) + "\n"
    return result


def _front_page() -> str:
    rows = [
        f"| [{page.title}]({name}.md) | {', '.join(f'`{each}`' for each in page.modules)} |"
        for name, page in PAGES.items()
    ]
    return "\n".join(
        [
            "# Python",
            "",
            "All public names, with their types, from the docstrings. Most of them can be imported from `stillhash` "
            "itself: `from stillhash import Index, Tally`. A name that is not here may change without notice.",
            "",
            "| page | modules |",
            "|---|---|",
            *rows,
            "",
            *map(_entry, ELSEWHERE),
            "",
        ]
    )


def _error_table() -> str:
    """Return a table of all errors with their HTTP status and exit code."""
    values = [getattr(errors, name) for name in public_names("stillhash.errors")]
    rows = [
        (f"[`{each.__name__}`][stillhash.errors.{each.__name__}]", str(each.status), str(each.exit_code))
        for each in values
        if isinstance(each, type) and issubclass(each, errors.StillhashError)
    ]
    return table(("error", "HTTP status", "exit code"), rows)


def _entry(full: str) -> str:
    module, name = full.rsplit(".", 1)
    options = []
    if module == "stillhash.errors":
        options.append("show_bases: true")
    if name in PROTOCOLS:
        options.append("show_if_no_docstring: true")
    if name in WITH_INHERITED:
        options.append("inherited_members: true")
    if module == "stillhash.hashers" and name[0].isupper() and name not in ("Tally", "Hasher", "Model"):
        options.append("members: false")
    lines = [f"::: {full}", *(["    options:"] if options else []), *(f"      {option}" for option in options)]
    return "\n".join(lines)
