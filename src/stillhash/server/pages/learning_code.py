"""The same as the learning page in the shell and in Python, as it shows them."""

import shlex

from stillhash.collection.probe import VersionComparison
from stillhash.server.pages.search_code import SearchCode

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
