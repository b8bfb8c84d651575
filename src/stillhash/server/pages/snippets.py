"""*Do this in code*: the command and the Python lines that do the same as a page."""

import shlex
from typing import NamedTuple

from stillhash.collection.learning.probe import VersionComparison
from stillhash.collection.types import Filter
from stillhash.collection.values import json_text
from stillhash.server.pages.queries import PageOptions, PageQuery


class SearchCode(NamedTuple):
    """How to do it without the page."""

    command: str
    python: str


def listing_code(name: str, where: Filter | None) -> SearchCode:
    """Return how to list the items that meet a condition."""
    lines = f"for item in collection.items({where!r}, limit=48):\n    print(item.id, item.labels)"
    return SearchCode(_command("ids", name, *_where(where)), _python(name, lines))


def facets_code(name: str) -> SearchCode:
    """Return how to list the labels and values that can be searched for."""
    lines = "for one in collection.facets().labels.values:\n    print(one.value, one.count, one.example)"
    return SearchCode(_command("facets", name), _python(name, lines))


def query_code(name: str, query: PageQuery, options: PageOptions) -> SearchCode | None:
    """Return how to search for an item or for words; None for an upload, which only the page has."""
    where = "" if options.where is None else f", where={options.where!r}"
    if query.item is not None:
        how = ["--like", query.name]
        lines = f"(query,) = collection.reconstruct([{query.item.id!r}])\n"
        verb = f"search(query, k={options.hits}{where}{_balance(options)})"
    elif query.words is not None and query.vector is None:
        how, lines = ["--lexical", "--words", query.words], ""
        verb = f"lexical_search({query.words!r}, k={options.hits}{where})"
    else:
        return None
    lines += f"for hit in collection.{verb}.hits:\n    print(hit.id, hit.score, hit.labels)"
    balance = [] if options.balance is None or query.item is None else ["--balance", f"{options.balance:g}"]
    return SearchCode(
        _command("search", name, *how, "-k", str(options.hits), *_where(options.where), *balance), _python(name, lines)
    )


def _balance(options: PageOptions) -> str:
    return "" if options.balance is None else f", balance={options.balance:g}"


def _where(where: Filter | None) -> list[str]:
    return [] if where is None else ["--where", json_text(where)]


def _command(*words: str) -> str:
    return shlex.join(["stillhash", *words])


def _python(name: str, lines: str) -> str:
    indented = "\n".join(f"    {line}" for line in lines.splitlines())
    return f"import stillhash\n\nwith stillhash.open({name!r}) as collection:\n{indented}"


# ---- the learning page ----

OPEN_LINES = "import stillhash\n\nwith stillhash.open({!r}, read_only=True) as collection:\n"


def learning_code(name: str) -> SearchCode:
    """Return how to read the gain, the quality of labels, and the versions."""
    lines = """\
    for point in collection.quality()["curve"][-5:]:  # new items, before they were learnt
        print(point["rows"], point["ndcg"], point["before"]["ndcg"])
    for row in collection.probe().labels:  # stored items, the worst label first
        print(row.label, row.ndcg, row.ndcg_gain)
"""
    path = shlex.quote(name)
    command = f"stillhash versions {path}\nstillhash probe {path}\nstillhash compare {path} 0"
    return SearchCode(command, OPEN_LINES.format(name) + lines)


def comparison_code(name: str, comparison: VersionComparison) -> SearchCode:
    """Return how to compare these versions."""
    one, other = comparison.versions
    lines = f"""\
    comparison = collection.compare_versions({one!r}, {other!r})
    print(comparison.quality, comparison.differing)
    for query in comparison.queries[:5]:  # the largest gains
        print(query.id, query.ndcg, query.hits)
"""
    return SearchCode(f"stillhash compare {shlex.quote(name)} {one} {other}", OPEN_LINES.format(name) + lines)
