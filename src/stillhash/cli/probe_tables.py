"""Print the quality of versions for people. It needs rich, so commands import it when they print."""

from typing import Any

from rich.console import Console
from rich.text import Text

from stillhash.cli.result_tables import QUALITY_NAMES, printable
from stillhash.experiments.tables import print_table

LISTED_QUERIES = 5  # with the largest gains, and with the largest losses


def probe(result: dict[str, Any], console: Console) -> None:
    """Print the quality, its gain over version 0, and the same of each label."""
    about = f"version {result['version']}, {result['queries']} queries, {result['items']:,} items"
    console.print(Text(about, style="dim"), soft_wrap=True)
    if result["labels_in_codes"]:
        console.print(Text("the codes hold labels, so these figures are far too good", style="red"), soft_wrap=True)
    rows = []
    for key, name in QUALITY_NAMES.items():
        values = [_measure(result[part][key]) for part in ("quality", "before")]
        rows.append([name, *values, f"{result['gain'][key]:+.3f} ± {result['gain_error'][key]:.3f}"])
    print_table(console, None, ("measure", "now", "before learning", "gain"), rows, text=("measure",))
    columns = ("label", "queries", "items", "nDCG@10", "gain", "P@10", "gain of P@10")
    labels: list[list[str | Text]] = [
        [
            Text(printable(str(row["label"])), style="bold"),
            *(str(row["queries"]), f"{row['items']:,}"),
            *(_measure(row["ndcg"]), f"{row['ndcg_gain']:+.3f}"),
            *(_measure(row["precision"]), f"{row['precision_gain']:+.3f}"),
        ]
        for row in result["labels"]
    ]
    print_table(console, None, columns, labels, text=("label",))


def comparison(result: dict[str, Any], console: Console) -> None:
    """Print the quality of both versions, and the queries that gained and lost most."""
    one, other = (f"version {version}" for version in result["versions"])
    rows = [
        [name, *map(_measure, values), f"{values[1] - values[0]:+.3f}"]
        for key, name in QUALITY_NAMES.items()
        for values in [[quality[key] for quality in result["quality"]]]
    ]
    print_table(console, None, ("measure", one, other, "gain"), rows, text=("measure",))
    count = len(result["queries"])
    differing = f"{result['differing']:.1f} of the first ten hits differ, on average of {count} queries"
    console.print(differing, highlight=False, soft_wrap=True)
    places = dict.fromkeys([*range(min(LISTED_QUERIES, count)), *range(max(0, count - LISTED_QUERIES), count)])
    queries = [result["queries"][place] for place in places]
    cells: list[list[str | Text]] = [
        [
            Text(printable(str(query["id"])), style="bold"),
            *(f"{query['ndcg'][1] - query['ndcg'][0]:+.3f}", *map(_measure, query["ndcg"]), str(query["differing"])),
        ]
        for query in queries
    ]
    print_table(console, None, ("query", "gain of nDCG@10", one, other, "hits that differ"), cells, text=("query",))


def _measure(value: float) -> str:
    return f"{value:.3f}"
