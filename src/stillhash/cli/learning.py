"""Commands for learning: labels, votes, versions of the model, and how good they are on the same stored items.

Each is a method of `Collection`, without logic.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option, Typer

import stillhash
from stillhash.cli import completion
from stillhash.cli.completion import MAX_VOTE_ENTRIES
from stillhash.cli.options import (
    QUERY_HELP,
    ChunkRows,
    CollectionPath,
    LabelsFile,
    ModelVersion,
    RowsFile,
    current_version,
)
from stillhash.cli.output import AsJson, answer, count_of, for_each_chunk
from stillhash.cli.searching import parse_version
from stillhash.errors import InvalidInput

if TYPE_CHECKING:
    from stillhash.io import Chunk

LEARNING_PANEL = "Collections: learning"
VOTED_HELP = """Ids of hits; or, without --vector, a file with one vote a line: \
'{"query": [0.1, 0.2], "id": "a", "vote": "up", "source": "ann", "position": 9}', '-' for stdin; "query_id", a stored \
item, may stand for "query"."""
SAMPLE_HELP = "Sample of rows, as for add; default: the items."
ONE_HELP = "The one version: a number, 0 for before learning, or hamming."
OTHER_HELP = "The other version; by default the current one."


app = Typer()

SampleFile = Annotated[Path | None, Argument(metavar="FILE", help=SAMPLE_HELP)]
VersionArgument = Annotated[
    int,
    Argument(metavar="VERSION", min=1, help="The number of the version.", autocompletion=completion.versions),
]


@app.command(rich_help_panel=LEARNING_PANEL)
def learn(
    path: CollectionPath, file: RowsFile, labels: LabelsFile = None, chunk: ChunkRows = 1000, as_json: AsJson = False
) -> None:
    """Learn from labelled rows that are not stored as items. Each chunk makes a version.

    \b
    Examples:
      stillhash learn films labelled.jsonl
      stillhash learn films vectors.npy --labels labels.txt --chunk 500
    """
    from stillhash.io import read_chunks

    versions: list[int] = []

    def learn_chunk(rows: "Chunk") -> None:
        if not any(rows.labels):
            raise InvalidInput("labels: expected some, in the rows or by --labels FILE, got none")
        versions.append(collection.learn(rows.features, rows.labels))

    with stillhash.open(path) as collection:
        rows = for_each_chunk(read_chunks(file, collection.dim, chunk, labels=labels), learn_chunk, "learnt")
        result = {"rows": rows, "version": current_version(collection), "versions": versions}
    answer(result, as_json, f"{count_of(rows, 'row')} learnt; version {result['version']} is current")


@app.command(rich_help_panel=LEARNING_PANEL)
def feedback(
    path: CollectionPath,
    ids: Annotated[list[str], Argument(metavar="IDS|FILE", help=VOTED_HELP)],
    vector: Annotated[str | None, Option(metavar="FILE", help=QUERY_HELP)] = None,
    up: Annotated[bool | None, Option("--up/--down", help="Whether these items are good hits.")] = None,
    vote: Annotated[float | None, Option(help="In place of --up or --down: -1 to 1; 0 takes a vote back.")] = None,
    position: Annotated[int | None, Option(min=1, help="Rank at which the item was shown.")] = None,
    source: Annotated[str, Option(metavar="NAME", help="Who votes; the last vote of a source counts.")] = "",
    as_json: AsJson = False,
) -> None:
    """Learn from votes on hits of one query, or from a file of votes.

    \b
    Examples:
      stillhash feedback films 42 43 --vector query.json --up --source ann
      stillhash feedback films votes.jsonl
    """
    from stillhash.io import parse_ids, read_json_lines, read_queries

    with stillhash.open(path) as collection:
        if vector is None:
            if len(ids) != 1 or (up, vote, position, source) != (None, None, None, ""):
                raise InvalidInput("--vector: expected the query of these votes, or a FILE of votes and no options")
            votes = read_json_lines(Path(ids[0]))
            count, version = len(votes), collection.feedback_many(votes)
        else:
            queries = read_queries(vector, collection.dim)
            if len(queries) != 1:
                raise InvalidInput(f"--vector: expected one query, got {len(queries)}")
            if (up is None) == (vote is None):
                raise InvalidInput("--vote: expected one of --up, --down and --vote")
            value = up if vote is None else vote
            names = parse_ids(ids)
            count = len(names)
            version = collection.feedback(queries[0], names, value, source=source, position=position)
    answer({"votes": count, "version": version}, as_json, f"{count_of(count, 'vote')}; version {version} is current")


@app.command(rich_help_panel=LEARNING_PANEL)
def votes(
    path: CollectionPath,
    limit: Annotated[int, Option(min=1, max=MAX_VOTE_ENTRIES, help="Votes to list.")] = 20,
    after: Annotated[int | None, Option(min=0, metavar="NUMBER", help="Only votes before this number.")] = None,
    source: Annotated[str | None, Option(metavar="NAME", help="Only the votes of this source.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the votes that count, the latest first.

    \b
    Examples:
      stillhash votes films --limit 50
      stillhash votes films --source ann
    """
    from stillhash.cli import result_tables

    with stillhash.open(path, read_only=True) as collection:
        entries = collection.votes(source, limit, after)
    answer({"votes": [asdict(entry) for entry in entries]}, as_json, result_tables.votes)


@app.command(rich_help_panel=LEARNING_PANEL)
def doubtful(
    path: CollectionPath,
    count: Annotated[int, Option(min=1, help="Items to list, at most 1,000.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the items whose labels are least plausible, to check them; relabel corrects them.

    \b
    Examples:
      stillhash doubtful films --count 50
    """
    from stillhash.cli import result_tables

    with stillhash.open(path, read_only=True) as collection:
        items, share = collection.doubtful_labels(count), collection.stats()["wrong_label_share"]
    answer(
        {"wrong_label_share": share, "items": [asdict(item) for item in items]}, as_json, result_tables.doubtful_labels
    )


@app.command(rich_help_panel=LEARNING_PANEL)
def suggest_labels(
    path: CollectionPath,
    count: Annotated[int, Option(min=1, help="Items to list, at most 1,000.")] = 20,
    skip: Annotated[list[str] | None, Option(metavar="ID", help="An item not to list; can be repeated.")] = None,
    seed: Annotated[int | None, Option(min=0, help="Of what is drawn at random; default: any.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the unlabelled items whose labels would teach most, with likely labels; relabel stores what is right.

    \b
    Examples:
      stillhash suggest-labels films --count 50
      stillhash suggest-labels films --skip 42 --skip 43
    """
    from stillhash.cli import result_tables
    from stillhash.io import parse_ids

    with stillhash.open(path, read_only=True) as collection:
        suggestions = collection.suggest_labels(count, skip=parse_ids(skip or []), seed=seed)
    answer({"suggestions": [asdict(one) for one in suggestions]}, as_json, result_tables.suggested_labels)


@app.command(rich_help_panel=LEARNING_PANEL)
def flush(path: CollectionPath, as_json: AsJson = False) -> None:
    """Learn all pending labelled rows now, instead of waiting for a full step.

    \b
    Examples:
      stillhash flush films
    """
    with stillhash.open(path) as collection:
        version = collection.flush()
    answer({"version": version}, as_json, f"version {version} is current")


@app.command(rich_help_panel=LEARNING_PANEL)
def fit(path: CollectionPath, file: SampleFile = None, labels: LabelsFile = None, as_json: AsJson = False) -> None:
    """Fit the hash functions now and permanently, instead of waiting for more rows.

    \b
    Examples:
      stillhash fit films
      stillhash fit films sample.npy --labels labels.txt
    """
    from stillhash.io import read_chunks

    if file is None and labels is not None:
        raise InvalidInput("--labels: expected a FILE of rows with it")
    with stillhash.open(path) as collection:
        if file is None:
            collection.fit()
        else:
            sample = next(read_chunks(file, collection.dim, sys.maxsize, labels=labels), None)
            if sample is None:
                raise InvalidInput(f"{file.name}: expected rows, got none")
            collection.fit(sample.features, sample.labels)
        version = current_version(collection)
    answer({"version": version}, as_json, f"the hash functions are fitted; version {version} is current")


@app.command(rich_help_panel=LEARNING_PANEL)
def versions(path: CollectionPath, as_json: AsJson = False) -> None:
    """List the versions of the model.

    \b
    Examples:
      stillhash versions films
      stillhash versions films --json
    """
    from stillhash.cli import result_tables

    with stillhash.open(path, read_only=True) as collection:
        answer({"versions": collection.versions()}, as_json, result_tables.versions)


@app.command(rich_help_panel=LEARNING_PANEL)
def tag(
    path: CollectionPath,
    version: VersionArgument,
    name: Annotated[str, Argument(metavar="NAME", help="A name for the version.")],
    as_json: AsJson = False,
) -> None:
    """Name a version; a version with a name is never dropped.

    \b
    Examples:
      stillhash tag films 7 release-1
    """
    with stillhash.open(path) as collection:
        collection.tag(version, name)
    answer({"version": version, "tag": name}, as_json, f"version {version} is named {name!r} and kept")


@app.command(rich_help_panel=LEARNING_PANEL)
def rollback(path: CollectionPath, version: VersionArgument, as_json: AsJson = False) -> None:
    """Restore an earlier version under a new number; results are identical.

    \b
    Examples:
      stillhash rollback films 7
    """
    with stillhash.open(path) as collection:
        current = collection.rollback(version)
    text = f"version {current} is current, with the results of version {version}"
    answer({"version": current, "rollback_to": version}, as_json, text)


ProbeQueries = Annotated[int, Option(min=1, help="Items that are queries.")]
ProbeItems = Annotated[int, Option(min=10, help="Items that they rank.")]
OneVersion = Annotated[str, Argument(metavar="ONE", help=ONE_HELP, autocompletion=completion.versions_or_hamming)]
OtherVersion = Annotated[
    str | None, Argument(metavar="OTHER", help=OTHER_HELP, autocompletion=completion.versions_or_hamming)
]


@app.command(rich_help_panel=LEARNING_PANEL)
def probe(
    path: CollectionPath,
    version: ModelVersion = None,
    queries: ProbeQueries = 100,
    items: ProbeItems = 2000,
    as_json: AsJson = False,
) -> None:
    """Measure a version of the model on stored items, with its gain, and for each label, the worst first.

    \b
    Examples:
      stillhash probe films
      stillhash probe films --version 3 --json
    """
    from stillhash.cli import result_tables

    with stillhash.open(path, read_only=True) as collection:
        report = collection.probe(parse_version(version), queries=queries, items=items)
    answer(asdict(report), as_json, result_tables.probe)


@app.command(rich_help_panel=LEARNING_PANEL)
def compare(
    path: CollectionPath,
    one: OneVersion,
    other: OtherVersion = None,
    queries: ProbeQueries = 100,
    items: ProbeItems = 2000,
    as_json: AsJson = False,
) -> None:
    """Compare two versions of the model on the same stored queries: what differs, what is gained and lost.

    \b
    Examples:
      stillhash compare films 0
      stillhash compare films 3 7 --json
    """
    from stillhash.cli import result_tables

    versions = [parse_version(text) for text in (one, other)]
    if versions[0] is None:
        raise InvalidInput("ONE: expected a version, got none")
    with stillhash.open(path, read_only=True) as collection:
        comparison = collection.compare_versions(versions[0], versions[1], queries=queries, items=items)
    answer(asdict(comparison), as_json, result_tables.comparison)
