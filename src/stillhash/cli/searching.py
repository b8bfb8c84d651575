"""Commands that search, list duplicates, and count or suggest labels and values.

Each is a method of `Collection`, without logic.
"""

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli.options import (
    AGAINST_HELP,
    BALANCE_HELP,
    QUERY_ENCODER_HELP,
    QUERY_HELP,
    SEARCH_PANEL,
    CollectionPath,
    ModelVersion,
    Queries,
    Where,
    row_length,
)
from stillhash.cli.output import AsJson, answer, count_of, progress_bar
from stillhash.errors import InvalidInput

if TYPE_CHECKING:
    from stillhash.collection.types import VersionName

app = Typer()
OPTIONAL_OF_HITS = ("explanation", "distance", "learnt_rank", "lexical_rank")  # not shown if they are None


@app.command(rich_help_panel=SEARCH_PANEL)
def search(
    path: CollectionPath,
    vector: Annotated[str | None, Option(metavar="FILE", help=QUERY_HELP)] = None,
    image: Annotated[Path | None, Option(metavar="FILE", help="An image to search by.")] = None,
    text: Annotated[str | None, Option(metavar="WORDS", help="A text; needs an encoder of texts, or clip:.")] = None,
    like: Annotated[str | None, Option(metavar="ID", help="An item to find similar ones to.")] = None,
    lexical: Annotated[bool, Option("--lexical", help="Search for the words of --text alone, by BM25.")] = False,
    hybrid: Annotated[bool, Option("--hybrid", help="Fuse the ranking with one by the words of --text.")] = False,
    words: Annotated[str | None, Option(metavar="WORDS", help="Other words for --lexical or --hybrid.")] = None,
    encoder: Annotated[str | None, Option(metavar="NAME", help=QUERY_ENCODER_HELP)] = None,
    k: Annotated[int, Option("-k", min=1, help="Hits for each query.")] = 10,
    where: Where = None,
    version: ModelVersion = None,
    balance: Annotated[float | None, Option(min=0, max=1, help=BALANCE_HELP)] = None,
    explain: Annotated[bool, Option("--explain", help="Show what labels, similarity and bits gave each hit.")] = False,
    against: Annotated[int | None, Option(min=0, metavar="N", help=AGAINST_HELP)] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best items for query vectors, an image, a text, words, or an item.

    \b
    Examples:
      stillhash search films --like 42 -k 5
      stillhash search films --vector '[0.1, 0.2, 0.3]' --json
      stillhash search films --vector queries.npy --where '{"year": 1995}'
      stillhash search gallery --image cat.jpg --explain
      stillhash search notes --text 'late parcel'
      stillhash search notes --text 'blue "summer night"' --hybrid
    """
    from stillhash.io import parse_ids, parse_json_object

    if against is not None and not explain:
        raise InvalidInput("--against: expected --explain with it")
    typed = text if words is None else words
    if lexical or hybrid or words is not None:
        check_word_options(lexical, hybrid, typed, explain)
    if sum(option is not None for option in (vector, image, text, like)) != 1 and not (lexical and words is not None):
        raise InvalidInput("query: expected one of --vector, --image, --text and --like")
    with stillhash.open(path, read_only=True) as collection:
        if lexical:
            others = (vector, image, like, version, balance, text if words is not None else None)
            if any(option is not None for option in others):
                raise InvalidInput("--lexical: expected words alone, got another query or an option of the ranking")
            _answer_hits([collection.lexical_search(typed or "", k, where=parse_json_object(where, "where"))], as_json)
            return
        if vector is not None:
            queries = parse_queries(vector, collection)
        elif like is not None:
            queries = collection.reconstruct(parse_ids([like]))
        else:
            from stillhash.encoders import open_query_encoder

            query_encoder = open_query_encoder(collection, encoder)
            features = query_encoder.image_file(image) if image is not None else query_encoder.text(text or "")
            queries = features[None]
        compare = explain if against is None else against
        allowed = parse_json_object(where, "where")
        ranked_by = parse_version(version)
        options: dict[str, Any] = {"where": allowed, "version": ranked_by, "balance": balance}
        if hybrid:
            results = [collection.hybrid_search(query, typed or "", k, **options) for query in queries]
        else:
            results = collection.search(queries, k, explain=compare, **options)
    _answer_hits(results, as_json)


@app.command(rich_help_panel=SEARCH_PANEL)
def range_search(
    path: CollectionPath,
    vector: Queries,
    threshold: Annotated[float | None, Option(help="The lowest score of a hit.")] = None,
    distance: Annotated[int | None, Option(min=0, help="The largest Hamming distance of a hit instead.")] = None,
    where: Where = None,
    version: ModelVersion = None,
    as_json: AsJson = False,
) -> None:
    """Find all items with at least this score, or within this Hamming distance.

    \b
    Examples:
      stillhash range-search films --vector query.json --threshold 3.5
      stillhash range-search hashes --vector 8f3a61c2d4e5f607 --distance 10
    """
    from stillhash.io import parse_json_object

    with stillhash.open(path, read_only=True) as collection:
        queries = parse_queries(vector, collection)
        options: dict[str, Any] = {"where": parse_json_object(where, "where"), "version": parse_version(version)}
        results = collection.range_search(queries, threshold, distance=distance, **options)
    _answer_hits(results, as_json)


def check_word_options(lexical: bool, hybrid: bool, words: str | None, explain: bool) -> None:
    """Refuse options that contradict a search for words."""
    if lexical == hybrid:
        raise InvalidInput("--words: expected one of --lexical and --hybrid with it, got both or neither")
    if words is None:
        raise InvalidInput("--words: expected words, or --text, with --lexical and --hybrid")
    if explain:
        raise InvalidInput("--explain: expected no --lexical and no --hybrid with it")


def parse_queries(text: str, collection: "stillhash.Collection") -> Any:
    """Return the queries that an option names; ready codes may be in it as hexadecimal digits."""
    from stillhash.io import read_queries

    if collection.codes_only and re.fullmatch("[0-9a-fA-F]+", text) and not Path(text).exists():
        return [text]
    return read_queries(text, row_length(collection))


def parse_version(text: str | None) -> "VersionName | None":
    """Return the version of the model that an option names."""
    if text is None:
        return None
    if text == "hamming":
        return "hamming"
    if not text.isdecimal():
        raise InvalidInput(f"--version: expected a number, or hamming, got {text!r}")
    return int(text)


def _answer_hits(results: "list[stillhash.Answer]", as_json: bool) -> None:
    """Print the answers, without empty explanations, distances and ranks."""
    from stillhash.cli import result_tables

    answers = [asdict(one) for one in results]
    for hit in (hit for one in answers for hit in one["hits"]):
        for name in [name for name in OPTIONAL_OF_HITS if hit[name] is None]:
            del hit[name]
    answer({"answers": answers}, as_json, result_tables.answers)


if TYPE_CHECKING:
    from rich.console import Console

LISTED_IDS = 20  # of a group, for people


@app.command(rich_help_panel=SEARCH_PANEL)
def duplicates(
    path: CollectionPath,
    cosine: Annotated[
        float | None, Option(min=0.5, max=1, help="Of the features of two duplicates, at least; 0.97 by default.")
    ] = None,
    distance: Annotated[
        int | None,
        Option(min=0, help="In place of it, bits in which their codes differ at most; 3 without rescoring codes."),
    ] = None,
    where: Where = None,
    limit: Annotated[int, Option(min=1, help="Groups to show at most.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Find groups of items that are nearly the same, the earliest first.

    Each item of a group is so near some other item of it. Labels count nothing by cosine.

    \b
    Examples:
      stillhash duplicates films
      stillhash duplicates gallery --cosine 0.95 --limit 100 --json
    """
    from stillhash.io import parse_json_object

    condition = parse_json_object(where, "where")
    with stillhash.open(path, read_only=True) as collection, progress_bar("comparing", 1.0, counts=False) as update:
        groups = collection.duplicates(
            distance,
            cosine=cosine,
            where=condition,
            limit=limit,
            progress=lambda share: update(completed=share),
        )
    answer({"groups": groups}, as_json, _show)


def _show(result: dict[str, Any], console: "Console") -> None:
    """Print a line for each group, and how many there are."""
    from rich.text import Text

    from stillhash.io import format_id

    groups = result["groups"]
    for group in groups:
        names = " ".join(format_id(name) for name in group[:LISTED_IDS])
        rest = f" and {len(group) - LISTED_IDS:,} more" if len(group) > LISTED_IDS else ""
        console.print(Text(names + rest), soft_wrap=True)
    items = count_of(sum(map(len, groups)), "item")
    console.print(Text(f"{count_of(len(groups), 'group')} with {items}"), soft_wrap=True)


if TYPE_CHECKING:
    from rich.console import Console

FIELDS_OPTION = Option("--field", metavar="FIELD", help="A field of the metadata; may be repeated. All if not given.")


@app.command(rich_help_panel=SEARCH_PANEL)
def facets(
    path: CollectionPath,
    fields: Annotated[list[str] | None, FIELDS_OPTION] = None,
    where: Where = None,
    limit: Annotated[int, Option(min=1, help="Values of each field to show at most.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Count the items of each label, and of each value of the metadata; the most frequent first.

    \b
    Examples:
      stillhash facets films
      stillhash facets films --field year --where '{"labels": "cat"}' --json
    """
    from stillhash.io import parse_json_object

    condition = parse_json_object(where, "where")
    with stillhash.open(path, read_only=True) as collection:
        counted = collection.facets(condition, fields=fields or None, limit=limit)
    answer(asdict(counted), as_json, _show_facets)


@app.command(rich_help_panel=SEARCH_PANEL)
def suggest(
    path: CollectionPath,
    text: Annotated[str, Argument(metavar="TEXT", help="What somebody types.")],
    limit: Annotated[int, Option(min=1, help="Suggestions to show at most.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Suggest labels, values and ids that begin with a text, or are near it where none does.

    \b
    Examples:
      stillhash suggest films ca
    """
    with stillhash.open(path, read_only=True) as collection:
        suggestions = [asdict(one) for one in collection.suggest(text, limit)]
    answer({"suggestions": suggestions}, as_json, _show_suggestions)


def _show_facets(result: dict[str, Any], console: "Console") -> None:
    """Print a line for each value, below a line for each field."""
    from rich.text import Text

    for facet in (result["labels"], *result["fields"]):
        distinct = "many" if facet["distinct"] is None else f"{facet['distinct']:,}"
        numbers = "" if facet["minimum"] is None else f", {facet['minimum']} to {facet['maximum']}"
        console.print(Text(f"{facet['field']}: {facet['items']:,} items, {distinct} distinct{numbers}"), soft_wrap=True)
        for one in facet["values"]:
            console.print(Text(f"{one['count']:>10,}  {one['value']}"), soft_wrap=True)


def _show_suggestions(result: dict[str, Any], console: "Console") -> None:
    """Print a line for each suggestion: how many items, what it is, and the value."""
    from rich.text import Text

    for one in result["suggestions"]:
        kind = f"{one['field'] or one['kind']}{', near' if one['near'] else ''}"
        console.print(Text(f"{one['count']:>10,}  {kind}  {one['value']}"), soft_wrap=True)
