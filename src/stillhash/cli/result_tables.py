"""Print results for people: a few lines, and small tables. It needs rich, so commands import it when they print."""

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from stillhash.experiments.tables import print_table

METADATA_WIDTH = 60  # characters in a table
EXPLAINED_BITS = 3  # bits named in a table
QUALITY_NAMES = {"precision": "P@10", "ndcg": "nDCG@10", "map": "mAP"}
RANK_NAMES = {"learnt_rank": "learnt", "lexical_rank": "words"}  # of the columns
LISTED_QUERIES = 5  # with the largest gains, and with the largest losses


def pairs(result: dict[str, Any], console: Console) -> None:
    """Print one name and value per line."""
    width = max(map(len, result))
    for name, value in result.items():
        console.print(Text.assemble((f"{name:>{width}}", "bold"), f"  {_value_text(value)}"), soft_wrap=True)


def stats(result: dict[str, Any], console: Console) -> None:
    """Print the state of a collection; quality with its gain over the ranking before learning."""
    quality = result["quality"]
    gains = [
        f"{title} {quality[name]:.3f} ({quality[name] - quality['before'][name]:+.3f})"
        for name, title in QUALITY_NAMES.items()
        if quality
    ]
    pairs(result | {"quality": gains}, console)


def items(result: dict[str, Any], console: Console) -> None:
    """Print the items that exist."""
    columns = ("id", "labels", "metadata")
    if rows := [_item_cells(item) for item in result["items"] if item is not None]:
        print_table(console, None, columns, rows, text=columns)


def answers(result: dict[str, Any], console: Console) -> None:
    """Print the hits of each query, and what ranked them."""
    several = len(result["answers"]) > 1
    for number, one in enumerate(result["answers"]):
        ranking = one["ranking"] + (f" (version {one['version']})" if one["version"] else "")
        console.print(Text((f"query {number}: " if several else "") + ranking, style="dim"), soft_wrap=True)
        if one["missing"]:
            console.print(Text(f"partial: {one['missing']:.0%} of the items did not answer", style="red"))
        if not one["hits"]:
            console.print("no hits")
            continue
        others = [hit["explanation"]["other_version"] for hit in one["hits"] if "explanation" in hit]
        explained = ["labels + similarity", f"by version {others[0]}", "bits that count most"] if others else []
        far = ["distance"] if "distance" in one["hits"][0] else []
        far += [name for name in RANK_NAMES if any(name in hit for hit in one["hits"])]
        rows: list[list[str | Text]] = []
        for rank, hit in enumerate(one["hits"], 1):
            name, labels, metadata = _item_cells(hit)
            reasons = _explanation_cells(hit["explanation"]) if others else []
            scores = [f"{hit['score']:.4g}", *(str(hit.get(column, "")) for column in far)]
            rows.append([str(rank), name, *scores, hit["placed"], *reasons, labels, metadata])
        numbers = [RANK_NAMES.get(name, name) for name in far]
        columns = ["rank", "id", "score", *numbers, "by", *explained, "labels", "metadata"]
        print_table(console, None, columns, rows, text=["id", "by", *explained[1:], "labels", "metadata"])


def versions(result: dict[str, Any], console: Console) -> None:
    """Print the versions of a model."""
    if not result["versions"]:
        console.print("no versions yet: the first comes with the hash functions")
        return
    rows = []
    for version in result["versions"]:
        time = version["created"][:19].replace("T", " ")
        notes = ["current"] * version["current"] + ["drift"] * version.get("drift", False)
        about = [str(version["version"]), time, version["kind"], f"{version['rows']:,}"]
        measures = [f"{version['quality'][name]:.3f}" if "quality" in version else "" for name in QUALITY_NAMES]
        rows.append([*about, *measures, Text(printable(version["tag"] or "")), ", ".join(notes)])
    columns = ("version", "time", "by", "rows", *QUALITY_NAMES.values(), "tag", "")
    print_table(console, None, columns, rows, text=("time", "by", "tag"))


def doubtful_labels(result: dict[str, Any], console: Console) -> None:
    """Print items to check, with the labels that are predicted instead."""
    share = result["wrong_label_share"]
    estimate = (
        "not enough is learnt to judge labels" if share is None else f"estimated share of wrong labels: {share:.1%}"
    )
    console.print(estimate, highlight=False)
    columns = ("id", "labels", "predicted", "chance that they are wrong")
    rows: list[list[str | Text]] = []
    for item in result["items"]:
        labels = [_label_cell(item[kind]) for kind in ("labels", "predicted")]
        rows.append([Text(str(item["id"]), style="bold"), *labels, f"{item['chance']:.0%}"])
    if rows:
        print_table(console, None, columns, rows, text=columns[:3])


def suggested_labels(result: dict[str, Any], console: Console) -> None:
    """Print items to label, with their likely labels."""
    if not result["suggestions"]:
        console.print("all items have labels")
        return
    columns = ("id", "likely labels", "why", "usefulness")
    rows: list[list[str | Text]] = []
    for one in result["suggestions"]:
        likely = Text(", ".join(f"{printable(str(label))} {chance:.0%}" for label, chance in one["labels"]))
        rows.append([Text(str(one["id"]), style="bold"), likely, one["reason"], f"{one['usefulness']:.2f}"])
    print_table(console, None, columns, rows, text=columns[:3])


def audit(result: dict[str, Any], console: Console) -> None:
    """Print who changed what, and when."""
    if not result["entries"]:
        console.print("no entries")
        return
    columns = ("number", "time", "who", "what", "rows", "ids", "version")
    rows: list[list[str | Text]] = []
    for entry in result["entries"]:
        versions = dict.fromkeys((entry["version_before"], entry["version_after"]))
        who, what = Text(printable(entry["who"]), style="bold"), Text(printable(entry["what"]))
        about = [str(entry["number"]), entry["time"][:19].replace("T", " "), who, what, f"{entry['rows']:,}"]
        rows.append([*about, _ids_cell(entry), " to ".join(map(str, versions))])
    print_table(console, None, columns, rows, text=("time", "who", "what", "ids", "version"))


def votes(result: dict[str, Any], console: Console) -> None:
    """Print whose votes are on which item and query, and when they came."""
    if not result["votes"]:
        console.print("no votes")
        return
    columns = ("number", "time", "source", "query", "item", "vote")
    rows: list[list[str | Text]] = []
    for vote in result["votes"]:
        query = "features" if vote["query_id"] is None else printable(str(vote["query_id"]))
        names = [Text(name) for name in (printable(vote["source"]), query, printable(str(vote["id"])))]
        rows.append([str(vote["number"]), (vote["time"] or "")[:19].replace("T", " "), *names, f"{vote['vote']:+.3g}"])
    print_table(console, None, columns, rows, text=columns[1:5])


def _ids_cell(entry: dict[str, Any]) -> Text:
    text = ", ".join(printable(str(name)) for name in entry["ids"])
    if len(text) > METADATA_WIDTH:
        return Text(text[: METADATA_WIDTH - 1] + "…")
    return Text(text + (", …" if len(entry["ids"]) < entry["rows"] and text else ""))


def _label_cell(labels: list[Any]) -> Text:
    return Text(", ".join(printable(str(label)) for label in labels))


def _item_cells(item: dict[str, Any]) -> tuple[Text, Text, Text]:
    return Text(str(item["id"]), style="bold"), _label_cell(item["labels"]), Text(_metadata_text(item["metadata"]))


def _explanation_cells(explanation: dict[str, Any]) -> tuple[str, str, str]:
    """Return what orders the first page, rank and score by another version, and the bits that add or take most."""
    weight, parts = explanation["label_weight"], ""
    if weight is not None and explanation["page_score"] is not None:
        labels, similarity = weight * (explanation["labels"] or 0), (1 - weight) * explanation["similarity"]
        parts = f"{labels:.2f} + {similarity:.2f}"
    bits = sorted(enumerate(explanation["bits"]), key=lambda bit: -abs(bit[1]))[:EXPLAINED_BITS]
    other = f"{explanation['other_rank']} ({explanation['other_score']:.4g})"
    return parts, other, ", ".join(f"{number}: {contribution:+.2g}" for number, contribution in bits)


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        rounded = {name: round(v, 4) if isinstance(v, float) else v for name, v in value.items()}
        return _metadata_text(rounded) or "none"
    return f"{value:,}" if type(value) is int else "none" if value is None else str(value)


def _metadata_text(metadata: dict[str, Any] | None) -> str:
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in (metadata or {}).items()}
    text = " ".join(f"{printable(name)}={printable(value)}" for name, value in texts.items())
    return text if len(text) <= METADATA_WIDTH else text[: METADATA_WIDTH - 1] + "…"


def printable(text: str) -> str:
    """Escape text that could control a terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]


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
